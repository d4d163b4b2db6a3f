"""Backward must read its inputs and cotangents with all their digits.

What it checks
    In float64, float32 and float16: each input, and the cotangents, once as numbers that coarser
    dtypes hold and once with a little more, which those lose. Where the outputs and PyTorch's own
    gradient, if it is the same one, change with that, the gradient changes too.

Why it matters
    An input that is saved in bfloat16 to spare memory, or a cotangent that passes through it, costs
    most of the digits, and what is computed from it afterwards looks as fine as ever (Liger#1253).

Fails
    x = x.to(torch.bfloat16).to(x.dtype); return grad * torch.cos(x)

Passes
    return grad * torch.cos(x)

Cannot see
    Rounding of what was computed on the way, which the next step hides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient
from pullback.check.inputs.dtypes import in_dtype
from pullback.check.inputs.others import varied
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject.own import own_argument
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.check.subject.trials import is_new
from pullback.judge.example import Example, dtype_name
from pullback.judge.run import Run, copies_of

RULE = Rule("D507", "rounded-input", "dtype", profile="quick")

# What a number that bfloat16 holds may grow by without becoming another one in a coarser dtype.
MORE = {torch.float64: 2.0**-30, torch.float32: 2.0**-16, torch.float16: 1.5 * 2.0**-10}
FEW = 5  # entries by which chance is ruled out
NEAR = 2.0**-4  # of the largest entry: far above the rounding of any dtype
MOST = 3  # inputs that are looked at

FIX = "save and compute in the dtype of the input, or in a finer one"

Cotangents = Sequence["Tensor | None"]
Grads = dict[str, "Tensor | None"]


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that does not see the last digits of something."""
    if subject.fails_at_base or subject.target.intent.has_surrogate or not subject.is_steady:
        return
    for dtype, more in each(MORE.items(), subject):
        start = in_dtype(varied(subject.small), dtype)
        if start is not None and all(start.args[i].dtype == dtype for i in start.differentiable):
            yield from _deaf(subject, _coarse(start), more)


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A call, the cotangents that it was pulled with, and its gradients."""

    example: Example
    run: Run
    cotangents: Cotangents
    grads: Grads


def _pulled(subject: Subject, example: Example, cotangents: Cotangents | None) -> _Pulled | None:
    """The gradients there, for cotangents that bfloat16 holds where none are given."""
    try:
        run = subject.run(example)
        given = cotangents or [
            None if c is None else c.to(torch.bfloat16).to(c.dtype) for c in subject.cotangents(run)
        ]
        return _Pulled(example, run, given, run.pull(copies_of(given)))
    except CallError:
        return None


def _deaf(subject: Subject, start: Example, more: float) -> Iterator[Finding]:
    usual = _pulled(subject, start, None)
    if usual is None:
        return
    run = usual.run
    if any(run.outputs[k].dtype != start.args[start.differentiable[0]].dtype for k in run.live):
        return
    for i in sorted(start.needs)[:MOST]:
        near = start.put(i, start.args[i] * (1 + more), start.label)
        yield from _compared(subject, usual, _pulled(subject, near, usual.cotangents), i)
    larger = [None if c is None else c * (1 + more) for c in usual.cotangents]
    yield from _compared(subject, usual, _pulled(subject, start, larger), None)


def _compared(
    subject: Subject, usual: _Pulled, moved: _Pulled | None, position: int | None
) -> Iterator[Finding]:
    """The gradients that stay as they are to the last bit where PyTorch's own do not.

    What was moved is the input at `position`, or the cotangents.
    """
    if moved is None:
        return
    run, before, start = usual.run, usual.grads, usual.example
    deaf = [n for n, g in before.items() if _is_same(g, moved.grads.get(n))]
    is_heard = position is None or any(
        not torch.equal(run.outputs[k], moved.run.outputs[k]) for k in run.live
    )
    if not deaf or not is_heard:
        return
    places = tuple(sorted(start.needs))
    own, other = (
        subject.reference.gradients(one.example, one.cotangents, places) or {}
        for one in (usual, moved)
    )
    what = "the cotangent" if position is None else f"`{subject.names[position]}`"
    for i in places:
        name = subject.names[i]
        is_deaf = name in deaf and name not in subject.wrong_names
        # Where it is not this gradient (forward searches for its result), its digits tell nothing.
        is_wrong = _is_near(before[name], own.get(i)) and _mostly_differ(own.get(i), other.get(i))
        if position is None and not own:  # a gradient is linear in the cotangent, whatever it is
            is_wrong = _mostly_differ(before[name], torch.zeros_like(start.args[i]))
        if position is not None and is_deaf and own_argument(subject, subject.small, name):
            continue  # the caller gives the gradient
        if is_deaf and is_wrong and is_new(subject, RULE, name):
            dtype = dtype_name(start.args[i].dtype)
            yield subject.finding(
                RULE,
                example=start,
                at=At(Gradient(name), rest=f", as {what} changes in its last digits"),
                expected="other numbers, as PyTorch's own gradient gives",
                got=f"the same to the last bit: {what} is read in a coarser dtype than {dtype}",
                fix=FIX,
            )


def _coarse(example: Example) -> Example:
    """Every input as numbers that bfloat16 holds."""
    for i in example.differentiable:
        value = example.args[i]
        example = example.put(i, value.to(torch.bfloat16).to(value.dtype), example.label)
    return example


def _is_same(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None or one.shape != two.shape or one.numel() < FEW:
        return False
    return bool(torch.isfinite(one).all()) and torch.equal(one, two)


def _is_near(one: Tensor | None, two: Tensor | None) -> bool:
    """Whether they are the same gradient, however coarsely it was computed."""
    if one is None or two is None or one.shape != two.shape:
        return False
    return float((one - two).abs().max()) <= NEAR * float(two.abs().max())


def _mostly_differ(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None:
        return False
    return int((one != two).sum()) > max(FEW - 1, one.numel() // 2)


REPROS = (by_float64, of_number)
