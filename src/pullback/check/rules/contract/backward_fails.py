"""`backward` must run where `forward` runs.

What it checks
    Backward at the examples themselves, as given and in float64, with a random cotangent for every
    output.

Why it matters
    Training stops at the first step, or at the first batch of another kind.

Fails
    return g * x               # of two arguments: one gradient for each is needed

Passes
    return g * x, None

Cannot see
    Failures at other inputs, which are the business of the rules on shapes, layouts and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.example import Example
from pullback.check.run import told
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
)

RULE = Rule(code="K801", name="backward-fails", group="contract", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward raises at an example."""
    for example in (*subject.examples, subject.base):
        try:
            subject.pull(example)
        except ForwardRefusedError as refusal:
            yield from _only_with_grad(subject, example, refusal)
            return
        except BackwardFailedError as failure:
            if "does not require grad" in str(failure.error):
                continue
            yield subject.finding(
                RULE,
                example=example,
                at="backward, with a random cotangent for every output",
                expected="one gradient per argument of forward",
                got=told(failure.error),
                fix="see what it raises: a repro is the example above with torch.autograd.grad",
            )
            return


def _only_with_grad(
    subject: Subject, example: Example, refusal: ForwardRefusedError
) -> Iterator[Finding]:
    try:
        subject.run(example, needs=())
    except ForwardRefusedError:
        return
    yield subject.finding(
        RULE,
        example=example,
        at="forward, when an input requires grad",
        expected="the outputs, as when none does",
        got=told(refusal.error),
        fix="see what it raises: marks and saves are looked at only when a gradient is needed",
    )
