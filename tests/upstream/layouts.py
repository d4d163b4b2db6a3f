"""The same numbers in other layouts, and inputs of other sizes."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def contiguous(x: Tensor) -> Tensor:
    """A copy in the plain layout."""
    return x.clone(memory_format=torch.contiguous_format)


def strided(x: Tensor) -> Tensor:
    """Every other element of a larger tensor, beginning at the second, dimensions reversed."""
    turned = x.permute(*reversed(range(x.ndim))).contiguous()
    return torch.stack([turned, turned], -1)[..., 1].permute(*reversed(range(x.ndim)))


def transposed(x: Tensor) -> Tensor:
    """Dense, with the last two dimensions the other way round in memory."""
    return x.mT.contiguous().mT if x.ndim > 1 else contiguous(x)


def sliced(x: Tensor) -> Tensor:
    """Every second row of a tensor with twice as many."""
    return torch.repeat_interleave(x, 2, 0)[::2] if x.ndim else contiguous(x)


def expanded(x: Tensor) -> Tensor:
    """Stride 0 in the first dimension that has more than one element: its first entry, repeated."""
    for dim, size in enumerate(x.shape):
        if size > 1:
            return x.narrow(dim, 0, 1).clone().expand(x.shape)
    return contiguous(x)


def channels_last(x: Tensor) -> Tensor:
    """Channels last, where there are four dimensions."""
    return x.clone(memory_format=torch.channels_last) if x.ndim == 4 else contiguous(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": contiguous,
    "transposed": transposed,
    "sliced": sliced,
    "expanded": expanded,
    "channels last": channels_last,
}


def leaves(
    tensors: Sequence[Tensor],
    needs: Sequence[bool],
    layout: Callable[[Tensor], Tensor] = contiguous,
) -> list[Tensor]:
    """Fresh inputs of a call in a layout; tensors of whole numbers (indices) stay as they are.

    A tensor that is given twice is one input twice.
    """
    made: dict[int, Tensor] = {}
    for tensor, need in zip(tensors, needs, strict=True):
        if id(tensor) not in made:
            has_fraction = tensor.is_floating_point() or tensor.is_complex()
            row = (layout if has_fraction else contiguous)(tensor.detach()).detach()
            made[id(tensor)] = row.requires_grad_(need)
    return [made[id(tensor)] for tensor in tensors]


def grown(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Every size above one made larger by one, by starting over in each dimension.

    Numbers come a little nearer to zero, each by another factor: signs and ranges (of arguments of
    a logarithm, of probabilities, of indices) stay, and no two rows of a matrix are equal.
    """
    generator = torch.Generator().manual_seed(0)
    made: dict[int, Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in made:
            row = tensor
            for dim, size in enumerate(tensor.shape):
                if size > 1:
                    row = row.index_select(dim, torch.arange(size + 1) % size)
            made[id(tensor)] = shaken(row, generator)
    return [made[id(tensor)] for tensor in tensors]


def shaken(x: Tensor, generator: torch.Generator) -> Tensor:
    """`x` with each number at 0.7 to 1 times itself; whole numbers stay."""
    if not (x.is_floating_point() or x.is_complex()):
        return x.clone()
    factors = 1 - 0.3 * torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return (x * factors).to(x.dtype)
