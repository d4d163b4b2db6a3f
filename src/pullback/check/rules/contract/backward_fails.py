"""`backward` must run where `forward` runs.

What it checks
    Backward at the examples themselves, as given and in float64, with a random cotangent for every
    output; and with the arguments that the examples leave to their defaults given as those.

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

from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule("K801", "backward-fails", "contract", profile="quick")

# What the engine says, and what is to be done about it.
FIXES = (
    ("incorrect number of gradients", "return one value per argument of forward, None where none"),
    ("invalid gradient at index", "return each gradient in the shape and dtype of its argument"),
    ("input_is_complex == grad_is_complex", "return the real part of it: `.real`"),
    ("must implement either the backward", "write a backward, or mark what has no gradient"),
    ("you must implement either", "write a backward, or mark what has no gradient"),
    ("one of the variables needed for gradient", "change nothing in place that was saved"),
)
FIX = "see what it raises: torch.autograd.grad at the inputs above shows it"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward raises at an example."""
    for example in (*subject.examples, subject.base):
        try:
            subject.pull(example)
        except ForwardRefusedError:
            continue  # `forward-fails-with-grad` tells of this
        except BackwardFailedError as failure:
            said = str(failure.error)
            yield subject.finding(
                RULE,
                example=example,
                at="backward, with a random cotangent for every output",
                expected="one gradient per argument of forward",
                got=failure.raised,
                fix=next((fix for words, fix in FIXES if words in said), FIX),
            )
            return
    yield from _with_defaults(subject)


def _with_defaults(subject: Subject) -> Iterator[Finding]:
    """Where arguments that were left out are given, a gradient is due for each of these too."""
    if not subject.target.is_function or len(subject.whole.args) == len(subject.small.args):
        return
    given = subject.names_at(range(len(subject.small.args), len(subject.whole.args)))
    try:
        subject.pull(subject.whole)
    except ForwardRefusedError:
        return
    except BackwardFailedError as failure:
        said = str(failure.error)
        yield subject.finding(
            RULE,
            example=subject.whole,
            severity=Severity.FRAGILE,
            at=f"backward, with {given} given as by default",
            expected="one gradient per argument of forward",
            got=failure.raised,
            fix=next((fix for words, fix in FIXES if words in said), FIX),
        )
