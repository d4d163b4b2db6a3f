"""Small shared helpers for building seeded example inputs."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

__all__ = ["math", "np", "torch", "F", "Function", "once_differentiable",
           "randn", "rand", "randint", "case"]


def _generator(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return g


def randn(*shape, seed=0, dtype=torch.float64, grad=True, scale=1.0, shift=0.0):
    t = torch.randn(*shape, generator=_generator(seed), dtype=dtype) * scale + shift
    return t.requires_grad_(grad)


def rand(*shape, seed=0, dtype=torch.float64, grad=True, low=0.0, high=1.0):
    t = torch.rand(*shape, generator=_generator(seed), dtype=dtype) * (high - low) + low
    return t.requires_grad_(grad)


def randint(high, shape, seed=0):
    return torch.randint(0, high, shape, generator=_generator(seed))


def case(name, target, inputs, note="", surrogate=False):
    return {"name": name, "target": target, "inputs": inputs, "note": note,
            "declares": None, "surrogate": surrogate}
