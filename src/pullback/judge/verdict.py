"""Whether the gradients of one run are right, beyond doubt.

A difference from the reference is only believed after differences of the real forward have been
asked at the very element: they may side with the user (then the reference does not know this
forward), show a kink (then any slope between the two sides is right), or confirm the defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.capture.seeds import normal
from pullback.judge.differences import Estimate
from pullback.judge.example import Example, can_differ, wide_of
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.reference import STEP, Reference, real_inner_product
from pullback.judge.run import Run
from pullback.judge.slopes import DIRECTIONS, Slopes
from pullback.judge.tolerances import (
    ALONG,
    ENTRY,
    ERRORS,
    SHARE,
    USUAL,
    Tolerance,
    largest_entry,
    tolerance_for,
)

Part = Callable[[Tensor], Tensor]

DOUBTED_ELEMENTS = 6  # that are looked at before a gradient gets the benefit of the doubt
COORDINATES = 48  # elements: a smaller input is looked at element by element
TOGETHER = 2  # directions along which all inputs move


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares gradients with the reference, and decides by finite differences what differs.

    When it `is_over`, no further differences are computed, and nothing is reported for them.
    """

    reference: Reference
    is_over: Callable[[], bool] = lambda: False
    # By position, the part of a gradient that counts, where inputs keep a relation.
    tangents: Callable[[Example], Mapping[int, Part]] = lambda _: {}

    def mismatches(
        self,
        run: Run,
        cotangents: Sequence[Tensor | None],
        grads: dict[str, Tensor | None],
        *,
        at_once: bool = False,
    ) -> list[Mismatch]:
        """One mismatch for each gradient that is wrong.

        With `at_once`, where there are differences alone, inputs are looked at one by one only if
        it is not clear that they are right together.
        """
        mismatches = []
        positions = {name: i for i, name in enumerate(run.names) if name in grads}
        exact = run.example.double()
        wide = self._wide(run, cotangents)
        wants = self.reference.gradients(exact, wide, tuple(positions.values()))
        if wants is None:  # forward may refuse float64
            wants = self.reference.gradients(run.example, wide, tuple(positions.values()))
            exact = exact if self._takes(exact, wide) else run.example
        known = wants is not None and any(w is not None for w in wants.values())
        if not known and at_once and positions:
            cases = {i: self._case(run, exact, wide, n, grads[n]) for n, i in positions.items()}
            parts = {i: case.of_part() for i, case in cases.items()}
            if all(self._along(parts, seed) for seed in range(TOGETHER)):
                return []
        for name, position in positions.items():
            case = self._case(run, exact, wide, name, grads[name])
            want = wants.get(position) if wants is not None else None
            if known and not (want is None and self.reference.loses(run.example, position)):
                value = run.args[position]
                zero = torch.zeros(value.shape, dtype=wide_of(value).dtype)
                tolerance = case.tolerance(self._slack(run, wide, position))
                want = zero if want is None else want
                found = case.against(want, tolerance)
                if found is not None and case.has_part:
                    part = case.of_part()
                    found = found if part.against(part.kept(want), tolerance) else None
            else:
                found = case.of_part().against_differences(case.tolerance())
            mismatches += [] if found is None else [found]
        return mismatches

    def unlike_forward(
        self, run: Run, cotangents: Sequence[Tensor | None], grads: dict[str, Tensor | None]
    ) -> list[Mismatch]:
        """The gradients that differences of forward contradict, whatever the reference says.

        A forward that cuts its own graph (`x * x.detach()`, `out.data[1] = v`, a way through
        NumPy) and a backward that agrees with the cut are alike, and both wrong. All inputs move
        at once first; only where that shows something each is looked at.
        """
        wide = self._wide(run, cotangents)
        exact = run.example.double()
        exact = exact if self._takes(exact, wide) else run.example
        cases = {
            i: self._case(run, exact, wide, run.names[i], grads[run.names[i]]).of_part()
            for i in run.example.differentiable
            if run.names[i] in grads
        }
        if not cases or all(self._along(cases, s) is not False for s in range(TOGETHER)):
            return []
        found = [case.against_differences(case.tolerance()) for case in cases.values()]
        return [mismatch for mismatch in found if mismatch is not None]

    def _along(self, cases: dict[int, JudgedGradient], seed: int) -> bool | None:
        """Whether the slope of forward along one random direction is the gradients' own.

        None where that is not known.
        """
        along: dict[int, Tensor] = {}
        claimed = size = 0.0
        for i, case in cases.items():
            value = wide_of(case.exact.args[i]).cpu()
            if case.have.shape != value.shape or not value.numel():
                return None
            along[i] = normal(value, 300 + seed + 10 * i) * (largest_entry(value) or 1.0)
            along[i] = case.kept(along[i])
            claimed += float(real_inner_product(case.have, along[i]))
            size += float((case.have.abs() * along[i].abs()).sum())
        first = next(iter(cases.values()))
        step = max(STEP, self.reference.noise_of(first.exact) ** (1 / 3))
        estimate = self.reference.slope(first.exact, first.cotangents, along, step)
        tolerance = first.tolerance()
        slack = ALONG * tolerance.relative * (size + abs(estimate.value)) + tolerance.floor
        return estimate.agrees(claimed, slack) if estimate.is_known else None

    def _case(
        self,
        run: Run,
        exact: Example,
        cotangents: tuple[Tensor | None, ...],
        name: str,
        got: Tensor | None,
    ) -> JudgedGradient:
        position = run.names.index(name)
        part = self.tangents(exact).get(position)
        of = (self.reference, exact, cotangents, position, run.example, name, got, self.is_over)
        return JudgedGradient(*of, part=part)

    def _wide(self, run: Run, cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(None if c is None else wide_of(c) for c in self._live(run, cotangents))

    def _live(self, run: Run, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The cotangents, without those of outputs that are not differentiable."""
        pairs = zip(run.outputs, cotangents, strict=True)
        return [cotangent if output.requires_grad else None for output, cotangent in pairs]

    def _takes(self, example: Example, cotangents: Sequence[Tensor | None]) -> bool:
        try:
            self.reference.curve(example, cotangents, {})(0.0)
        except Exception:  # the refusal is the answer
            return False
        return True

    def _slack(self, run: Run, cotangents: Sequence[Tensor | None], position: int) -> float:
        """In low precision: how far PyTorch's own gradient in that dtype is from the exact one."""
        dtypes = {run.example.args[i].dtype for i in run.example.differentiable}
        if dtypes <= {torch.float64, torch.complex128}:
            return 0.0
        low = tuple(
            None if c is None else c.to(o.dtype)
            for c, o in zip(cotangents, run.outputs, strict=True)
        )
        eager = self.reference.gradients(run.example, low, (position,))
        exact = self.reference.gradients(run.example.double(), cotangents, (position,))
        if eager is None or exact is None:
            return 0.0
        have, want = eager[position], exact[position]
        if have is None or want is None:
            return 0.0
        return USUAL * largest_entry(wide_of(have) - wide_of(want))


@dataclass(slots=True)
class JudgedGradient(Slopes):
    """One gradient that a call of `example` gave, to be judged; `exact` is that in float64."""

    example: Example
    name: str
    got: Tensor | None
    is_over: Callable[[], bool] = lambda: False
    part: Part | None = None  # of the gradient that counts; all of it where there is none

    @property
    def has_part(self) -> bool:
        """Whether only a part of the gradient counts."""
        return self.part is not None

    def kept(self, gradient: Tensor) -> Tensor:
        """The part of a gradient, or of a step, that counts."""
        return gradient if self.part is None else self.part(wide_of(gradient).cpu())

    def of_part(self) -> JudgedGradient:
        """The same for that part alone, along steps that keep what the inputs keep."""
        if self.part is None:
            return self
        got = None if self.got is None else self.kept(self.got)
        return replace(self, got=got, tangent=self.part)

    def against(self, want: Tensor, tolerance: Tolerance) -> Mismatch | None:
        """Compare with the reference's gradient; judge what differs by finite differences."""
        want = wide_of(want).cpu()
        got = None if self.got is None else self.got.cpu()
        excess = tolerance.measure(want).excess(got).contiguous()
        if not bool((excess > 0).any()):
            return None
        if self.got is not None and self.got.shape != want.shape:
            return self.mismatch(want, 0, want.flatten()[0].item(), int((excess > 0).sum()))
        for _ in range(DOUBTED_ELEMENTS):
            worst = int(excess.flatten().argmax())
            if not float(excess.flatten()[worst]) > 0:
                return None
            truth = self._settled(want, worst, tolerance)
            if truth is not None:
                return self.mismatch(want, worst, truth, int((excess > 0).sum()))
            excess.view(-1)[worst] = -1.0
        if self._is_doubtful(want, excess):
            return None
        worst = int(excess.flatten().argmax())
        return self.mismatch(want, worst, want.flatten()[worst].item(), int((excess > 0).sum()))

    def against_differences(self, tolerance: Tolerance) -> Mismatch | None:
        """Without a reference: compare along random directions and, where small, coordinates."""
        value = self.example.args[self.position]
        have = self.have
        if value.numel() == 0 or have.shape != value.shape:
            return None
        for k, along in enumerate(self._directions(value)):
            if self.is_over():
                return None
            estimate, step = self.slope(along)
            claimed = float(real_inner_product(have, along))
            size = float((have.abs() * along.abs()).sum()) + abs(estimate.value)
            slack = ALONG * tolerance.relative * size + tolerance.floor
            if not estimate.is_known or estimate.agrees(claimed, slack):
                continue
            if self.has_kink(along, step):
                continue
            if not self._is_confirmed(along, estimate, claimed, slack):
                continue
            if k >= DIRECTIONS and any(map(self.has_kink, self.directions(value))):
                continue  # smooth along one coordinate by chance: at ties, sides may agree
            return self._searched(have, tolerance) or self._along(estimate.value, claimed)
        return None

    def _is_confirmed(self, along: Tensor, first: Estimate, claimed: float, slack: float) -> bool:
        """Whether smaller steps give the same slope: among many kinks, large ones cross some."""
        for step in (STEP / 8, STEP / 64):
            finer = self.reference.slope(self.exact, self.cotangents, {self.position: along}, step)
            if finer.is_known and (
                finer.agrees(claimed, slack) or not first.agrees(finer.value, slack)
            ):
                return False
        return True

    def _searched(self, have: Tensor, tolerance: Tolerance) -> Mismatch | None:
        """The worst entry among some, once a direction has shown that the gradient is wrong."""
        total = have.numel()
        picks = range(total) if total <= COORDINATES else have.abs().flatten().topk(16).indices
        found: dict[int, tuple[float, complex | float]] = {}
        for flat in map(int, picks):
            if self.is_over():
                break
            truth = self.entry(flat)
            if truth is None:
                continue
            off = abs(complex(have.flatten()[flat]) - truth)
            if off > ALONG * tolerance.relative * abs(truth) + tolerance.floor + ENTRY:
                found[flat] = off, truth
        if not found:
            return None
        worst = max(found, key=lambda flat: found[flat][0])
        want = torch.full_like(have, float("nan"))
        return self.mismatch(want, worst, found[worst][1], len(found))

    def _directions(self, value: Tensor) -> Iterator[Tensor]:
        yield from self.directions(value)
        if value.numel() <= COORDINATES // 2:
            for flat in range(value.numel()):
                yield from self.units(flat)

    def _settled(self, want: Tensor, worst: int, tolerance: Tolerance) -> complex | float | None:
        """The true value at an element where the gradient is wrong; None where it is not proven."""
        have = self.have.flatten()[worst].item()
        allowed = float(tolerance.allowed(want).flatten()[worst])
        truths: list[float] = []
        is_wrong = False
        for k, unit in enumerate(self.units(worst)):
            reference = _part(want.flatten()[worst].item(), k)
            mine = _part(have, k)
            estimate, step = self.slope(unit)
            truths.append(reference)
            if abs(mine - reference) <= allowed:
                continue
            if estimate.is_known and estimate.agrees(mine, allowed):
                return None  # differences side with the user
            left, right = self.sides(unit, step)
            if estimate.is_known and estimate.agrees(reference, allowed):
                # Differences to both sides take the middle of a kink, as PyTorch's `abs` does.
                if _lies_between(mine, left, right, allowed):
                    return None
                is_wrong = True
                continue
            if not (left.is_known and right.is_known):
                return None  # a jump, or the edge of the domain
            if not left.agrees(right.value, ERRORS * right.error + allowed):
                if _lies_between(mine, left, right, allowed):
                    return None  # a kink, and a slope between its sides
                is_wrong = is_wrong or _lies_between(reference, left, right, allowed)
                continue
            if not estimate.is_known or self.agrees_elsewhere(unit, step, mine, allowed):
                return None
            truths[-1] = estimate.value
            is_wrong = True
        if not is_wrong:
            return None
        return truths[0] if len(truths) == 1 else complex(*truths)

    def _is_doubtful(self, want: Tensor, excess: Tensor) -> bool:
        """After several elements that proved nothing: whether the rest is in doubt as well."""
        have = self.have
        apart = torch.where(excess.reshape(have.shape) > 0, have - want, torch.zeros_like(have))
        if not bool(torch.isfinite(apart.abs()).all()) or not bool((apart != 0).any()):
            return True
        unit = apart / apart.abs().max()
        estimate, step = self.slope(unit)
        reference, mine = (float(real_inner_product(t, unit)) for t in (want, have))
        gap = abs(reference - mine)
        return not (
            estimate.is_known
            and estimate.agrees(reference, SHARE * gap)
            and not estimate.agrees(mine, SHARE * gap)
            and not self.has_kink(unit, step)
        )

    def tolerance(self, slack: float = 0.0) -> Tolerance:
        """What rounding may do to the gradient; `slack` is what it is seen to do besides."""
        eps = self.reference.noise_of(self.example)
        if self.got is not None and can_differ(self.got):
            eps = max(eps, torch.finfo(self.got.dtype).eps)
        sizes = [float(c.abs().max()) for c in self.cotangents if c is not None and c.numel()]
        plain = tolerance_for(eps, max(sizes, default=0.0))
        return Tolerance(plain.relative, plain.scaled, plain.floor + slack)

    @property
    def have(self) -> Tensor:
        """What was got, in float64; no gradient is one of zeros."""
        if self.got is None:
            return torch.zeros_like(wide_of(self.example.args[self.position]), device="cpu")
        return wide_of(self.got).cpu()

    def mismatch(self, want: Tensor, flat: int, expected: complex | float, wrong: int) -> Mismatch:
        """The mismatch that is worst at one element."""
        got = None if self.got is None else self.got.detach().cpu().flatten()[flat].item()
        index = index_of(flat, want.shape)
        total = want.numel()
        return Mismatch(
            self.name, self.position, index, expected, got, wrong, total, want, self.got
        )

    def _along(self, expected: float, got: float) -> Mismatch:
        """The mismatch that shows along a direction, and at none of the entries looked at."""
        want = torch.full_like(self.have, float("nan"))
        total = want.numel()
        return Mismatch(self.name, self.position, None, expected, got, total, total, want, self.got)


def _lies_between(mine: float, left: Estimate, right: Estimate, allowed: float) -> bool:
    """Whether a slope is one of those at a kink: its sides differ, and it is between them."""
    if not (left.is_known and right.is_known):
        return False
    if left.agrees(right.value, ERRORS * right.error + allowed):
        return False
    low, high = sorted((left.value, right.value))
    slack = ERRORS * (left.error + right.error) + allowed
    return low - slack <= mine <= high + slack


def _part(value: complex | float, k: int) -> float:
    return float(complex(value).imag if k else complex(value).real)
