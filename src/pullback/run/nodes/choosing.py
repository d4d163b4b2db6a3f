"""Which of several nodes that compute the same is the fastest here, by running them.

Machines drift by more than nodes differ, so the nodes take turns, and what is compared are times
that were taken moments apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

ROUNDS, LEAST, SECONDS = 9, 0.0005, 0.5  # rounds, time of one turn, time of all


def fastest(nodes: Mapping[str, Callable[..., Any]], row: Sequence[Tensor]) -> str:
    """The name of the node that takes the least time forward and backward on tensors like `row`.

    The tensors stay as they are, hooks on them are not called. Of equals, the first is taken.
    """
    return quickest({name: _turn(node, row) for name, node in nodes.items()}, row)


def quickest(turns: Mapping[str, Callable[[], Any]], row: Sequence[Any]) -> str:
    """The name of the function that takes the least time; `row` says on which device they run."""
    names = list(turns)
    if len(names) == 1:
        return names[0]
    turns = {name: _waited(turn, row) for name, turn in turns.items()}
    counts = {name: _count(turn) for name, turn in turns.items()}
    taken: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + SECONDS
    for number in range(ROUNDS):
        if number > 2 and time.perf_counter() > end:
            break
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken[name].append(_seconds(turns[name], counts[name]))
    return min(names, key=lambda name: median(taken[name]))


def _turn(node: Callable[..., Any], row: Sequence[Tensor]) -> Callable[[], None]:
    """A function that runs a node forward and backward."""
    given = [x.detach().requires_grad_(x.requires_grad) for x in row]
    needing = [x for x in given if x.requires_grad]

    def turn() -> None:
        made = node(*given)
        outputs = [made] if isinstance(made, Tensor) else list(made)
        live = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
        torch.autograd.grad(live, needing, [y.detach() for y in live], allow_unused=True)

    return turn


def _waited(turn: Callable[[], Any], row: Sequence[Any]) -> Callable[[], Any]:
    """`turn`, which is over when the GPU is done with it."""
    device = next((x.device for x in row if isinstance(x, Tensor) and x.is_cuda), None)
    if device is None:
        return turn

    def waited() -> None:
        turn()
        torch.cuda.synchronize(device)

    return waited


def _count(turn: Callable[[], Any]) -> int:
    """How many runs make a turn that a clock can measure."""
    for _ in range(2):  # the first run compiles
        turn()
    return max(1, min(100, int(LEAST / max(_seconds(turn, 1), 1e-6))))


def _seconds(turn: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        turn()
    return (time.perf_counter() - start) / count
