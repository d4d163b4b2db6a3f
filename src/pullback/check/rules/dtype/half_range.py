"""Gradients in float16 must be right wherever they fit into it, whatever the sizes.

What it checks
    In float16, cotangents 2^-10 and 2^8 times the usual ones, and, where forward itself computes
    wider than in float16, inputs 512 times larger: entries that are well inside of the range of
    float16, and that PyTorch's own gradient of forward has right there, must be right. In an
    example of about 70,000 entries, most of such entries must be. None may be infinite or NaN
    where PyTorch's own gradient is finite, at zero neither.

Why it matters
    float16 ends at 65504 and thins out below 6e-5. A backward that divides before it multiplies
    loses gradients that would have fitted: without loss scaling they are zero, with it infinite.

Fails
    return 2 * x * (g * 1e-4) * 1e4

Passes
    return 2 * x * g

Cannot see
    Entries that PyTorch's own gradient of forward has not right either. Functions whose example is
    in float64, unless they speak of float16 themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from pullback.check.findings.facts import At, Gradient, Number
from pullback.check.inputs.domains import ZERO, Change, changed
from pullback.check.inputs.dtypes import dtype_of, in_dtype
from pullback.check.inputs.shapes import many_of
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.check.subject.trials import is_new
from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.mismatch import index_of
from pullback.judge.run import copies_of

RULE = Rule("D504", "half-range", "dtype", profile="standard")

SCALES = (2.0**-10, 2.0**8)
LEAST, MOST = 2.0**-12, 2.0**13  # entries between these are well inside of float16
LOST = 0.25  # the share of an entry that must be lost
USUAL = 0.02  # and of which PyTorch's own gradient loses less

LARGE: dict[str, Change] = {"values times 512": lambda t: t * 512}
LONG = 70_000  # entries: their number overflows, and its square underflows
LADDER = ((2_000, 0.006), (15_000, 0.03))  # the seconds that shorter ones may take
SMALL = 2.0**-10  # the size of the largest entry of a mean over a long example
MOSTLY = 0.3  # the share of the sure entries of a long example that must be lost

FIX = "multiply in an order whose parts stay in range, or compute in float32"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient leaves the range of float16 on its way."""
    if subject.fails_at_base or dtype_of(subject.small) != torch.float64:
        return
    if dtype_of(subject.given) == torch.float64 and not subject.target.serves_low_precision:
        return  # who works in float64 has no use for float16
    half = in_dtype(subject.small, torch.float16)
    if half is None or not subject.is_steady:
        return
    if any(_lost(subject, half, 1.0)):
        return  # wrong at any size: another rule's
    wide = changed(half, {**LARGE, **ZERO}) if _widens(subject, half) else ()
    trials = [(half, scale, 0.0) for scale in SCALES] + [(example, 1.0, 0.0) for example in wide]
    for example, scale, share in each([*trials, *_long(subject)], subject):
        lost = dict(_lost(subject, example, scale, share))
        for name, (index, want, have) in lost.items():
            if is_new(subject, RULE, name):
                yield subject.finding(
                    RULE,
                    example=example,
                    at=At(Gradient(name), index, rest=f", for cotangents of size {scale:g}"),
                    expected=Number(want, ", as in float64"),
                    got=Number(have, ", in float16"),
                    fix=FIX,
                )


def _long(subject: Subject) -> Iterator[tuple[Example, float, float]]:
    """A long example in float16, where it is cheap, with cotangents that keep a mean in range."""
    for which in range(2):  # of the sizes that may grow
        if not all(_most(subject, which, total, limit) for total, limit in LADDER):
            continue
        most = _most(subject, which, LONG, 1.0)
        if most:
            scale = max(1.0, 2.0 ** math.ceil(math.log2(SMALL / most)))
            yield _half(subject, which, LONG)[0], scale, MOSTLY
            return


def _half(subject: Subject, which: int, total: int) -> list[Example]:
    """The example with one size so large that it has about `total` entries, in float16."""
    found = islice(many_of(subject.small, total), which, which + 1)
    return [long.to(torch.float16, f"{long.label}, in float16") for long in found]


def _most(subject: Subject, which: int, total: int, seconds: float) -> float:
    """The largest entry of a gradient there, in float64; 0 where it is refused or takes long."""
    for half in _half(subject, which, total):
        start = time.process_time()
        try:
            subject.pull(half)
            grads = subject.pull(half.double())
        except CallError:
            return 0.0
        if time.process_time() - start < seconds:
            sizes = [float(g.abs().max()) for g in grads.values() if g is not None and g.numel()]
            return max((size for size in sizes if math.isfinite(size)), default=0.0) or LEAST
    return 0.0


class _Widest(DispatchMode):
    """Sees whether anything is computed wider than in float16."""

    is_wide = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [t for t in tensors_in(result) if can_differ(t) and t.numel() > 1]
        self.is_wide |= any(t.dtype in (torch.float32, torch.float64) for t in made)
        return result


def _widens(subject: Subject, half: Example) -> bool:
    """Whether forward leaves float16 to keep in range: only then backward must do so too."""
    try:
        with torch.no_grad(), seeded(), _Widest() as seen:
            subject.reference.program(*half.fresh(needs=frozenset()))
    except Exception:  # forward does not serve float16: nothing is known
        return False
    return bool(seen.is_wide)


def _lost(
    subject: Subject, half: Example, scale: float, share: float = 0.0
) -> Iterator[tuple[str, tuple[tuple[int, ...], float, float]]]:
    """The worst lost entry of each gradient, by name, where more than a share of all is lost."""
    try:
        run, exact = subject.run(half), subject.run(half.double())
        given = [None if c is None else c * scale for c in subject.cotangents(run)]
        wide = [None if c is None else c.double() for c in given]
        grads, truths = run.pull(copies_of(given)), exact.pull(copies_of(wide))
    except CallError:
        return
    places = {name: i for i, name in enumerate(run.names) if name in grads}
    usual = subject.reference.gradients(half, given, tuple(places.values())) or {}
    for name, place in places.items():
        got, truth, eager = grads[name], truths[name], usual.get(place)
        if (
            got is None
            or truth is None
            or eager is None
            or subject.target.intent.is_surrogate(name)
        ):
            continue
        if not got.shape == truth.shape == eager.shape:
            continue
        truth, eager = truth.detach(), eager.detach().double()
        size = truth.abs().clamp_min(LEAST)
        sure = (size < MOST) & ((eager - truth).abs() <= USUAL * size)
        sure &= (truth.abs() > LEAST) | ~torch.isfinite(got.detach())
        off = torch.where(sure, (got.detach().double() - truth).abs() / size, 0.0)
        off = torch.nan_to_num(off, nan=torch.inf)
        if off.numel() and int((off > LOST).sum()) > share * int(sure.sum()):
            flat = int(off.flatten().argmax())
            have = float(got.detach().flatten()[flat])
            yield name, (index_of(flat, got.shape), float(truth.flatten()[flat]), have)


REPROS = (by_float64, of_number)
