"""Gradients must be the same where the other inputs need none.

What it checks
    The gradient of each input where it is the only one that needs one on all ranks, beside that
    where all do, and whether backward comes to an end.

Why it matters
    Frozen weights under an adapter, or frozen inputs of a first layer: a collective that stands in
    the branch of another input's gradient is left out with it, in a fine-tuning and not in a test.

Fails
    if ctx.needs_input_grad[1]:                # the weight's
        grad_weight = grad.t() @ x
        dist.all_reduce(grad_x)

Passes
    if ctx.needs_input_grad[0]:
        dist.all_reduce(grad_x)

Cannot see
    Inputs that need gradients on some ranks only; two and more that need none together.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.findings.facts import At, Gradient
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.blocks import is_one_value
from pullback.check.ranks.crew import RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import UNWAITED, Joint

RULE = Rule("R112", "frozen-across-ranks", "ranks")
MOST = 6  # inputs that are tried alone


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """The gradient of each input alone."""
    if len(joint.positions) < 2:
        yield Skip(RULE, "no two inputs have gradients")
        return
    if joint.is_shared or joint.is_unsettled:
        yield Skip(RULE, UNWAITED if joint.is_unsettled else "the ranks are the caller's own")
        return
    key = frozenset[int]()
    cotangents, usual = joint.pulled(key, 0)
    for position in joint.positions[:MOST]:
        name = joint.names[position]
        try:
            alone = joint.pull(joint.point(key), cotangents, needs=frozenset({position}))
        except (Failed, RanksLost) as failure:
            yield joint.finding(
                RULE,
                at=f"backward, where only `{name}` needs a gradient",
                expected="the gradient, as where all inputs need one",
                got=str(failure),
                fix="take part in each collective on all ranks, whatever inputs need",
            )
            return
        for rank, (one, two) in enumerate(zip(usual, alone, strict=True)):
            before, now = one.gradients[position], two.gradients[position]
            if before is None and now is None:
                continue
            like = before if before is not None else now
            zero = torch.zeros_like(like) if like is not None else None
            if not is_one_value([zero if g is None else g for g in (before, now)]):
                yield joint.finding(
                    RULE,
                    at=At(Gradient(name), rest=f" on rank {rank}, where no other input needs one"),
                    expected="as where all inputs need gradients",
                    got="none" if now is None else "another gradient",
                    fix=f"compute and communicate the gradient of `{name}` whatever others need",
                )
                return
