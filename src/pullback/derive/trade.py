"""The trade of memory against work, point by point, with the time that each backward takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.capture.modes import autocast_off
from pullback.graph.cut import TradePoint, frontier
from pullback.graph.cut_problem import Cut
from pullback.graph.simplify import EXACT, simplify
from pullback.graph.split import split

_ROUNDS = 7


def trade_of(
    captured: Capture, tensors: Sequence[Tensor], *, clock: Callable[[], float] = time.perf_counter
) -> tuple[TradePoint, ...]:
    """Every best trade of bytes saved against flops computed again, from most bytes to fewest.

    The time of a point is that of its backward on `tensors`, in seconds, the median of some runs:
    what one takes longer than the first, which computes nothing again, is the price of the bytes.
    """
    joint = simplify(captured.joint, EXACT)
    row = [tensor.detach() for tensor in captured.row(tensors)]
    used = [output.index for output in captured.outputs if output.used]
    free = frozenset(i for i, one in enumerate(captured.inputs) if one.free)

    def measure(cut: Cut) -> float:
        forward, backward = (fx.GraphModule({}, graph) for graph in split(joint, cut))
        with torch.no_grad(), autocast_off():
            returned = forward(*row)
            cotangents = [torch.ones_like(returned[index]) for index in used]
            given = (*returned[joint.output_count :], *cotangents)
            rounds = [_timed(lambda: backward(*given), clock) for _ in range(_ROUNDS)]
        return statistics.median(rounds)

    return frontier(joint, free=free, time=measure)


def _timed(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    _wait()
    start = clock()
    call()
    _wait()
    return clock() - start


def _wait() -> None:
    """Until devices have done what they were given."""
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.synchronize()
