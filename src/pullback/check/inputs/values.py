"""New values for a tensor that look like those of the example: its kind is recognised and kept.

Authors give inputs that mean something: probabilities, labels, masks, covariances, permutations. A
variant with other sizes is only worth trying when its values still mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.judge.tolerances import SUM, SYMMETRIC, are_near

Shape = Sequence[int]


def resampled(tensor: Tensor, shape: Shape, draw: int, bound: int | None = None) -> Tensor:
    """Values like those of `tensor`, in another shape; `bound` is above every index."""
    generator = torch.Generator().manual_seed(draw)
    values = _drawn(tensor.detach().cpu(), tuple(shape), generator, bound)
    return values.to(device=tensor.device, dtype=tensor.dtype)


def _drawn(
    tensor: Tensor, shape: tuple[int, ...], generator: torch.Generator, bound: int | None
) -> Tensor:
    if tensor.dtype == torch.bool:
        rate = float(tensor.double().mean()) if tensor.numel() else 0.5
        return torch.rand(shape, generator=generator) < rate
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj())
        real = _floats(parts[..., 0], shape, generator)
        return torch.complex(real, _floats(parts[..., 1], shape, generator))
    if tensor.is_floating_point():
        return _floats(tensor, shape, generator)
    return _integers(tensor, shape, generator, bound)


def is_permutation(tensor: Tensor) -> bool:
    """Whether an index tensor is an order of 0, 1, 2, ..."""
    if tensor.dim() != 1 or tensor.numel() < 2 or not is_index(tensor):
        return False
    return torch.equal(tensor.cpu().sort().values, torch.arange(tensor.numel(), dtype=tensor.dtype))


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor has no other values than 0 and 1, or is boolean."""
    if tensor.dtype == torch.bool:
        return True
    return tensor.numel() > 0 and bool(((tensor == 0) | (tensor == 1)).all())


def _floats(tensor: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    old = tensor.detach().double()
    finite = old[torch.isfinite(old)]
    if finite.numel() == 0:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    low, high = float(finite.min()), float(finite.max())
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    if low == high:
        return torch.full(shape, low, dtype=torch.float64)
    if bool((finite == finite.round()).all()) and finite.numel() > 2:
        picks = torch.randint(0, finite.numel(), shape, generator=generator)
        return finite[picks]
    if _is_definite(old) and len(shape) >= 2 and shape[-1] == shape[-2]:
        root = torch.randn(shape, generator=generator, dtype=torch.float64)
        return root @ root.mT / max(shape[-1], 1) + torch.eye(shape[-1], dtype=torch.float64)
    if low >= 0 and old.dim() and shape and _sums_to_one(old) and shape[-1] > 0:
        parts = uniform + 0.05
        return parts / parts.sum(-1, keepdim=True)
    if low > 0 or (low >= 0 and high <= 1):
        values = low + (high - low) * uniform
    else:
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        spread = float(finite.std()) if finite.numel() > 1 else 1.0
        values = float(finite.mean()) + spread * noise
    if old.dim() and _is_sorted(old) and shape:
        return values.sort(-1).values
    if len(shape) >= 2 and shape[-1] == shape[-2] and _is_symmetric(old):
        return (values + values.mT) / 2
    return values


def _integers(
    tensor: Tensor, shape: tuple[int, ...], generator: torch.Generator, bound: int | None
) -> Tensor:
    if tensor.numel() == 0:
        return torch.zeros(shape, dtype=tensor.dtype)
    if is_permutation(tensor) and len(shape) == 1:
        return torch.randperm(shape[0], generator=generator).to(tensor.dtype)
    low, high = int(tensor.min()), int(tensor.max()) + 1
    if bound is not None:
        high = max(min(bound, high) if bound < high else bound, 1)
        low = min(low, high - 1)
    values = torch.randint(low, high, shape, generator=generator).to(tensor.dtype)
    return values.sort(-1).values if shape and tensor.dim() and _is_sorted(tensor) else values


def _is_sorted(tensor: Tensor) -> bool:
    if tensor.shape[-1] < 3:
        return False
    return bool((tensor[..., 1:] >= tensor[..., :-1]).all())


def _sums_to_one(tensor: Tensor) -> bool:
    if tensor.shape[-1] < 2:
        return False
    total = tensor.sum(-1)
    return bool(((total - 1).abs() < SUM).all())


def _is_symmetric(tensor: Tensor) -> bool:
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    return are_near(tensor, tensor.mT, SYMMETRIC)


def _is_definite(tensor: Tensor) -> bool:
    if not _is_symmetric(tensor):
        return False
    return bool((torch.linalg.eigvalsh(tensor) > 0).all())
