"""`backward` must not fail where forward has accepted the arguments.

What it checks
    Backward raises nothing at the sizes, batches and ranks that forward accepts, and at which
    PyTorch can differentiate forward's body.

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

from collections.abc import Iterator

from pullback.check.inputs.shapes import batches_of, blocks_of, ranks_of, sizes_of
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject
from pullback.check.trials import trials

FAMILIES = {"sizes": sizes_of, "batches": batches_of, "ranks": ranks_of, "blocks": blocks_of}

RULE = Rule(
    code="S305",
    name="backward-fails-at-shape",
    group="shape",
    severity=Severity.FRAGILE,
    profile="standard",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding, for the first shape at which backward fails."""
    if subject.fails_at_base:
        yield Skip(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    for family, variants in FAMILIES.items():
        for trial in trials(subject, family, variants(subject.small)):
            if trial.failure:
                yield subject.finding(
                    RULE,
                    example=trial.example,
                    at="backward",
                    expected="gradients, since forward accepts these shapes",
                    got=trial.failure,
                    fix="serve these shapes in backward, or refuse them in forward",
                )
                return
