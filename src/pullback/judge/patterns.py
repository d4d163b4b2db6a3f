"""By what pattern a gradient is wrong: cut, flipped, scaled, swapped, not reduced, or otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.judge.mismatch import Mismatch
from pullback.judge.run import Run
from pullback.judge.tolerances import DIGITS, NEAR_ONE, PATTERN, SIMPLE

CUT, SIGN, FACTOR, SWAPPED, REDUCTION, VALUES = (
    "cut",
    "sign",
    "factor",
    "swapped",
    "reduction",
    "values",
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The kind of an error, and what is known of it in words; `size` is that of a mean."""

    kind: str
    why: str = ""
    fix: str = ""
    size: int = 0


def error_pattern(
    mismatch: Mismatch, others: Sequence[Mismatch], run: Run, *, may_be_mean: bool = True
) -> Pattern:
    """The simplest pattern that explains the whole of a wrong gradient."""
    have, want = mismatch.have, mismatch.want
    name = mismatch.name
    if not bool(torch.isfinite(want.abs()).all()):  # known by differences only
        is_cut = have is None or not bool((have != 0).any())
        return _cut(name) if is_cut else Pattern(VALUES)
    if have is None or not bool((have != 0).any()):
        return _cut(name)
    have = have.detach().cpu().to(want.dtype)
    other = _swapped_with(mismatch, others)
    if other:
        why = f"it is the gradient of `{other}`"
        return Pattern(SWAPPED, why, "return the gradients in the order of forward's arguments")
    ratio = ratio_of(have, want)
    if ratio is not None and abs(ratio - 1) > NEAR_ONE:
        return _scaled(name, ratio, run, may_be_mean)
    if _is_unreduced(have, want):
        why = "each entry has the share of one row only"
        return Pattern(
            REDUCTION, why, f"sum the gradient of `{name}` over the broadcast dimensions"
        )
    dtype = _rounded_to(have, want)
    if dtype:
        why = f"its numbers have the digits of {dtype} and no more"
        return Pattern(VALUES, why, "compute in the dtype of the inputs, or in a wider one")
    return Pattern(VALUES)


def factor_of(mismatch: Mismatch) -> float | None:
    """The constant by which a gradient is off, or None."""
    have, want = mismatch.have, mismatch.want
    if have is None or have.shape != want.shape or not bool(torch.isfinite(want.abs()).all()):
        return None
    return ratio_of(have.detach().cpu().to(want.dtype), want)


def _cut(name: str) -> Pattern:
    why = f"the output depends on `{name}`, and nothing flows back to it"
    return Pattern(CUT, why, f"return the gradient of `{name}`, or mark what must not have one")


def _scaled(name: str, ratio: float, run: Run, may_be_mean: bool) -> Pattern:
    if abs(ratio + 1) < PATTERN:
        return Pattern(SIGN, "the sign is flipped everywhere", f"negate the gradient of `{name}`")
    for size in sorted(_sizes(name, run)) if may_be_mean else ():
        if size > 1 and abs(ratio * size - 1) < PATTERN:
            why = f"it is {size} times too small, as a mean over {size} entries is"
            fix = f"sum where the gradient of `{name}` takes a mean"
            return Pattern(REDUCTION, why, fix, size)
    why = f"it is {ratio:.6g} times the right one everywhere"
    whole = round(1 / ratio) if ratio else 0
    if abs(whole) > 1 and abs(ratio * whole - 1) < PATTERN:
        return Pattern(FACTOR, why, f"multiply the gradient of `{name}` by {whole}")
    return Pattern(FACTOR, why, f"divide the gradient of `{name}` by {ratio:.6g}")


def _sizes(name: str, run: Run) -> set[int]:
    """How many entries a mean may be over; none where every output has the shape of the input."""
    leaf = run.leaves.get(name)
    if leaf is not None and all(output.shape == leaf.shape for output in run.outputs):
        return set()
    found: set[int] = set()
    for tensor in (*run.outputs, *run.leaves.values()):
        found |= {tensor.numel(), *tensor.shape}
        if leaf is not None and leaf.numel():
            found.add(tensor.numel() // leaf.numel())  # what is summed for each entry
    return found


def ratio_of(have: Tensor, want: Tensor) -> float | None:
    """The number that `have` is that many times `want`, up to rounding; None where it is none."""
    size = want.abs()
    where = int(size.flatten().argmax())
    top = want.flatten()[where]
    if not float(size.flatten()[where]) > 0:
        return None
    ratio = (have.flatten()[where] / top).item()
    if isinstance(ratio, complex):
        if abs(ratio.imag) > SIMPLE * abs(ratio):
            return None
        ratio = ratio.real
    if int((size > 0).sum()) == 1 and not _is_simple(ratio):
        return None  # any two numbers have a ratio
    limit = PATTERN * float(size.max()) * max(1.0, abs(ratio))
    return ratio if bool(((have - ratio * want).abs() <= limit).all()) else None


def _is_simple(ratio: float) -> bool:
    """Whether a factor is one that people write: a fraction of small numbers."""
    return math.isfinite(ratio) and any(
        abs(ratio * n - round(ratio * n)) < PATTERN and round(ratio * n) != 0 for n in range(1, 13)
    )


def _swapped_with(mismatch: Mismatch, others: Sequence[Mismatch]) -> str:
    """The name of the input whose gradient stands here instead."""
    for other in others:
        if other is mismatch or other.want.shape != mismatch.want.shape or mismatch.have is None:
            continue
        if not bool((other.want != 0).any()):
            continue
        apart = (mismatch.have.detach().cpu().to(other.want.dtype) - other.want).abs()
        if bool((apart <= PATTERN * float(other.want.abs().max())).all()):
            return other.name
    return ""


def _is_unreduced(have: Tensor, want: Tensor) -> bool:
    """Whether all entries are one number while they must not be: reduced too far."""
    return (
        have.numel() > 1
        and bool((have == have.flatten()[0]).all())
        and not bool((want == want.flatten()[0]).all())
    )


def _rounded_to(have: Tensor, want: Tensor) -> str:
    """The coarse dtype in which `have` is `want`, up to its rounding; empty where none is."""
    if have.is_complex() or have.shape != want.shape:
        return ""
    for dtype in (torch.float16, torch.bfloat16):
        is_coarse = torch.equal(have.to(dtype).to(have.dtype), have)
        limit = DIGITS * torch.finfo(dtype).eps * float(want.abs().max())
        if is_coarse and bool(((have - want).abs() <= limit).all()):
            return str(dtype).removeprefix("torch.")
    return ""
