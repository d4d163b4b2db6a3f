"""Tensors that need a gradient must be arguments themselves, not items of a list.

What it checks
    A Function with a backward whose differentiable inputs all come inside lists, tuples or dicts:
    with grad required of each of them, some output requires grad. And tensors inside of one that
    require grad in the example itself, beside direct arguments: where they move an output, they get
    a gradient.

Why it matters
    `apply` looks at its direct arguments only. Tensors in a list are not seen: the output requires
    no grad, backward never runs, and a model trains without this part of its gradient, in silence.

Fails
    Sum.apply([a, b])

Passes
    Sum.apply(a, b)                                # def forward(ctx, *tensors)

Cannot see
    Items beside a direct argument that do not require grad in the example: they may be constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.example import Example, can_differ, mapped, tensors_in
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Skip, Subject

RULE = Rule(code="K806", name="untracked-list", group="contract", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    target, example = subject.target, subject.given
    has_backward = target.method("backward") is not None or target.method("vjp") is not None
    nested = {i: tensors_in(arg) for i, arg in enumerate(example.args) if not _is_direct(arg)}
    inside = [i for i, items in nested.items() if any(map(can_differ, items))]
    if not has_backward or not inside:
        return
    if example.differentiable:
        asked = [i for i in inside if any(item.requires_grad for item in nested[i])]
        cut = [i for i in asked if _is_cut(subject, example, i)]
    else:
        cut = inside if _is_dead(subject, example) else []
    if cut:
        yield subject.finding(
            RULE,
            example=example,
            at=f"the tensors in {subject.names_at(cut)}",
            expected="gradients, since they require them and the output depends on them",
            got="none: `apply` does not look into lists and dicts",
            fix="pass the tensors as arguments of their own: forward(ctx, *tensors)",
        )


def _is_direct(arg: Any) -> bool:
    return isinstance(arg, Tensor)


def _is_dead(subject: Subject, example: Example) -> bool:
    """Whether no output requires grad, though every tensor in a container does."""
    args = tuple(mapped(arg, _requiring) for arg in example.fresh())
    try:
        run = subject.run_with(example, args)
    except ForwardRefusedError:
        return False
    return any(map(can_differ, run.outputs)) and not run.live


def _is_cut(subject: Subject, example: Example, position: int) -> bool:
    """Whether a container's tensors move an output, and none of them gets a gradient."""
    args = list(example.fresh())
    args[position] = mapped(args[position], _requiring)
    moved = list(example.fresh())
    moved[position] = mapped(moved[position], lambda t: t * 1.25 + 0.1 if can_differ(t) else t)
    try:
        run = subject.run_with(example, tuple(args))
        other = subject.run_with(example, tuple(moved))
        used = [(run.outputs[i], c) for i, c in enumerate(subject.cotangents(run)) if c is not None]
        torch.autograd.backward([output for output, _ in used], [c for _, c in used])
    except (ForwardRefusedError, RuntimeError):
        return False
    if all(map(torch.equal, run.outputs, other.outputs)):
        return False
    items = [t for t in tensors_in(args[position]) if can_differ(t)]
    return bool(used) and all(item.grad is None for item in items)


def _requiring(tensor: Any) -> Tensor:
    made: Tensor = tensor.detach().clone()
    return made.requires_grad_() if can_differ(made) else made
