"""How far numbers may be apart and still be the same: each tolerance that decides, with its reason.

A rule of `check` may have a tolerance of its own, as may the judge of kernels (`candidates`); all
else takes its own from here. `eps` is the relative rounding error of a dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.judge.example import wide_of


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ: a share of each entry, and a share of the largest one."""

    relative: float
    scaled: float
    floor: float = 0.0

    def allowed(self, want: Tensor) -> Tensor:
        """How far each entry of a gradient may be from `want`."""
        size = want.abs()
        return self.relative * size + (self.scaled * largest_entry(want) + self.floor)

    def is_near(self, number: complex, truth: complex) -> bool:
        """Whether one number is another."""
        return abs(number - truth) <= self.relative * abs(truth) + self.floor

    def admits(self, have: Tensor, want: Tensor) -> bool:
        """Whether `have` is `want`, all of which must be finite."""
        measure = self.measure(want)
        return bool(measure.known.all()) and measure.fits(wide_of(have))

    def measure(self, want: Tensor) -> Measure:
        """What a gradient is measured by that must be `want`."""
        want = wide_of(want)
        return Measure(want, torch.isfinite(want.abs()), self.allowed(want))


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """A gradient that is right, and how far from it another may be.

    Where PyTorch's own derivative is not finite, nothing is `known`, and nothing is judged.
    """

    want: Tensor
    known: Tensor
    allowed: Tensor

    def differs(self, got: Tensor) -> Tensor:
        """Where a gradient of the same shape is wrong."""
        return self.known & ~((got - self.want).abs() <= self.allowed)

    def fits(self, got: object) -> bool:
        """Whether a gradient is right everywhere."""
        if not isinstance(got, Tensor) or got.shape != self.want.shape:
            return False
        return not bool(self.differs(got).any())

    def excess(self, got: Tensor | None) -> Tensor:
        """By how much each entry is beyond what is allowed, 0 or less where it is not.

        No gradient is one of zeros.
        """
        have = torch.zeros_like(self.want) if got is None else wide_of(got)
        if have.shape != self.want.shape:
            return torch.full_like(self.want, math.inf, dtype=torch.float64)
        excess = (have - self.want).abs() - self.allowed
        excess = torch.where(torch.isfinite(have.abs()), excess, math.inf)
        return torch.where(self.known, excess, -1.0)


# ---- two computations of one thing (`closeness` says how) ----

ULPS = 2.0  # units in the last place: what one rounding, or another library's `exp`, may change
SIGMAS = 6.0  # times the usual error of the expected numbers: nothing is so far off by chance
NUDGE = 4.0  # units in the last place by which inputs are moved to see how much that matters
SMALL = 1e-3  # of the largest number, or of 1: what is smaller is compared with this
BAD_LUCK = 8  # times the error of a sum whose roundings go up as often as down

# ---- numbers that were recorded in a file, when that is tested on another machine ----

RECORDED = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}  # of a sum of absolute values: some hundred roundings of single precision, ten of a half type
RECORDED_AT_ZERO = 1e-3  # numbers in the sum beside which those that cancel are rounding
LISTED_WITHIN, LISTED_COARSE = 1e-7, 1e-3  # of one number, listed with some more digits
KINKY = 2e-2  # of a slope by differences in single precision, with a step of half of this

# ---- exact numbers, of proofs ----

NO_DIFFERENCE = 1e-30  # of two equal values with fifty digits
DIFFERENT = 1e-6  # of a witness: large enough to be seen in float64
READABLE = 1e-3  # the same of one that is written with short numbers
NOISE = 1e-12  # of what must be zero with forty digits
LITERAL = 2.0**-51  # a float from the number that it stands for: the last two bits

# ---- gradients beside the reference; what is beyond these is doubted, not yet wrong ----

RELATIVE = 1e-5  # of an entry: coarser than rounding, and finer than any factor that people write
ROUNDINGS, MOST = 200, 0.05  # of an entry, in a coarse dtype: roundings add up, but not to 5%
SCALED = 1e-12  # of the largest entry: what large numbers leave behind where they cancel
CANCELLING, MOST_SCALED = 60, 0.02  # the same in a coarse dtype
USUAL = 4  # times the error of PyTorch's own gradient in the same dtype
ALONG = 10  # times as much for a slope along a direction, which sums over all entries
ENTRY = 1e-9  # for one entry by differences, whose values are rounded as well
SHARE = 0.05  # of the gap between two claims: differences this near to one of them choose it

# ---- slopes by differences ----

