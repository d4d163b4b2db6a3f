"""Gradients of which every entry could be written in a coarser dtype than their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.explaining import Cause
from pullback.check.findings.facts import Gradient
from pullback.check.findings.registered import Registered
from pullback.check.inputs.dtypes import coarser_of, dtype_of, in_dtype
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.check.subject.trials import is_new
from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.judge.example import Example, dtype_name
from pullback.judge.run import Run, copies_of

NEEDLESS_ROUNDING = Rule("D503", "needless-rounding", "dtype", profile="quick")
MIXED_DTYPES = Rule("D505", "mixed-dtypes", "dtype", profile="quick")

DTYPES = (torch.float64, torch.float32, torch.float16)
FEW = 5  # entries by which chance is ruled out
LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Coarse:
    """The dtype in which every entry could be written, by its name."""

    dtype: str


def needless_rounding(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is coarser than its dtype."""
    for dtype in each(DTYPES, subject):
        example = in_dtype(subject.small, dtype)
        if example is not None and dtype_of(example) == dtype:
            yield from _coarse(subject, example)


def _coarse(subject: Subject, example: Example) -> Iterator[Finding]:
    try:
        run = subject.run(example)
        cotangents = _full(run, 31)
        grads = run.pull(copies_of(cotangents))
    except CallError:
        return
    positions = {name: i for i, name in enumerate(run.names) if name in grads}
    suspects = {n: g for n, g in grads.items() if g is not None and _coarsest(g)}
    if not suspects:
        return
    eager = subject.reference.gradients(example, cotangents, tuple(positions.values())) or {}
    for name, got in suspects.items():
        truth = eager.get(positions[name])
        if truth is None or truth.shape != got.shape or subject.target.intent.is_surrogate(name):
            continue
        dtype = _coarsest(got)
        if dtype in (_coarsest(truth), *(_coarsest(run.outputs[i]) for i in run.live)):
            continue
        if any(dtype in _holding(t) for t in (truth, *(run.outputs[i] for i in run.live))):
            continue
        if is_new(subject, NEEDLESS_ROUNDING, name):
            gap = gap_of(Gradient(name), got, truth)
            yield subject.finding(
                NEEDLESS_ROUNDING,
                example=example,
                **gap.facts(
                    expected=f", with the digits of {dtype_name(got.dtype)}",
                    got=f", and every entry could be written in {dtype}",
                ),
                detail=Coarse(dtype),
                fix=f"compute in {dtype_name(got.dtype)} or finer, and round once at the end",
            )


def _coarsest(tensor: Tensor) -> str:
    """The coarsest dtype in which every entry could be written; empty if it is the tensor's own."""
    return (_holding(tensor) or [""])[-1] if _has_many(tensor) else ""


def _holding(tensor: Tensor) -> list[str]:
    """The coarser dtypes in which every entry could be written, by name."""
    values = tensor.detach()
    return [name for name, _ in coarser_of(values[torch.isfinite(values)])]


def _has_many(tensor: Tensor) -> bool:
    """Whether there are so many different numbers that no chance makes all of them short."""
    values = tensor.detach()
    return int(values[torch.isfinite(values) & (values != 0)].unique().numel()) >= FEW


def _full(run: Run, seed: int) -> list[Tensor | None]:
    """Cotangents with all digits of their dtype."""
    found: list[Tensor | None] = []
    for number, output in enumerate(run.outputs):
        generator = torch.Generator().manual_seed(seed + number)
        values = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        found.append(values.to(output) if output.requires_grad else None)
    return found


def _rounded(context: ReproContext) -> str:
    """The gradient has more digits than a narrower dtype could hold."""
    if not context.name:
        return ""
    coarse = "float32" if context.about.detail.dtype == "float32" else "bfloat16"
    which = context.leaves.index(context.names[context.position])
    return text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"got = {context.pull()}[{which}]",
        f"assert not torch.equal(got.to(torch.{coarse}).to(got.dtype), got), "
        f'f"every entry fits {coarse}: {{got=}}"',
    )


def mixed_dtypes(subject: Subject) -> Iterator[Finding | Skip]:
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
            yield from _rounded_beside(subject, _mixed(start, coarse, dtype), coarse, dtype)


def _has_dimensions(subject: Subject, example: Example) -> bool:
    """Whether forward takes the example in float32, and gives outputs with dimensions."""
    try:
        run = subject.run(example)
    except ForwardRefusedError:
        return False
    return all(run.outputs[k].dim() for k in run.live)


def _mixed(start: Example, coarse: tuple[int, ...], dtype: torch.dtype) -> Example:
    for i in coarse:
        start = start.put(i, start.args[i].to(dtype), f"some inputs in {dtype_name(dtype)}")
    return start


def _rounded_beside(
    subject: Subject, example: Example, coarse: tuple[int, ...], dtype: torch.dtype
) -> Iterator[Finding]:
    try:
        run = subject.run(example)
    except ForwardRefusedError:
        return
    cotangents = _full(run, 41)
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
        is_coarse = all(run.outputs[k].dtype == dtype for k in run.live)
        if is_coarse and torch.equal(want.to(dtype).float(), got):
            continue  # rounded once, as the cotangent of such an output is
        if _is_written(want, dtype):
            continue
        if not is_new(subject, MIXED_DTYPES, name):
            continue
        gap = gap_of(Gradient(name), got, want)
        yield subject.finding(
            MIXED_DTYPES,
            example=example,
            **gap.facts(
                expected=", with the digits of float32",
                got=f", and every entry could be written in {dtype_name(dtype)}",
            ),
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
    if any(grad is not None for grad in usual.values()) and is_new(
        subject, MIXED_DTYPES, "backward"
    ):
        yield subject.finding(
            MIXED_DTYPES,
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
    except Exception:  # forward refuses it: nothing is known
        return False
    return bool(seen.is_cast)


def _is_written(tensor: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether every entry, of several, of a float32 tensor could be written in a coarser dtype."""
    if tensor is None or tensor.dtype != torch.float32:
        return False
    return _has_many(tensor) and dtype_name(dtype) in _holding(tensor)


RULES = (
    Registered(
        NEEDLESS_ROUNDING,
        needless_rounding,
        repros=(_rounded, by_float64),
        explains=(Cause(frozenset({"hessian-asymmetry"}), "the digits are lost there", rank=220),),
        page="""
Gradients must not be rounded to a coarser dtype than their own.

What it checks
    Whether every entry of a gradient could be written in a coarser dtype (float32 for float64,
    float16 and bfloat16 for float32, bfloat16 for float16), though neither forward's outputs nor
    PyTorch's own gradient could.

Why it matters
    A `.float()` on the way costs float64 users half of their digits; float16 gradients that pass
    through bfloat16 lose three bits of eleven in silence (Liger#1253).

Fails
    return (grad.float() * y.float()).to(grad.dtype)

Passes
    return grad * y

Cannot see
    A part of the computation that is coarse, with a fine step after it.
""",
    ),
    Registered(
        MIXED_DTYPES,
        mixed_dtypes,
        repros=(by_float64, of_number),
        page="""
A float32 input beside coarser ones must get a gradient with float32's digits.

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
""",
    ),
)
