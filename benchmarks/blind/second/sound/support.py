"""Helpers common to the cases: seeded inputs, refusals in clear words, and the list entry."""
import torch

CHECKS = {}     # name -> what verify.py should know about the case; no part of the benchmark


def rand(*shape, seed=0, dtype=torch.float64, grad=True, scale=1.0, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g, dtype=torch.float64) * scale + shift
    return x.to(dtype).requires_grad_(grad)


def uniform(*shape, seed=0, low=0.0, high=1.0, dtype=torch.float64, grad=True):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low
    return x.to(dtype).requires_grad_(grad)


def integers(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def crandn(*shape, seed=0, grad=True):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.complex128).requires_grad_(grad)


def real_floating(name, *tensors):
    """Refuse what the formulas below were not written for (complex, integers, mixed dtypes)."""
    for t in tensors:
        if t is not None and not t.is_floating_point():
            raise TypeError(f"{name}: real floating point tensors only, got {t.dtype}")
    kinds = {t.dtype for t in tensors if t is not None}
    if len(kinds) > 1:
        raise TypeError(f"{name}: one dtype for all tensors expected, got {kinds}")


def same_shape(name, a, b):
    if a.shape != b.shape:
        raise ValueError(f"{name}: shapes differ, {tuple(a.shape)} and {tuple(b.shape)}")


def in_range(name, index, size):
    """Refuse indices that are no int64 or that lie outside 0 .. size - 1 (negative ones would wrap)."""
    if index.dtype != torch.int64:
        raise TypeError(f"{name}: int64 indices expected, got {index.dtype}")
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
        raise IndexError(f"{name}: an index lies outside 0 .. {size - 1}")


def full_precision(t):
    """Autocast off for the block: the matrix products keep the precision of their operands."""
    return torch.autocast(device_type=t.device.type, enabled=False)


def case(name, target, inputs, note, declares=None, **checks):
    """One entry of CASES; keyword arguments beyond it are instructions for verify.py only."""
    assert name not in CHECKS, name
    CHECKS[name] = checks
    return dict(name=name, target=target, inputs=inputs, declares=declares or {}, note=note)