ERRORS = 4  # times its own estimated error a slope may be off
UNCERTAIN, UNCERTAIN_AT_ZERO = 0.5, 1e-3  # a slope with a larger error is not known
KINK = 1e-6  # of a slope: sides that differ by more, beyond their errors, are those of a kink
SMOOTH = 1e-4  # so certain must a slope be that contradicts a gradient that is not finite
GUARDED = 0.01  # the same next to a guard against zero, which bends the function
HIDDEN = Tolerance(0.03, 0.0, 1e-6)  # a slope that is further from autograd's is hidden from it
TIED, TIED_AT_ZERO = 1e-4, 1e-8  # of the sum of tied gradients, which adds up their roundings

# ---- far out ----

FAITHFUL = Tolerance(1e-3, 1e-5)  # forward in a coarse dtype, where its gradients overflow
STABLE = Tolerance(0.0, 1e-6, 1e-9)  # outputs, where inputs move in their last digits
STEEP = 1e9  # a slope beyond this is next to a pole: what overflows there is no defect
FAINT = 1e-8  # an error below this share of the cotangent is rounding, far out

# ---- low precision ----

FLOOR = 0.05  # gradients below this share of a cotangent of one are rounding of what cancels
ALIKE = Tolerance(0.0, 0.1, 1e-6)  # forward in two dtypes: still about the same function
SUSPECT = 0.02  # from this error on it is asked how much the inputs' own rounding would do

# ---- patterns of error ----

PATTERN = 1e-6  # a factor, a swap, a mean: exact formulas, computed in double precision
NEAR_ONE = 1e-4  # a factor so close to one, or to another one, is rounding
DIGITS = 16  # roundings of a coarse dtype that a few steps add up to
SIMPLE = 1e-9  # a fraction or a root that a number is, rather than is near to
REFINED = 1e-8  # the same for a number that was fitted to gradients

# ---- two formulas for one gradient, with no second look by differences ----

EXACT = Tolerance(1e-6, 1e-9)  # in double precision: a wrong formula is off by far more
CLOSED_FORM = Tolerance(0.0, 1e-11, 1e-12)  # a formula; what a solver gives is further off
ROUGH = Tolerance(1e-2, 1e-3)  # where less than double precision is computed in
DRIVEN = 1e-3  # of the share of the largest entry: what a cotangent leaves where a gradient is zero

# ---- the same computation, once more ----

AGAIN = Tolerance(1e3, 1e2)  # in eps: sums in another order, of some thousand terms
AGAIN_AT_ZERO = 1e-12  # what such sums leave where they cancel
REPEATED = Tolerance(1e-3, 0.0, 1e-6)  # outputs of a forward: random numbers differ by far more
REPLAYED = Tolerance(1e-5, 0.0, 1e-8)  # ops run again one by one: what PyTorch takes by default
VALUE = Tolerance(1e-9, 1e-12)  # values of two graphs that may stand for each other
SHOWN = Tolerance(1e-5, 0.0, 1e-6)  # a number of a finding, computed again by its repro
SLOPE_SHOWN = Tolerance(1e-4, 0.0, 1e-6)  # the same for a slope, which a repro takes by one step
SUM = 1e-4  # probabilities that sum to one, in single precision
SYMMETRIC = Tolerance(1e-5, 0.0, 1e-7)  # a matrix that was made symmetric in single precision


def tolerance_for(eps: float, cotangent: float) -> Tolerance:
    """The tolerance for a gradient computed with relative rounding error `eps`.

    `cotangent` is the size of the largest entry of the cotangents: where the true gradient is zero,
    rounding leaves a residue of that order.
    """
    relative = min(ROUNDINGS * eps, MOST + 8 * eps)
    scaled = min(CANCELLING * eps, MOST_SCALED + 2 * eps)
    return Tolerance(max(RELATIVE, relative), max(SCALED, scaled), scaled * cotangent)


def is_close(a: Tensor | None, b: Tensor | None, factor: float = 1.0) -> bool:
    """Whether two gradients are the same up to rounding; None is zero."""
    if a is None or b is None:
        other = a if b is None else b
        return other is None or not bool((other.detach().abs() > 0).any())
    if a.shape != b.shape:
        return False
    if not any(t.is_floating_point() or t.is_complex() for t in (a, b)):
        return torch.equal(a, b)
    eps = max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    relative, scaled = factor * eps * AGAIN.relative, factor * eps * AGAIN.scaled
    return are_near(a, b, Tolerance(relative, scaled, factor * AGAIN_AT_ZERO))


def are_near(a: Tensor, b: Tensor, tolerance: Tolerance) -> bool:
    """Whether two tensors of one shape are the same; NaN is NaN, and infinity itself."""
    one, measure = wide_of(a), tolerance.measure(b)
    two = measure.want
    near = measure.known & ~measure.differs(one)
    return bool((near | (one == two) | (one.isnan() & two.isnan())).all())


def largest_entry(tensor: Tensor) -> float:
    """The largest finite size of an entry; 0 where there is none."""
    size = tensor.detach().abs()
    finite = size[torch.isfinite(size)]
    return float(finite.max()) if finite.numel() else 0.0
