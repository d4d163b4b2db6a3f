"""The function must not end, hang or exhaust the process it runs in.

What it checks
    Whether the worker in which a rule is tried is still there when the rule is through: it may have
    been ended by a signal, left by `sys.exit`, run out of memory or out of time.

Why it matters
    A kernel that reads past its memory ends a training with no message, and one that hangs ends it
    with no end (FBGEMM#1553, mamba#537).

Fails
    ctypes.string_at(0)

Passes
    raise ValueError("the batch must be a multiple of 4")

Cannot see
    Crashes at inputs that no rule tries. Where the rules run in the caller's process, only a call
    of `sys.exit` is survived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pullback.check.findings.finding import Finding, Rule, Severity, Skip

RULE = Rule(
    code="X901",
    name="crash",
    group="crash",
    severity=Severity.WRONG,
    profile="quick",
    sentence="The function must not end, hang or exhaust the process it runs in",
)


def check(subject: Any) -> Iterator[Finding | Skip]:
    """Nothing by itself: the runner finds a crash while it tries any other rule."""
    return iter(())
