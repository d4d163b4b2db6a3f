"""Every asynchronous collective must be waited for, before its tensors are used.

What it checks
    Whether each handle of `async_op=True`, `isend` and `irecv` was waited for when backward is
    through; and whether an operator has read what a collective writes, or written what it sends,
    before that.

Why it matters
    Before that, the tensor may be anything: it is right on a fast network and a small tensor.

Fails
    dist.all_reduce(grad, async_op=True); return grad

Passes
    handle = dist.all_reduce(grad, async_op=True); ...; handle.wait(); return grad

Cannot see
    What is read by other means than PyTorch's operators, as through `numpy`; collectives made in
    C++.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.ranks.joint import Joint

RULE = Rule("R122", "unwaited-handle", "ranks", profile="quick")


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """Handles of the first call that nobody waited for."""
    if not any(joint.steps):
        yield Skip(RULE, "it makes no collective")
        return
    for rank, steps in enumerate(joint.steps):
        for step in steps:
            if step.early or not step.is_waited:
                is_send = step.name == "send" and not step.early
                yield joint.finding(
                    RULE,
                    at=f"{step}, in {step.phase} on rank {rank}",
                    expected="a call of `wait` on its handle before its tensors are used",
                    got=step.early or "none until backward was through",
                    fix="keep the handle, and wait for it before the tensor is used again",
                    severity=Severity.FRAGILE if is_send else None,
                )
                return
