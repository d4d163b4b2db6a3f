"""`backward` must not fail where forward has accepted the arguments.

What it checks
    Backward raises nothing for batches of 1, 2, 7, 40 and 130, nor for images that are not square,
    where forward accepts them and PyTorch can differentiate forward's body; and that no gradient
    comes in another shape than its input at other sizes. In the profile "deep" all that is raised
    at other sizes and ranks: many a function is meant for one rank, and says so nowhere.

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

from pullback.check.example import Example, can_differ
from pullback.check.inputs.shapes import batches_of, oblong_of, ranks_of, sizes_of
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject
from pullback.check.trials import trials

# Shapes that every user meets, and those that a function may not be meant for.
USUAL = {"batches": batches_of, "oblong": oblong_of}
UNUSUAL = {"sizes": sizes_of, "ranks": ranks_of}

# What the engine says of a gradient whose shape does not fit.
MISSHAPEN = re.compile(r"got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]")

RULE = Rule(
    code="S305",
    name="backward-fails-at-shape",
    group="shape",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding, for the first shape at which backward fails."""
    if subject.fails_at_base:
        yield Skip(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    families = USUAL | UNUSUAL
    if not _has_batch(subject):
        families.pop("batches")
    for family, variants in families.items():
        for trial in trials(subject, family, variants(subject.small)):
            is_meant = family in USUAL or subject.profile == "deep"
            is_meant = is_meant or _is_misshapen(trial.failure, subject.small, trial.example)
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


def _has_batch(subject: Subject) -> bool:
    """Whether the leading size of the first input leads an output as well, or all are numbers."""
    run = subject.run(subject.small)
    first = next((a for a in run.args if can_differ(a) and a.dim()), None)
    outputs = [output for output in run.outputs if can_differ(output)]
    if first is None:
        return False
    leads = any(output.shape[:1] == first.shape[:1] for output in outputs)
    return leads or all(output.dim() == 0 for output in outputs)


def _is_misshapen(failure: str, usual: Example, tried: Example) -> bool:
    """Whether a gradient came in another shape, while forward surely serves this one.

    Either it has all elements, only flat; or the rank is that of the example, and sizes that are
    equal there are equal here: a function of square matrices is not meant for others.
    """
    found = MISSHAPEN.search(failure)
    if found is None:
        return False
    have, want = ([int(size) for size in group.split(",") if size] for group in found.groups())
    if have == want:
        return False
    return math.prod(have) == math.prod(want) or _is_resized(usual, tried)


def _is_resized(usual: Example, tried: Example) -> bool:
    """Whether two examples have the same ranks, and each size became one other size."""
    became: dict[int, set[int]] = {}
    for i in usual.tensors:
        old, new = usual.args[i].shape, tried.args[i].shape
        if len(old) != len(new):
            return False
        for one, two in zip(old, new, strict=True):
            became.setdefault(one, set()).add(two)
    return all(len(sizes) == 1 for sizes in became.values())
