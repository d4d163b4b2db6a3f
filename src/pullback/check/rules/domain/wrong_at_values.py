"""Gradients at other values than the example's: one rule for each kind of value.

The functions below give the trials of a rule, each with the fix for what is wrong in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch

from pullback.check.findings.registered import Registered
from pullback.check.inputs.arguments import Variant, masks_of
from pullback.check.inputs.domains import (
    ALONE,
    EDGES,
    FAINT,
    FAR,
    HUGE,
    INFINITE,
    MISSING,
    NEGATIVE,
    SHIFTED,
    SMALL,
    SQUARES,
    Change,
    changed,
    emptied,
    hidden,
    repeated,
    tied,
)
from pullback.check.inputs.dtypes import dtype_of, in_dtype
from pullback.check.inputs.shapes import EQUAL, resized, symbols_of
from pullback.check.subject.behaved import approximates
from pullback.check.subject.extremes import ValueDemand, value_trials
from pullback.check.subject.retrial import by_masks, by_ties, by_zero, is_finite_number, set_aside
from pullback.check.subject.subject import Rule, Subject
from pullback.check.subject.trials import Tried, TriedVariant, report_trials, trial_of, trials
from pullback.judge.example import Example

OUTPUTS = 3  # that are used alone in turn


def _at_negative(subject: Subject) -> Tried:
    fix = "carry the sign of the input, and the branch that forward took, into backward"
    yield value_trials(subject, "negative", changed(subject.small, NEGATIVE)), fix


def _at_zero(subject: Subject) -> Tried:
    found = by_zero(subject, value_trials(subject, "zero", emptied(subject.small)))
    fix = "give at zero the slope that forward has there"
    yield from _by_kind(found, fix, "guard what is not finite at zero, and give the limit there")
    masked = value_trials(subject, "hidden", hidden(subject.small))
    yield (
        by_masks(subject, masked),
        "choose with `where` after the division, on arguments that are safe where they are masked",
    )


def _at_ties(subject: Subject) -> Tried:
    found = value_trials(subject, "ties", tied(subject.small), ValueDemand(ties=True))
    edges = value_trials(subject, "edges", changed(subject.small, EDGES), ValueDemand(ties=True))
    fix = "share the gradient among the tied elements, or give it to one of them"
    guard = "guard what is not finite where entries are equal, as forward does"
    if any(trial.mismatches for trial in (*found, *edges)) and approximates(subject):
        return  # where a solver ends at a tie is decided by its last digits
    yield from _by_kind(by_ties(subject, [*found, *edges]), fix, guard)
    yield from _by_kind(by_ties(subject, _at_repeated(subject)), fix, guard)


def _at_repeated(subject: Subject) -> Iterator[TriedVariant]:
    """Trials at equal eigenvalues, also of each of several outputs alone: of eigenvectors nothing
    can be asked there, and of eigenvalues it can.
    """
    yield from value_trials(subject, "repeated", repeated(subject.small))
    live = subject.run(subject.small).live
    for k in live[:OUTPUTS] if len(live) > 1 else ():
        variants = repeated(subject.small)
        yield from value_trials(subject, f"repeated, output {k}", variants, ValueDemand(used=(k,)))


def _by_kind(found: Iterable[TriedVariant], fix: str, guard: str) -> Tried:
    """Trials with the fix for a number that is wrong, or for one that is not finite."""
    for trial in found:
        is_finite = all(is_finite_number(m.got) for m in trial.mismatches)
        yield [trial], fix if is_finite else guard


def _far_out(subject: Subject) -> Tried:
    fix = "give backward every piece that forward has, with the same bounds"
    found = value_trials(subject, "far", changed(subject.small, {**FAR, **SHIFTED}))
    guard = "compute it so that nothing overflows: by sigmoid or log_softmax, or with a bound"
    yield from _by_kind([*found, *set_aside(subject)], fix, guard)


def _when_small(subject: Subject) -> Tried:
    fix = "let backward do for small numbers what forward does: the same guard, series or rounding"
    yield value_trials(subject, "small", changed(subject.small, SMALL)), fix


def _at_huge(subject: Subject) -> Tried:
    fix = "write the gradient with what forward is stable with: sigmoid, log_softmax, hypot"
    for family, start, changes in _starts(subject):
        asked = ValueDemand(values=False)
        yield value_trials(subject, f"huge {family}", changed(start, changes), asked), fix


def _starts(subject: Subject) -> Iterator[tuple[str, Example, dict[str, Change]]]:
    """The example as given and in float64, each with values whose truth can be known there.

    In float64 nothing tells whether forward itself has overflowed.
    """
    if not subject.small.differentiable:
        return
    below = {label: change for label, change in HUGE.items() if label != SQUARES}
    low = subject.small_given
    if dtype_of(low) != torch.float64:
        yield "given", low, HUGE
    else:
        single = in_dtype(low, torch.float32)
        if single is not None:
            yield "float32", single, {SQUARES: HUGE[SQUARES]}
    if dtype_of(subject.small) == torch.float64:
        yield "float64", subject.small, below


def _at_tiny(subject: Subject) -> Tried:
    fix = (
        "divide twice in the place of dividing by a square, subtract tiny values from no large "
        "number, and guard as forward does"
    )
    faint = changed(subject.small_given, FAINT)
    yield value_trials(subject, "faint", faint, ValueDemand(values=False)), fix
    if _is_by_entry(subject):
        asked = ValueDemand(values=False, steep=math.inf)
        yield value_trials(subject, "pole", _alone(subject), asked), fix


def _alone(subject: Subject) -> Iterator[Example]:
    """One input at a time with values whose squares underflow."""
    start = subject.small_given
    for i in sorted(start.needs)[:ALONE]:
        made = changed(start.need(frozenset({i})), FAINT)
        yield from (example.need(start.needs) for example in made)


def _is_by_entry(subject: Subject) -> bool:
    """Whether outputs and inputs have one shape, and an entry reaches its like alone."""
    run = subject.run(subject.small)
    shapes = {run.args[i].shape for i in subject.small.needs} | {t.shape for t in run.outputs}
    if len(shapes) != 1 or len(run.live) != len(run.outputs) or not run.outputs[0].numel():
        return False
    one = [torch.zeros(y.shape, dtype=y.dtype, device=y.device) for y in run.outputs]
    for cotangent in one:
        cotangent.view(-1)[0] = 1
    usual = subject.reference.gradients(subject.small, one, tuple(sorted(subject.small.needs)))
    found = [grad for grad in (usual or {}).values() if grad is not None]
    return bool(found) and all(not bool(grad.flatten()[1:].any()) for grad in found)


def _at_arguments(subject: Subject) -> Tried:
    fix = "let backward depend on the argument as forward does"
    found = trials(subject, "arguments", subject.other_arguments())
    for trial in (*found, *trials(subject, "square arguments", _square_arguments(subject))):
        if trial.example.kind is Variant.NOTHING:  # a temperature of 0 is a limit
            finite = tuple(m for m in trial.mismatches if is_finite_number(m.got))
            trial = replace(trial, mismatches=finite, failure=None)
        if not _gives_none(subject, trial):
            yield [trial], fix


def _square_arguments(subject: Subject) -> Iterator[Example]:
    """Other arguments that forward takes at equal sizes alone, such as another dimension.

    What is right for these sizes with the usual arguments is all that counts.
    """
    sizes = dict.fromkeys(symbols_of(subject.whole), EQUAL)
    square = resized(subject.whole, sizes, f"every size as {EQUAL}", follow=False)
    others = list(subject.other_arguments(square)) if len(sizes) > 1 else []
    if not others or not _is_right(subject, square):
        return
    for other in others:
        pairs = zip(other.args, square.args, subject.whole.args, strict=True)
        args = tuple(usual if new is old else new for new, old, usual in pairs)
        if not subject.accepts(replace(subject.whole, args=args)):
            yield replace(other, label=f"{other.label}, {square.label}")


def _is_right(subject: Subject, example: Example) -> bool:
    """Whether forward and backward serve an example, and no gradient is wrong there."""
    trial = trial_of(subject, example)
    return trial is not None and not trial.failure and not trial.mismatches


def _gives_none(subject: Subject, trial: TriedVariant) -> bool:
    """Whether no input gets a gradient: a switch that says that none is wanted."""
    missing = [m for m in trial.mismatches if m.got is None]
    return bool(missing) and len(missing) == len(subject.small.needs)


def _at_infinity(subject: Subject) -> Tried:
    fix = "choose with `where` what an infinite or missing entry gets: 0 times infinity is NaN"
    if len(subject.small.differentiable) > 1:
        return  # what saturates in one input, or is left out there, still has the others
    found = value_trials(subject, "infinite", changed(subject.small, {**INFINITE, **MISSING}))
    yield by_masks(subject, found), fix


def _at_masks(subject: Subject) -> Tried:
    if subject.target.intent.has_surrogate:
        return
    for trial in trials(subject, "masks", masks_of(subject.small, subject.names)):
        fix = "let backward depend on the mask as forward does: on its count, not on the size"
        if trial.example.kind is Variant.EMPTY:
            fix = "guard the count or the empty sum in backward as in forward"
        yield [trial], fix


def _rule(
    code: str,
    name: str,
    tried: Callable[[Subject], Tried],
    page: str,
    *,
    profile: str = "quick",
    is_elsewhere: bool = False,
) -> Registered:
    rule = Rule(code, name, "domain", profile=profile)
    check = partial(report_trials, rule, tried, is_elsewhere=is_elsewhere)
    return Registered(rule, check, page)


RULES = (
    _rule(
        "V601",
        "wrong-at-negative",
        _at_negative,
        """
