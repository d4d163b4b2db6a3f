"""What PyTorch loads on first use, loaded before workers are forked, so that not each of them must.

The first call of `torch.autograd.grad` imports sympy, the first op under a dispatch mode the
compiler: together more time than all the rules take on a small function.
"""

from __future__ import annotations

from functools import cache

import torch

from pullback.check.reference import Precision


@cache
def warm_up() -> None:
    """Run one backward under a dispatch mode, once in a process."""
    x = torch.ones(2, requires_grad=True)
    with Precision():
        torch.autograd.grad((x * x).sum(), x)
