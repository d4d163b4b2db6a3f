"""Tensors that need a gradient must be arguments themselves, not items of a list.

What it checks
    A Function with a backward whose differentiable inputs all come inside lists, tuples or dicts:
    with grad required of each of them, some output requires grad.

Why it matters
    `apply` looks at its direct arguments only. Tensors in a list are not seen: the output requires
    no grad, backward never runs, and a model trains without this part of its gradient, in silence.

Fails
    Sum.apply([a, b])

Passes
    Sum.apply(a, b)                                # def forward(ctx, *tensors)

Cannot see
    Lists beside a direct argument that requires grad: the items may be constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.check.subject.subject import Finding, ForwardRefusedError, Rule, Skip, Subject
from pullback.judge.example import can_differ, mapped, tensors_in

RULE = Rule("K806", "untracked-list", "contract", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    target, example = subject.target, subject.given
    has_backward = target.method("backward") is not None or target.method("vjp") is not None
    if not has_backward or example.differentiable:
        return
    inside = [i for i, arg in enumerate(example.args) if any(map(can_differ, tensors_in(arg)))]
    if not inside:
        return
    args = tuple(mapped(arg, _requiring) for arg in example.fresh())
    try:
        run = subject.run_with(example, args)
    except ForwardRefusedError:
        return
    outputs = [output for output in run.outputs if can_differ(output)]
    if outputs and not run.live:
        yield subject.finding(
            RULE,
            example=example,
            at=f"the tensors in {subject.names_at(inside)}",
            expected="an output that requires grad, since they do",
            got="none: backward can never run",
            fix="pass the tensors as arguments of their own: forward(ctx, *tensors)",
        )


def _requiring(tensor: Any) -> Tensor:
    made: Tensor = tensor.detach().clone()
    return made.requires_grad_() if can_differ(made) else made
