"""Whether a function takes random numbers."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from pullback.check.subject import Subject
from pullback.function.isolation import seeded


def draws(subject: Subject) -> bool:
    """Whether forward moves the state of PyTorch's or Python's generator."""
    with seeded():
        before = torch.get_rng_state(), random.getstate()
        args = subject.base.fresh()
        if subject.writes_inputs:
            args = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        subject.target.call(*args)
        after = torch.get_rng_state(), random.getstate()
    return not torch.equal(before[0], after[0]) or before[1] != after[1]
