"""Outputs and gradients must not depend on how the inputs lie in memory.

What it checks
    Each input with the same values as a dense one, but transposed, sliced, at an offset,
    channels-last, expanded with stride 0, or as a conjugate or negative view: outputs and gradients
    are those of the dense one, and neither `view` in forward nor backward raises.

Why it matters
    Queries, keys and values are slices of one projection, images come channels-last, biases are
    expanded. Kernels that take a pointer and assume dense memory compute with the wrong numbers
    (FlashAttention#2541, optimized-fused-ssim#1).

Fails
    flat = torch.as_strided(x, (x.numel(),), (1,))

Passes
    flat = x.contiguous().view(-1)

Cannot see
    A forward that refuses a layout by an error of its own: that is its right. Outputs that are
    wrong for stride 0 only: some of PyTorch's own operators are (`median` in 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.check.findings.facts import Gradient, Output
from pullback.check.inputs.layouts import FILL, LAYOUTS, dense, is_expanded, is_lazy, is_same_layout
from pullback.check.repro.context import ReproContext, compared, text_of
from pullback.check.repro.gradients import gradient_lines
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.function.isolation import seeded
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.run import Raised
from pullback.judge.tolerances import is_close

FIX = "read the input by its own strides and offset, or take `.contiguous()` first"
RULE = Rule("Y402", "input-layout", "layout", profile="quick")

Value = Output | Gradient  # what a call gives, by which its results are known

# What PyTorch says where a `view` cannot be taken: nobody's decision, so it is worth a finding.
ACCIDENTS = ("view size is not compatible", "not viewable", "is not contiguous")

# In these layouts each input is also tried alone: two kernels may agree on a wrong stride.
ALONE = ("transposed in memory", "every other element of a wider tensor", "expanded with stride 0")


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one call gave: outputs and gradients, or what was raised, and where."""

    values: dict[Value, Tensor | None]
    refusal: Raised | None = None
    failure: Raised | None = None

    @property
    def raised(self) -> Raised | None:
        """What was raised, by forward or by backward."""
        return self.refusal or self.failure


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output or gradient that changes with the layout of an input."""
    if subject.target.intent.nondeterministic:
        yield Skip(RULE, "results may differ between runs, by declaration")
        return
    start = subject.small_given
    once, again = _result(subject, start), _result(subject, start)
    if once.raised:
        yield Skip.refused(RULE, "the example itself fails", once.raised)
        return
    if any(not is_close(once.values[key], again.values.get(key)) for key in once.values):
        yield Skip(RULE, "two runs on the same inputs differ")
        return
    if _is_random(subject):
        yield Skip(RULE, "forward draws random numbers, in the order of memory")
        return
    reported: set[Value | None] = set()
    for label, positions, variant, plain in each(_variants(start), subject):
        want = _result(subject, plain) if is_expanded(label) else once
        if not want.raised:
            yield from _compared(subject, label, positions, variant, plain, want, reported)


def _variants(start: Example) -> Iterator[tuple[str, tuple[int, ...], Example, Example]]:
    """All tensors in a layout at once, then each alone, and each variant as dense tensors."""
    for label, change in LAYOUTS.items():
        made: dict[int, Tensor] = {}
        for i in start.tensors:
            if is_expanded(label) and i not in start.differentiable:
                continue  # an order of rows that is one number no longer is an order
            changed = change(start.args[i])
            if changed is not None and not is_same_layout(changed, start.args[i]):
                made[i] = changed
        groups = [tuple(made)]
        if len(made) > 1 and label in ALONE:
            groups += [(i,) for i in made]
        for group in groups:
            if group:
                variant = plain = start
                for i in group:
                    variant = variant.put(i, made[i], f"{label}")
                    plain = plain.put(i, dense(made[i]), "dense")
                yield label, group, variant, plain


def _compared(
    subject: Subject,
    label: str,
    positions: tuple[int, ...],
    variant: Example,
    plain: Example,
    want: CallResult,
    reported: set[Value | None],
) -> Iterator[Finding]:
    have = _result(subject, variant)
    if have.refusal and not any(text in have.refusal.text for text in ACCIDENTS):
        return
    if have.refusal and _refuses_by_itself(subject, variant):
        return
    same = _same_outputs(have, want)
    if is_expanded(label) and not same:
        return  # PyTorch's own `median` is wrong for stride 0 (2.13)
    who = f"{subject.names_at(positions)} {label}"
    if have.raised:
        if None not in reported and not is_lazy(label):
            reported.add(None)
            yield subject.finding(
                RULE,
                example=variant,
                at=f"{'forward' if have.refusal else 'backward'}, with {who}",
                expected="what dense inputs of the same values give",
                got=have.raised,
                fix="take `.contiguous()`, or `reshape` in the place of `view`",
                severity=Severity.FRAGILE,
            )
        return
    for key, got in have.values.items():
        expected = want.values.get(key)
        if got is not None and not can_differ(got):
            continue  # a choice, by rounding where two are as good; gradients follow it
        if key in reported or is_close(got, expected) or (not same and isinstance(key, Gradient)):
            continue  # gradients of another function say nothing
        if not _persists(subject, variant, plain, key):
            continue
        reported.add(key)
        gap = gap_of(key, got, expected)
        facts = gap.facts(expected=", as for dense inputs", got=f", with {who}")
        yield subject.finding(RULE, example=variant, **facts, fix=FIX)


class Raising(TorchFunctionMode):
    """Sees which of PyTorch's functions raises."""

    def __init__(self) -> None:
        super().__init__()
        self.by = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.by = self.by or getattr(func, "__name__", "")
            raise


