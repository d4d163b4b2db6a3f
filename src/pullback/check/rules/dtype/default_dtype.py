"""A gradient must not take its dtype from PyTorch's default.

What it checks
    What backward returns for inputs in bfloat16, before the engine looks at it, with float32 and
    with float64 as the default dtype: where the outputs have the dtype of the inputs, and the
    gradient has that of the default, a tensor was made in backward without saying in which.

Why it matters
    `torch.full(grad.shape, 0.1)` is float32 whatever `grad` is. In bfloat16 every gradient is then
    computed and kept in twice the memory, in float64 half of the digits of 0.1 are missing, and
    products of matrices raise.

Fails
    return grad * torch.full(grad.shape, 0.1)

Passes
    return grad * torch.full_like(grad, 0.1)

Cannot see
    Tensors whose dtype does not reach the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient
from pullback.check.inputs.dtypes import in_dtype
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject
from pullback.check.subject.trials import is_new
from pullback.check.watching.spy import spy_on
from pullback.judge.example import Example, dtype_name

RULE = Rule("D508", "default-dtype", "dtype", Severity.FRAGILE, "quick")

DEFAULTS = (torch.float32, torch.float64)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient whose dtype is the default one."""
    low = in_dtype(subject.small, torch.bfloat16)
    if low is None or subject.fails_at_base or spy_on(subject.target) is None:
        return
    before = torch.get_default_dtype()
    found: list[dict[str, torch.dtype]] = []
    try:
        for default in DEFAULTS:
            torch.set_default_dtype(default)
            found.append(_dtypes(subject, low))
    except CallError:
        return
    finally:
        torch.set_default_dtype(before)
    for name, dtype in found[0].items():
        follows = (dtype, found[1].get(name)) == DEFAULTS
        if follows and is_new(subject, RULE, name):
            yield subject.finding(
                RULE,
                example=low,
                at=At(Gradient(name), rest=", as backward returns it"),
                expected="bfloat16, as the input and the outputs",
                got=f"{dtype_name(dtype)}, and whatever else is PyTorch's default dtype",
                fix="make new tensors from those given, as torch.full_like(grad, ...) does",
            )


def _dtypes(subject: Subject, example: Example) -> dict[str, torch.dtype]:
    """The dtypes of the gradients as backward returns them; none where outputs have another."""
    spy = spy_on(subject.target)
    if spy is None:
        return {}
    called = subject.run_other(spy.target.call, example)
    if any(called.outputs[k].dtype != torch.bfloat16 for k in called.live):
        return {}
    called.pull(subject.cotangents(called))
    return {
        name: gradient.dtype
        for call in spy.calls
        for name, gradient in zip(subject.names, call.returned, strict=False)
        if isinstance(gradient, Tensor)
    }


REPROS = (by_float64, of_number)
