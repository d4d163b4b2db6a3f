"""Evidence by numbers: does a value move with the inputs, and does its history say all of it?

`forward` may leave autograd's sight (`detach`, numpy, a kernel of its own). Running it again then
gives tensors with too little history, and a second derivative would be silently wrong. Two
questions are put to the function itself, by running it at inputs nearby:

- does a tensor *without* history move smoothly with the inputs? (A mask does not: where it moves,
  it jumps, and the jump does not shrink with the step.)
- does a tensor *with* history move as its history says?

Both answers are on the safe side for ordinary functions: only a plain contradiction counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Run = Callable[[Sequence[Tensor]], list[Tensor]]

# Pairs of step sizes: coarse for low precision, fine for double.
_STEPS = ((0.3, 0.03), (1e-3, 1e-5))


def moves_smoothly(run: Run, inputs: Sequence[Tensor], which: Sequence[int]) -> list[int]:
    """Those of the values `which` that move with the inputs, less for a smaller step."""
    with torch.no_grad():
        base = run(inputs)
        found: set[int] = set()
        for large, small in _STEPS:
            far, near = run(_moved(inputs, large)), run(_moved(inputs, small))
            for i in set(which) - found:
                if _shrinks(base[i], far[i], near[i]):
                    found.add(i)
    return sorted(found)


def _shrinks(base: Tensor, far: Tensor, near: Tensor) -> bool:
    """Whether most elements that move at the larger step move less at the smaller one.

    A mask, or a count of thresholds passed, moves in jumps, and few elements jump at a small step.
    """
    if not base.shape == far.shape == near.shape:
        return True
    wide = (far.to(_wide(far)) - base.to(_wide(base))).abs()
    narrow = (near.to(_wide(near)) - base.to(_wide(base))).abs()
    moving = int((wide > 0).sum())
    return moving > 0 and 2 * int(((narrow > 0) & (narrow < 0.6 * wide)).sum()) >= moving


def contradicts(
    run: Run, inputs: Sequence[Tensor], values: Sequence[Tensor], which: Sequence[int]
) -> list[int]:
    """Those of `values` (with a history) whose slope along a line is not what history says."""
    moving = [x for x in inputs if x.requires_grad]
    directions = _directions(moving)
    found = []
    for i in which:
        weights = _draw(values[i])
        pulled = torch.autograd.grad(
            values[i], moving, weights, retain_graph=True, allow_unused=True
        )
        said = sum(_dot(g, v) for g, v in zip(pulled, directions, strict=True) if g is not None)
        if not _agrees(run, inputs, i, weights, float(said)):
            found.append(i)
    return found


def _agrees(run: Run, inputs: Sequence[Tensor], i: int, weights: Tensor, said: float) -> bool:
    """Whether one of several central differences is near `said`."""
    with torch.no_grad():
        for step in (1e-2, 1e-3, 1e-4, 1e-5):
            ahead, behind = (
                run(_moved(inputs, step)),
                run(_moved(inputs, -step)),
            )
            if ahead[i].shape != weights.shape or behind[i].shape != weights.shape:
                return True  # the shape depends on the values: nothing to compare
            up, down = _dot(weights, ahead[i]), _dot(weights, behind[i])
            seen = (up - down) / (2 * step)
            noise = 64 * torch.finfo(weights.dtype).eps * (abs(up) + abs(down) + 1) / step
            if seen != seen or abs(seen - said) <= 0.05 * max(abs(seen), abs(said)) + noise + 1e-6:
                return True
    return False


# ---- points nearby ----


def _moved(inputs: Sequence[Tensor], step: float) -> list[Tensor]:
    """The inputs, those that need a gradient moved by `step` along fixed directions."""
    directions = iter(_directions([x for x in inputs if x.requires_grad]))
    return [x + step * next(directions) if x.requires_grad else x for x in inputs]


def _directions(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [_draw(x, seed) * (1 + x.detach().abs()) for seed, x in enumerate(inputs, 1)]


def _draw(like: Tensor, seed: int = 0) -> Tensor:
    """Numbers of size one half to one and either sign, the same for the same shape and seed."""
    # Multiples of two irrational numbers, not a generator: there may be a vmap around.
    count = torch.arange(1, like.numel() + 1, dtype=torch.float64).reshape(like.shape)
    size = (count * 0.6180339887498949 + seed * 0.3247) % 1 / 2 + 0.5
    sign = ((count * 0.7548776662466927 + seed * 0.5698) % 1 < 0.5) * 2 - 1
    return (size * sign).to(device=like.device, dtype=like.dtype)


def _dot(a: Tensor, b: Tensor) -> float:
    wide = _wide(a)
    return float((a.detach().to(wide).conj() * b.detach().to(wide)).sum().real)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
