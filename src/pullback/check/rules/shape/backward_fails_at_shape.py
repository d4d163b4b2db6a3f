"""`backward` must not fail where forward has accepted the arguments.

What it checks
    Backward raises nothing for batches of 1, 2, 7, 40 and 130, nor for images that are not square,
    where forward accepts them and PyTorch can differentiate forward's body, nor for tensors without
    dimensions where it works entry by entry; and that at other sizes no gradient comes in another
    shape than its input, nor is viewed in the shape of the example. In the profile "deep" all that
    is raised at other sizes and ranks: many a function is meant for one rank, and says so nowhere.

Why it matters
    The error comes hours into a training, with a shape that the author's test did not have, and
    names a line of a kernel rather than the argument that is not supported (mmcv#1169).

Fails
    grad.view(4, -1)  # for a batch that 4 does not divide

Passes
    if x.shape[0] % 4: raise ValueError("the batch must be a multiple of 4")  # in forward

Cannot see
    Shapes that none of the variants has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pullback.check.findings.explaining import Cause
from pullback.check.inputs.shapes import batches_of, fits, oblong_of, ranks_of, resized, sizes_of
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.entries import common_shape, is_by_entry
from pullback.check.subject.retrial import COLUMNS
from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject
from pullback.check.subject.trials import TriedVariant, trial_of, trials
from pullback.judge.example import Example, can_differ

# Shapes that every user meets, and those that a function may not be meant for.
USUAL = {"batches": batches_of, "oblong": oblong_of}
UNUSUAL = {"sizes": sizes_of, "ranks": ranks_of}

# What the engine says of a gradient whose shape does not fit.
MISSHAPEN = re.compile(r"got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]")
# What PyTorch says of a view in sizes that are written into the code.
INVALID = "is invalid for input of size"
BAKED = re.compile(rf"shape '\[([\d, ]*)\]' {INVALID} (\d+)")

# Larger sizes that must fail as well, of either parity: times so many, and so many more.
LARGER = ((2, 1), (3, 0), (2, 2))

RULE = Rule("S305", "backward-fails-at-shape", "shape", Severity.FRAGILE, "quick")


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding, for the first shape at which backward fails."""
    families = USUAL | UNUSUAL
    is_reported = any(group == RULE.group for group, _ in subject.reported)
    if not is_reported and _is_by_entry(subject):
        families = {**USUAL, "numbers": _numbers, **UNUSUAL}
    if not _has_batch(subject):
        families.pop("batches")
    for family, variants in families.items():
        for trial in trials(subject, family, variants(subject.small)):
            is_meant = family not in UNUSUAL or subject.profile == "deep"
            is_meant = is_meant or _is_misshapen(subject, trial)
            if trial.failure and is_meant:
                yield subject.finding(
                    RULE,
                    example=trial.example,
                    at="backward",
                    expected="gradients, since forward accepts these shapes",
                    got=trial.failure,
                    fix="serve these shapes in backward, or refuse them in forward",
                )
                return


def _is_by_entry(subject: Subject) -> bool:
    """Whether it is a function of entries of one input, for which a number is as good."""
    small = subject.small
    try:
        is_one = len(small.tensors) == 1 and common_shape(subject, small) is not None
        return is_one and is_by_entry(subject, small)
    except CallError:
        return False


def _numbers(example: Example) -> Iterator[Example]:
    """The first entry of the only tensor, without dimensions."""
    (i,) = example.tensors
    number = example.args[i].flatten()[:1].reshape(()).clone()
    yield example.put(i, number, "without dimensions")


def _has_batch(subject: Subject) -> bool:
    """Whether the leading size of the first input leads an output as well, or all are numbers."""
    run = subject.run(subject.small)
    first = next((a for a in run.args if can_differ(a) and a.dim()), None)
    outputs = [output for output in run.outputs if can_differ(output)]
    if first is None:
        return False
    leads = any(output.shape[:1] == first.shape[:1] for output in outputs)
    return leads or all(output.dim() == 0 for output in outputs)


def _is_misshapen(subject: Subject, trial: TriedVariant) -> bool:
    """Whether a gradient came in another shape, while forward surely serves this one.

    Either it has all elements, only flat; or it is viewed in the shape of the example; or the rank
    is that of the example, sizes that are equal there are equal here, and larger ones fail as well:
    a function of square matrices is not meant for others, and sizes of 1 broadcast by accident.
    """
    found = MISSHAPEN.search(trial.said)
    if found is None:
        sizes = _renamed(subject.small, trial.example) if _is_baked(subject, trial) else {}
        return any(_fails(subject, sizes, *more) for more in LARGER) if sizes else False
    have, want = ([int(size) for size in group.split(",") if size] for group in found.groups())
    if have == want:
        return False
    if len(have) < len(want) and math.prod(have) == math.prod(want) and math.prod(want) > 1:
        return True
    sizes = _renamed(subject.small, trial.example)
    if _is_by_columns(subject, have, want):
        return False
    return any(_fails(subject, sizes, factor, more) for factor, more in LARGER) if sizes else False


def _is_by_columns(subject: Subject, have: list[int], want: list[int]) -> bool:
    """Whether a gradient has the few last entries of the example, each called by its number."""
    shapes = [list(subject.small.args[i].shape) for i in subject.small.needs]
    is_usual = have in shapes and len(have) == len(want) > 1
    return is_usual and have[:-1] == want[:-1] and have[-1] <= COLUMNS


def _is_baked(subject: Subject, trial: TriedVariant) -> bool:
    """Whether backward asks for as many elements as an input of the example has."""
    found = BAKED.search(trial.said)
    if found is None:
        return False
    asked = math.prod(int(size) for size in found.group(1).split(","))
    small = subject.small
    counts = {small.args[i].numel() for i in small.tensors}
    return 1 < asked != int(found.group(2)) and asked in counts


def _renamed(usual: Example, tried: Example) -> dict[int, int]:
    """Which size became which, where the ranks are the same and each became one other; or none."""
    became: dict[int, set[int]] = {}
    for i in usual.tensors:
        old, new = usual.args[i].shape, tried.args[i].shape
        if len(old) != len(new):
            return {}
        for one, two in zip(old, new, strict=True):
            became.setdefault(one, set()).add(two)
    if any(len(sizes) > 1 for sizes in became.values()):
        return {}
    return {one: two for one, (two,) in became.items() if one != two}


def _fails(subject: Subject, sizes: dict[int, int], factor: int, more: int) -> bool:
    """Whether a gradient is misshapen at larger sizes too, which forward takes."""
    larger = {old: factor * new + more for old, new in sizes.items()}
    if not fits(subject.small, larger):
        return False
    trial = trial_of(subject, resized(subject.small, larger, "larger"))
    return trial is not None and any(p.search(trial.said) for p in (MISSHAPEN, BAKED))


def _is_of_size(finding: Finding) -> bool:
    raised = finding.about.raised
    return raised is not None and INVALID in raised.text


EXPLAINS = (
    Cause(
        frozenset({"empty-input"}),
        "an empty input is one of these shapes",
        rank=240,
        holds=_is_of_size,
        raising=INVALID,
    ),
)
