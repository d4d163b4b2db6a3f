"""Saved tensors may come back from other memory than they were saved from.

What it checks
    Under saved-tensor hooks that copy each tensor elsewhere, as offloading does, backward gives the
    same gradients, and does not raise.

Why it matters
    Offloading, activation checkpointing and compression work by these hooks. A backward that knows
    a saved tensor by its address, its identity or its strides gives wrong numbers under them.

Fails
    slope = MyFunction.cache[x.data_ptr()]

Passes
    x, slope = ctx.saved_tensors

Cannot see
    Tensors that are kept past `save_for_backward`: no hook sees those (see `tensor-on-ctx`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.elsewhere import is_repeatable
from pullback.check.facts import At, Gradient
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    worst_of,
)
from pullback.judge.tolerances import is_close

RULE = Rule(
    code="Q005",
    name="hooks-bypassed",
    group="context",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield a finding when hooks change the gradients, or make backward fail."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    if not is_repeatable(subject):
        yield Skip.refused(RULE, "the same call does not give the same twice")
        return
    usual = subject.pull()
    with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
        run = subject.run()
    try:
        grads = run.pull(subject.cotangents(run)) if run.live else {}
    except BackwardFailedError as failure:
        yield subject.finding(
            RULE,
            example=subject.base,
            at="backward, with saved tensors that come back from other memory",
            expected="the gradients of an ordinary call",
            got=failure.raised,
            fix="read nothing from a saved tensor but its values",
        )
        return
    for name, got in grads.items():
        expected = usual[name]
        if got is None or expected is None or got.shape != expected.shape:
            continue
        if is_close(got, expected, 100):
            continue
        index, have, want = worst_of(got, expected)
        yield subject.finding(
            RULE,
            example=subject.base,
            severity=Severity.WRONG,
            at=At(Gradient(name), index, rest=", with saved tensors from other memory"),
            expected=want,
            got=have,
            fix="read nothing from a saved tensor but its values",
        )
        return


def _pack(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _unpack(kept: Tensor) -> Tensor:
    return kept.clone()
