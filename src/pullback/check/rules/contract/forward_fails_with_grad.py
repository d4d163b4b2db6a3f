"""`forward` must run when an input requires grad, if it runs when none does.

What it checks
    Forward at the examples, with grad required and with none.

Why it matters
    The function works in a notebook and stops at the first training step. Inside forward the inputs
    still say that they require grad, and marks and saves are only looked at when they do.

Fails
    return x.resize_(n) * 2            # PyTorch refuses to resize what requires grad

Passes
    return x[:n] * 2

Cannot see
    A forward that refuses both: then these are not its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.subject.subject import (
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    describe,
)

RULE = Rule("K803", "forward-fails-with-grad", "contract", Severity.FRAGILE, "quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when only the demand for gradients makes forward raise."""
    for example in subject.examples:
        try:
            subject.run(example)
            continue
        except ForwardRefusedError as refusal:
            error = refusal.error
        try:
            subject.run(example, needs=())
        except ForwardRefusedError:
            continue
        yield subject.finding(
            RULE,
            example=example,
            at="forward, when an input requires grad",
            expected="the outputs, as when none does",
            got=describe(error),
            fix="see what it raises: inside forward, work on x.detach() where grad is in the way",
        )
        return
