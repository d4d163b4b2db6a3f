"""Backward must take cotangents however they lie in memory.

What it checks
    The gradients for cotangents whose dimensions lie in another order, and for one number that is
    expanded, beside those for the same numbers in a plain tensor.

Why it matters
    `y.sum().backward()` and `y.t()` give such cotangents. Sent as they lie in memory, or received
    into a buffer of other strides, the numbers arrive in another order.

Fails
    dist.all_to_all_single(out, grad)          # some backends send what lies in memory

Passes
    dist.all_to_all_single(out, grad.contiguous())

Cannot see
    Layouts that were not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pullback.check.findings.facts import At, Gradient
from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.ranks.blocks import is_one_value
from pullback.check.ranks.commands import CotangentLayout, Values
from pullback.check.ranks.crew import RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import UNWAITED, Joint

RULE = Rule("R132", "strided-across-ranks", "ranks")
CONTIGUOUS = "call `.contiguous()` on what is sent, and receive into a contiguous tensor"
CLONE = "clone the cotangent before it is written"
SHARED_MEMORY = "refers to a single memory location"  # of PyTorch, for writes into an expanded one


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """The gradients for each layout of the cotangents."""
    if joint.is_unsettled:
        yield Skip(RULE, UNWAITED)
        return
    key = frozenset[int]()
    point = joint.point(key)
    cotangents, usual = joint.pulled(key, 0)
    one = [_constant(values) for values in cotangents]
    for laid, given in ((CotangentLayout.TRANSPOSED, cotangents), (CotangentLayout.EXPANDED, one)):
        plain = usual if laid is CotangentLayout.TRANSPOSED else joint.pull(point, given)
        try:
            now = joint.pull(point, given, laid=laid)
        except (Failed, RanksLost) as failure:
            yield joint.finding(
                RULE,
                at=f"backward, with cotangents {laid.value}",
                expected="the gradients, as for the same numbers in a plain tensor",
                got=str(failure),
                fix=CLONE if SHARED_MEMORY in str(failure) else CONTIGUOUS,
                severity=Severity.FRAGILE,
            )
            return
        for rank in range(joint.size):
            for position, gradient in plain[rank].gradients.items():
                if not is_one_value([gradient, now[rank].gradients[position]]):
                    name = joint.names[position]
                    rest = f" on rank {rank}, with cotangents {laid.value}"
                    yield joint.finding(
                        RULE,
                        at=At(Gradient(name), rest=rest),
                        expected="as for the same numbers in a plain tensor",
                        got="another gradient",
                        fix=CONTIGUOUS,
                    )
                    return


def _constant(values: Sequence[torch.Tensor | None]) -> Values:
    return tuple(None if v is None else torch.full_like(v, 0.75) for v in values)
