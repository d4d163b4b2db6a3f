"""A function must not touch the `.grad` of anything.

What it checks
    With `.grad` set beforehand on every input, forward and a call of `torch.autograd.grad` leave
    these fields as they are; inputs without one do not get one.

Why it matters
    An inner `backward()` fills `.grad` and the engine then adds the returned gradient to it: twice
    the gradient, and earlier micro-batches are spoilt (unsloth-zoo#892).

Fails
    loss.backward(); return x.grad

Passes
    return torch.autograd.grad(loss, x)[0]

Cannot see
    The `.grad` of tensors that are neither inputs nor in the closure of the Function.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.subject import BackwardFailedError, Finding, Rule, Skip, Subject

RULE = Rule(code="M704", name="touched-grad", group="mutation", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor whose `.grad` changed."""
    for is_preset in (False, True):
        run = subject.run()
        watched = {f"input `{name}`": leaf for name, leaf in run.leaves.items()}
        watched |= _around(subject)
        before: dict[str, Tensor | None] = {}
        for name, tensor in watched.items():
            if is_preset and name.startswith("input") and tensor.is_leaf:
                tensor.grad = torch.full_like(tensor, 0.5)
            before[name] = None if tensor.grad is None else tensor.grad.clone()
        try:
            run.pull(subject.cotangents(run))
        except BackwardFailedError as failure:
            yield Skip.refused(RULE, f"backward fails: {failure}")
            return
        found = [name for name, tensor in watched.items() if not _same(tensor.grad, before[name])]
        for name in found:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"`.grad` of {name}, after torch.autograd.grad",
                expected="as it was before" if is_preset else "None, as before",
                got="None" if watched[name].grad is None else "other numbers",
                fix="use torch.autograd.grad inside: it fills no field; return what it gives",
            )
        if found:
            return


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)


def _around(subject: Subject) -> dict[str, Tensor]:
    """Leaf tensors that the user's methods see around them: closures and globals they name."""
    found: dict[str, Tensor] = {}
    for method in ("forward", "backward", "setup_context"):
        function = subject.target.method(method)
        if function is None or not inspect.isfunction(inspect.unwrap(function)):
            continue
        try:
            seen = inspect.getclosurevars(inspect.unwrap(function))
        except (TypeError, ValueError):  # an empty cell, or no Python function at all
            continue
        for name, value in {**seen.globals, **seen.nonlocals}.items():
            if isinstance(value, Tensor) and value.is_leaf:
                found[f"`{name}`"] = value
            elif isinstance(value, torch.nn.Module):
                found |= {f"`{name}.{key}`": p for key, p in value.named_parameters()}
    return found
