"""A float32 input beside coarser ones must get a gradient with float32's digits.

What it checks
    The first input in bfloat16 or float16 and the others in float32, as activations beside weights
    are, and the other way round, where forward takes it: no gradient of a float32 input could be
    written whole in the coarse dtype, unless PyTorch's own gradient of the same forward could. And
    where forward itself casts an input to the dtype of another, backward raises nothing.

Why it matters
    Weights are kept in float32 and activations in bfloat16 so that small updates are not lost. A
    weight gradient that went through bfloat16 has three digits, in a tensor that shows seven.

Fails
    grad_w = (grad * x).sum(0).to(x.dtype).to(w.dtype)

Passes
    grad_w = (grad.float() * x.float()).sum(0).to(w.dtype)

Cannot see
    A gradient of fewer than five different entries, errors beyond the rounding itself, and outputs
    without dimensions, whose cotangent does not take part in PyTorch's promotion of dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.check.facts import At, Gradient
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
    worst_of,
)
from pullback.check.trials import is_new
from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.judge.example import Example, name_of
from pullback.judge.run import Run

RULE = Rule(code="D505", name="mixed-dtypes", group="dtype", profile="quick")

LOW = (torch.bfloat16, torch.float16)
FEW = 5  # entries by which chance is ruled out


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient has lost its digits to another input's dtype."""
    floats = subject.small.differentiable
    values = [subject.small.args[i] for i in floats]
    if len(floats) < 2 or any(v.is_complex() for v in values) or subject.fails_at_base:
        return
    if subject.target.intent.has_surrogate or subject.writes_inputs:
        return
    start = subject.small.to(torch.float32)
    if not _has_dimensions(subject, start):
        return  # beside a number, PyTorch's promotion goes by the other tensor
    for dtype in LOW:
        for coarse in each((floats[:1], floats[1:]), subject):
            yield from _rounded(subject, _mixed(start, coarse, dtype), coarse, dtype)


def _has_dimensions(subject: Subject, example: Example) -> bool:
    """Whether forward takes the example in float32, and gives outputs with dimensions."""
    try:
        run = subject.run(example)
    except ForwardRefusedError:
        return False
    return all(run.outputs[k].dim() for k in run.live)


def _mixed(start: Example, coarse: tuple[int, ...], dtype: torch.dtype) -> Example:
    for i in coarse:
        start = start.put(i, start.args[i].to(dtype), f"some inputs in {name_of(dtype)}")
    return start


def _rounded(
    subject: Subject, example: Example, coarse: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Finding]:
    try:
        run = subject.run(example)
    except ForwardRefusedError:
        return
    cotangents = _full(run)
    try:
        grads = run.pull(cotangents)
    except BackwardFailedError as failure:
        yield from _raised(subject, example, cotangents, failure)
        return
    wide = [i for i in sorted(example.needs) if i not in coarse]
    suspects = [i for i in wide if _is_written(grads.get(subject.names[i]), dtype)]
    if not suspects:
        return
    eager = subject.reference.gradients(example, cotangents, tuple(suspects)) or {}
    for i in suspects:
        name, want = subject.names[i], eager.get(i)
        got = grads[name]
        if want is None or got is None or want.shape != got.shape or want.dtype != torch.float32:
            continue
        if _is_written(want, dtype) or not is_new(subject, RULE, name):
            continue
        index, have, expected = worst_of(got, want)
        yield subject.finding(
            RULE,
            example=example,
            at=At(Gradient(name), index),
            expected=expected.then(", with the digits of float32"),
            got=have.then(f", and every entry could be written in {name_of(dtype)}"),
            fix="compute in the widest dtype of the inputs, and cast each gradient once at the end",
        )


def _raised(
    subject: Subject,
    example: Example,
    cotangents: Sequence[Tensor | None],
    failure: BackwardFailedError,
) -> Iterator[Finding]:
    """A backward that fails where forward casts one dtype to another, as PyTorch's own does not."""
    if not _casts(subject, example):
        return  # forward takes the mixture because PyTorch's operators do, and nobody means it
    usual = subject.reference.gradients(example, cotangents, tuple(sorted(example.needs))) or {}
    if any(grad is not None for grad in usual.values()) and is_new(subject, RULE, "backward"):
        yield subject.finding(
            RULE,
            example=example,
            severity=Severity.FRAGILE,
            at="backward, for inputs of several dtypes",
            expected="gradients, since forward takes these dtypes",
            got=failure.raised,
            fix="cast to one dtype in backward as forward does, or refuse the mixture in forward",
        )


class _Casts(DispatchMode):
    """Sees whether one of some tensors is cast to another dtype."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        DispatchMode.__init__(self)
        self.places = {t.data_ptr(): t.dtype for t in tensors}
        self.is_cast = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "_to_copy" and isinstance(result, Tensor):
            before = self.places.get(args[0].data_ptr())
            self.is_cast |= before is not None and before != result.dtype
        return result


def _casts(subject: Subject, example: Example) -> bool:
    """Whether forward itself casts an input, so that it is meant for inputs of several dtypes."""
    args = example.fresh(needs=frozenset())
    try:
        with torch.no_grad(), seeded(), _Casts([args[i] for i in example.differentiable]) as seen:
            subject.target.call(*args)
    except Exception:
        return False
    return bool(seen.is_cast)


def _is_written(tensor: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether every entry, of several, could be written in a coarser dtype."""
    if tensor is None or tensor.dtype != torch.float32:
        return False
    values = tensor.detach()
    values = values[torch.isfinite(values) & (values != 0)]
    return values.unique().numel() >= FEW and torch.equal(values.to(dtype).float(), values)


def _full(run: Run) -> list[Tensor | None]:
    """Cotangents with all digits of their dtype."""
    found: list[Tensor | None] = []
    for number, output in enumerate(run.outputs):
        generator = torch.Generator().manual_seed(41 + number)
        values = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        found.append(values.to(output.dtype) if output.requires_grad else None)
    return found


REPROS = (by_float64, of_number)
