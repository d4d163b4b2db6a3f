"""Two outputs should not be parts of one buffer.

What it checks
    Whether two outputs lie in one piece of memory that forward made, so that an in-place op on
    either of them raises.

Why it matters
    PyTorch refuses `gate.mul_(2)` for an output that is a view of a buffer (unsloth#3452), and each
    output keeps the memory of all others alive.

Fails
    y = x * 2; return y[..., :n], y[..., n:]

Passes
    return x[..., :n] * 2, x[..., n:] * 2

Cannot see
    A single view, and views of inputs: both are often meant, and PyTorch says so when one of them
    is written into.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.subject import Finding, Rule, Severity, Skip, Subject

RULE = Rule(
    code="A755", name="shared-outputs", group="alias", severity=Severity.FRAGILE, profile="quick"
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, for the first two outputs in one buffer."""
    if not subject.target.is_function or subject.fails_at_base:
        return
    run = subject.run()
    inputs = {_memory(arg) for arg in run.passed if isinstance(arg, Tensor)}
    seen: dict[int, int] = {}
    for i in run.live:
        place = _memory(run.outputs[i])
        if place in inputs or place == 0:
            continue
        first = seen.setdefault(place, i)
        refusal = "" if first == i else _refusal(run.outputs[i])
        if refusal:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"outputs {first} and {i}",
                expected="memory of their own, which may be changed in place",
                got=f"parts of one buffer: {refusal}",
                fix="make each output by itself, or return clones of the parts",
            )
            return


def _memory(tensor: Tensor) -> int:
    """The address of the memory of a tensor, 0 where it has none of the usual kind."""
    return 0 if tensor.layout != torch.strided else tensor.untyped_storage().data_ptr()


def _refusal(output: Tensor) -> str:
    try:
        output.mul_(1)
    except RuntimeError as error:
        return str(error).split(".")[0]
    return ""


REPROS = ()  # what PyTorch refuses is told as it says it