Gradients must be right at negative values, where forward accepts them.

What it checks
    The example with all values negative, and with some signs turned, all inputs together and each
    alone.

Why it matters
    Authors try positive numbers where they think of lengths or probabilities, and forward goes
    through `abs`, a clip or an even power: the sign is then missing in the gradient.

Fails
    return grad / x.abs()  # of log(abs(x))

Passes
    return grad / x

Cannot see
    A negative value that only matters together with a special value of another input.
""",
        is_elsewhere=True,
    ),
    _rule(
        "V602",
        "wrong-at-zero",
        _at_zero,
        """
Gradients must be right, and finite, at zero.

What it checks
    The example with all values zero and with some zero, all inputs together and each alone; at a
    kink any slope between its sides is right. And zeros and large numbers where a mask among the
    arguments hides an input: `0 * inf` is NaN.

Why it matters
    Padding, masked rows, dead units and fresh biases are zeros. `y / x` for a product and
    `x / norm` give NaN there, and one NaN in one gradient ends a training.

Fails
    return grad * y / x  # of a product over rows

Passes
    return torch.where(norm > 0, grad * x / norm, 0.0)

Cannot see
    Zeros at which forward itself is not finite.
""",
    ),
    _rule(
        "V603",
        "wrong-at-ties",
        _at_ties,
        """
