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
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.explaining import ANYTHING, Cause, Sign
from pullback.check.facts import Input, Thing
from pullback.check.repro.calls import begun
from pullback.check.repro.scene import Scene, text_of
from pullback.check.subject import BackwardFailedError, Finding, Rule, Skip, Subject

RULE = Rule(code="M704", name="touched-grad", group="mutation", profile="quick")


@dataclass(frozen=True, slots=True)
class Field:
    """The `.grad` of a tensor, and whether there was something in it."""

    of: Thing
    is_preset: bool


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor whose `.grad` changed."""
    for is_preset in (False, True):
        run = subject.run()
        watched: dict[Thing, Tensor] = {Input(n): leaf for n, leaf in run.leaves.items()}
        watched |= _around(subject)
        before: dict[Thing, Tensor | None] = {}
        for thing, tensor in watched.items():
            if is_preset and isinstance(thing, Input) and tensor.is_leaf:
                tensor.grad = torch.full_like(tensor, 0.5)
            before[thing] = None if tensor.grad is None else tensor.grad.clone()
        try:
            run.pull(subject.cotangents(run))
        except BackwardFailedError as failure:
            yield Skip.refused(RULE, "backward fails", failure.raised)
            return
        found = [thing for thing, t in watched.items() if not _same(t.grad, before[thing])]
        for thing in found:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"`.grad` of {thing}, after torch.autograd.grad",
                expected="as it was before" if is_preset else "None, as before",
                got="None" if watched[thing].grad is None else "other numbers",
                detail=Field(thing, is_preset),
                fix="use torch.autograd.grad inside: it fills no field; return what it gives",
            )
        if found:
            return


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)


def _around(subject: Subject) -> dict[Thing, Tensor]:
    """Leaf tensors that the user's methods see around them: closures and globals they name."""
    found: dict[Thing, Tensor] = {}
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


def _field(scene: Scene) -> str:
    """The `.grad` of an input is the caller's."""
    name = scene.code_of(scene.about.detail.of)
    if not name:
        return ""
    value, test = "None", f"{name}.grad is None"
    if scene.about.detail.is_preset:
        value = f"torch.full_like({name}, 0.5)"
        test = f"{name}.grad is not None and bool(({name}.grad == 0.5).all())"
    return text_of(
        begun(scene),
        f"{name}.grad = {value}",
        scene.pull(),
        f'assert {test}, f"{{{name}.grad=}}"',
    )


REPROS = (_field,)

EXPLAINS = (
    Cause(
        frozenset({"checkpoint-differs", "hooks-bypassed", "cut-gradient", "backward-twice"})
        | {Sign.AGAIN},
        "what is in `.grad` is none of what backward returns",
        rank=110,
        raising=ANYTHING,
    ),
)
