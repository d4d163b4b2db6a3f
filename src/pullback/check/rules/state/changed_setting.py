"""The settings of PyTorch must be as they were.

What it checks
    The default dtype, the grad mode, autocast, the number of threads, the demand for determinism
    and the precision of matrix products, before and after forward and backward.

Why it matters
    These belong to the whole process. A backward that sets the default dtype, or leaves
    gradients switched off, changes what every later line of the program computes.

Fails
    torch.set_default_dtype(torch.float64)         # in backward

Passes
    torch.full(shape, 0.5, dtype=grad.dtype)

Cannot see
    Settings of other libraries, and those that are put back before the call ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject
from pullback.judge.example import Example

RULE = Rule("T907", "changed-setting", "state", Severity.FRAGILE, "quick")

DTYPES = (torch.float32, torch.float64)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per setting that a call leaves changed."""
    usual = _settings()
    for dtype, example in product(DTYPES, _examples(subject)):
        torch.set_default_dtype(dtype)  # an earlier call may have set it to what it sets it to
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")
        before = _settings()
        phase = "forward"
        try:
            run = subject.run(example)
            changed = _changed(before)
            if not changed:
                phase = "backward"
                run.pull(subject.cotangents(run))
                changed = _changed(before)
        except CallError:
            changed = _changed(before)
        finally:
            _restore(usual)
        for name, (was, now) in changed.items():
            yield subject.finding(
                RULE,
                example=example,
                at=f"{phase}: {name}",
                expected=f"{was}, as before",
                got=f"{now}",
                fix="pass dtype, device and mode to the calls that need them, and set nothing",
            )
        _restore(usual)  # which the program that shows it may have changed as well
        if changed:
            return


def _examples(subject: Subject) -> list[Example]:
    """The example as it was given, and in float64 where that is another."""
    given, exact = subject.small_given, subject.small
    return [given] if exact is given else [given, exact]


def _settings() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "precision of float32 products": torch.get_float32_matmul_precision(),
        "anomaly mode": torch.is_anomaly_enabled(),
    }


def _changed(before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    now = _settings()
    return {name: (was, now[name]) for name, was in before.items() if now[name] != was}


def _restore(before: dict[str, Any]) -> None:
    if _changed(before):
        torch.set_default_dtype(before["default dtype"])
        torch.set_grad_enabled(before["grad mode"])
        torch.set_autocast_enabled("cpu", before["autocast"])
        torch.set_num_threads(before["number of threads"])
        torch.use_deterministic_algorithms(before["deterministic algorithms"])
        torch.set_float32_matmul_precision(before["precision of float32 products"])
        torch.autograd.set_detect_anomaly(before["anomaly mode"])