Gradients must add up to the slope of forward where inputs are tied.

What it checks
    Equal values within rows and between inputs, and square matrices with equal eigenvalues. One
    element of a tie may get everything, or all of them a share; but where the tied elements move
    together and forward is smooth, the gradients add up to its slope. What is wrong next to the tie
    too is none of a tie's.

Why it matters
    `x == x.max()` gives every one of the tied elements the full gradient, `a < b` none of them.
    Ties are everyday with rounded, clipped, quantised and low-precision values.

Fails
    return grad * (x == y)  # of a maximum

Passes
    return grad * (x == y) / (x == y).sum(-1, keepdim=True)

Cannot see
    Ties of elements that are far apart by the function's own order, such as a median's.
""",
        profile="standard",
    ),
    _rule(
        "V604",
        "wrong-far-out",
        _far_out,
        """
Gradients must be right far away from the example.

What it checks
    The example times 4, 20 and 1000, and shifted above 30 and below -30, in float64; and values
    that turned out to be wrong while sizes and ties were tried.

Why it matters
    Functions have pieces: a clip at 6, a linear tail beyond 10, a threshold at 20. Standard normal
    examples never reach them, and the gradient of the piece beyond is that of the one before.

Fails
    return grad * (x > 0)  # of clamp(x, 0, 6)

Passes
    return grad * ((x > 0) & (x < 6))

Cannot see
    Pieces beyond the values tried.
""",
        profile="standard",
        is_elsewhere=True,
    ),
    _rule(
        "V605",
        "wrong-when-small",
        _when_small,
        """
Gradients must be right for small values.

What it checks
    The example times 0.05, 1e-4 and 1e-9, in float64, where differences of forward still tell the
    truth.

Why it matters
    A guard such as `clamp(min=eps)` stands in one of forward and backward and not in the other; or
    numerators cancel, and what is left is noise divided by a small number.

