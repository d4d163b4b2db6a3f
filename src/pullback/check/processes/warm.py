"""What is loaded on first use, loaded before workers are forked, so that not each of them must.

The first call of `torch.autograd.grad` imports sympy, the first op under a dispatch mode the
compiler, the search for a reason the symbolic part of PyTorch: together more time than all the
rules take on a small function.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module

import torch

from pullback.check.options import PROOF_SECONDS, REASON_SECONDS
from pullback.check.rules import Registered
from pullback.judge.reference import PrecisionWatcher


def warm_up(rules: Iterable[Registered], profile: str) -> None:
    """Load what these rules need in this profile."""
    _run_once()
    if REASON_SECONDS[profile]:
        import_module("pullback.diagnose.diagnosis")
    if PROOF_SECONDS[profile]:
        import_module("pullback.prove.proof")
    for registered in rules:
        if registered.prepare is not None:
            registered.prepare()


@cache
def _run_once() -> None:
    """Run one backward under a dispatch mode, once in a process."""
    x = torch.ones(2, requires_grad=True)
    with PrecisionWatcher():
        torch.autograd.grad((x * x).sum(), x)