def _refuses_by_itself(subject: Subject, example: Example) -> bool:
    """Whether an operator of PyTorch raises that is no `view` of the user's (`kron` in 2.13)."""
    with Raising() as raising:
        _result(subject, example)
    return raising.by not in ("", "view", "view_as")


def _persists(subject: Subject, variant: Example, plain: Example, key: Value) -> bool:
    """Whether a value differs as much in float64, where forward takes it: rounding does not."""
    have, want = (_result(subject, e) for e in (_doubled(variant), plain.double()))
    if have.raised or want.raised:
        return not (have.refusal and want.refusal) or _is_large(subject, variant, plain, key)
    return not is_close(have.values.get(key), want.values.get(key), 1e3)


def _doubled(variant: Example) -> Example:
    """The variant in float64, each tensor still as it lies in memory: a cast makes it dense."""
    wide = variant.double()
    for i in variant.differentiable:
        wide = wide.put(i, _laid(wide.args[i], variant.args[i]), variant.label)
    return wide


def _laid(values: Tensor, like: Tensor) -> Tensor:
    """The values in memory with the strides and the offset of another tensor."""
    if values is like or like.is_conj() or like.is_neg() or 0 in like.stride():
        return values
    memory = like.untyped_storage().nbytes() // like.element_size()
    whole = torch.full((memory,), FILL, dtype=values.dtype, device=values.device)
    laid = whole.as_strided(like.size(), like.stride(), like.storage_offset())
    return laid.copy_(values)


def _is_large(subject: Subject, variant: Example, plain: Example, key: Value) -> bool:
    """Whether a value differs by more than rounding of numbers of about one."""
    have, want = (_result(subject, e).values.get(key) for e in (variant, plain))
    if have is None or want is None or have.shape != want.shape or not have.numel():
        return True
    return not float((have - want).abs().max()) <= 1e3 * torch.finfo(have.dtype).eps


def _result(subject: Subject, example: Example) -> CallResult:
    try:
        run = subject.run(example)
    except ForwardRefusedError as refusal:
        return CallResult({}, refusal=refusal.raised)
    values: dict[Value, Tensor | None] = {
        Output(i): output.detach().clone() for i, output in enumerate(run.outputs)
    }
    try:
        grads = run.pull([None if c is None else dense(c) for c in subject.cotangents(run)])
    except BackwardFailedError as failure:
        return CallResult(values, failure=failure.raised)
    return CallResult(values | {Gradient(name): grad for name, grad in grads.items()})


def _is_random(subject: Subject) -> bool:
    """Whether forward gives something else after another seed."""
    found = []
    for seed in (1, 2):
        args = subject.small_given.fresh(needs=frozenset())
        try:
            with torch.no_grad(), seeded(seed):
                found.append(tensors_in(subject.target.call(*args)))
        except Exception:  # without grad it fails, which is for another rule to say
            return False
    return any(
        a.shape != b.shape or not is_close(a, b)
        for a, b in zip(*found, strict=False)
        if can_differ(a)
    )


def _same_outputs(have: CallResult, want: CallResult) -> bool:
    keys = [key for key in have.values if isinstance(key, Output)]
    return all(is_close(have.values[key], want.values.get(key)) for key in keys)


def _compared_with_dense(context: ReproContext) -> str:
    """Results for the laid-out inputs against those for dense ones."""
    values = dict(zip(context.names, context.example.args, strict=False))
    plain = [
        name
        if values[name].is_contiguous() and not values[name].storage_offset()
        else f"{name}.clone(memory_format=torch.contiguous_format)"
        for name in context.floats
    ]
    if plain == context.floats:
        return ""
    laid = f"gradients({', '.join(context.floats)})"
    return text_of(
        gradient_lines(context, weights=context.weights(), with_outputs=True),
        f"wanted = gradients({', '.join(plain)})",
        compared(laid, "wanted"),
    )


REPROS = (_compared_with_dense,)