Fails
    return -2 * grad / (r * r * r).clamp(min=1e-3)

Passes
    return -2 * grad / (r * r * r)

Cannot see
    Errors that are small against the cotangent: a gradient that should be tiny and is zero.
    In the profile "standard" nothing: a small number that is added to a denominator is meant.
""",
        profile="deep",
    ),
    _rule(
        "V606",
        "gradient-overflow",
        _at_huge,
        """
Gradients must be finite at large values where forward is right and its true gradient is finite.

What it checks
    Values beyond 120 and 1000 of either sign, in the dtype of the example and in float64, and
    values whose squares overflow in float32; only where forward itself still gives what it gives
    in float64.

Why it matters
    `exp(x) / (1 + exp(x))` is inf/inf from 89 on in float32, though forward, by `softplus`, is
    right. One large logit makes every weight NaN.

Fails
    e = torch.exp(x); return grad * e / (1 + e)

Passes
    return grad * torch.sigmoid(x)

Cannot see
    Values at which forward itself overflows.
""",
    ),
    _rule(
        "V607",
        "gradient-underflow",
        _at_tiny,
        """
Gradients must be finite at tiny values where forward is right and its true gradient is finite.

What it checks
    Values whose squares underflow, in the dtype of the example: of all inputs, where the truth is
    below 1e9; and, where forward works entry by entry, of one input, up to the end of the dtype.

Why it matters
    A square that underflows to zero in a denominator gives inf or NaN, where forward divides by the
    number itself.

Fails
    return grad * x / (x * x)

Passes
    return grad / x

Cannot see
    A gradient that is zero where it should be tiny. Beside a pole of several inputs at once, what
    is infinite where it should be beyond 1e9: there `-grad * a / b**2` is as good as any.
""",
    ),
    _rule(
        "V608",
        "wrong-at-argument",
        _at_arguments,
        """
Gradients must be right for other values of the arguments beside the tensors.

What it checks
    Each number halved, doubled, 0, one more and one less, or None where it may be left out,
    dimensions counted from either end, switches turned, `reduction` as mean, sum and none, masks
    with zeros in them: what forward accepts, at the sizes of the example or with all sizes equal.

Why it matters
    An option is tried with one value. A mean divides by the length where it should divide by the
    number of kept entries; a segment that is cut shifts all that come after it (FBGEMM#5754).

Fails
    return grad / mask.shape[-1] * mask  # of a mean over the kept entries

Passes
    return grad / mask.sum(-1, keepdim=True) * mask

Cannot see
    Values that only matter together with other ones.
""",
        is_elsewhere=True,
    ),
    _rule(
        "V609",
        "wrong-at-infinity",
        _at_infinity,
        """
Gradients must be right beside entries that are infinite or NaN, where forward is finite.

What it checks
    Some entries as NaN, -inf and inf where there is one floating input; only where
    every output is finite all the same: the gradients of the other entries against the truth, and
    those of the odd entries, which forward leaves out, against zero.

Why it matters
    A masked score is -inf, a missing value is NaN. `softmax`, `logsumexp`, `clamp` and `nansum`
    take them; a product with zero in backward gives `0 * inf`, and one NaN spoils every weight.

Fails
    return (grad * y * x).sum(-1)  # y is 0 where x is -inf

Passes
    return (grad * torch.where(y > 0, y * x, 0.0)).sum(-1)

Cannot see
    Entries at which PyTorch's own gradient of forward is not finite either. Such entries in one of
    several inputs: an angle or a gate saturates there, and nobody means it.
""",
        is_elsewhere=True,
    ),
    _rule(
        "V613",
        "wrong-at-mask",
        _at_masks,
        """
Gradients must be right for every mask, a full and an empty one too.

What it checks
    Each boolean input in turn with every entry true, with every entry false, with some and with a
    row of them false, where forward takes it and gives finite outputs.

Why it matters
    A batch whose samples are all padding comes once in an epoch. A forward that guards the mean of
    nothing, with a backward that divides by the count, gives NaN to every weight.

Fails
    return grad * mask / mask.sum(), None          # after clamp(min=1) in forward

Passes
    return grad * mask / mask.sum().clamp(min=1), None

Cannot see
    Masks of numbers, which may be weights.
""",
    ),
)
