"""A row of timed calls, the same for a candidate and for its reference.

The arguments of all calls are made first, each with numbers of its own. Before each call the caches
of the processor or GPU are filled with other numbers, and memory of the size of the results is
filled with NaN and given back, so that what nobody writes shows. All results are kept.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.candidates.calling import Called, backward, cotangents_for, forward
from pullback.candidates.trials import Trial, TrialMaker
from pullback.candidates.written import written_copy
from pullback.judge.example import Example, tensors_in

FORWARD, BACKWARD, BOTH_WAYS = "forward", "backward", "both"
CPU_CACHE = 1 << 25  # bytes that are written to make the caches of a processor cold
Clock = Callable[[], float]
Wait = Callable[[], None]


@dataclass(slots=True)
class Section:
    """Calls that were made, and how long each took; `tails` is work that ended after its call."""

    called: list[Called] = field(default_factory=list)
    kept: list[list[Tensor | None]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)


class Caller:
    """Makes rows of calls, and times them with what was known before the candidate was loaded."""

    def __init__(
        self, maker: TrialMaker, *, gradients: bool, clock: Clock = time.perf_counter
    ) -> None:
        self._maker, self._gradients, self._clock = maker, gradients, clock
        tensors = [t for example in maker.examples for t in tensors_in(example.args)]
        self._is_gpu = any(tensor.is_cuda for tensor in tensors)
        self._synchronize: Wait = torch.cuda.synchronize if self._is_gpu else _nothing
        event = torch.cuda.Event
        self._event: Callable[..., Any] = event
        self._record: Callable[..., Any] = event.record
        self._await: Callable[..., Any] = event.synchronize
        self._elapsed: Callable[..., float] = event.elapsed_time
        self._flushed: Tensor | None = None
        self._waiting: list[tuple[Trial, tuple[Any, ...]]] = []
        self._arranged: list[Callable[[], Called]] = []
        self._mode = FORWARD
        self._seen: tuple[Tensor, ...] = ()  # outputs at the given sizes

    def now(self) -> float:
        """What the clock says that calls are timed by."""
        return self._clock()

    @property
    def knows_outputs(self) -> bool:
        """Whether it knows what outputs look like."""
        return bool(self._seen)

    def prepare(self, mode: str, trials: Sequence[Trial]) -> None:
        """Make the arguments of the next section."""
        self._mode = mode
        self._waiting = []
        needs = None if self._gradients else frozenset[int]()
        drawn: dict[int, Example] = {}
        for trial in trials:
            if trial.draw not in drawn:
                made = self._maker.made(trial)
                drawn[trial.draw] = self._maker.examples[trial.example] if made is None else made
            self._waiting.append((trial, drawn[trial.draw].fresh(needs=needs)))
        self._synchronize()

    def run(self, call: Callable[..., Any], *, cold: bool, like: Sequence[Any] = ()) -> Section:
        """Make the calls, and time each; `like` are results such as will come."""
        section = Section()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for trial, args in self._waiting:
                work = self._work(call, trial, args)
                _poison(like)
                if cold:
                    self._flush(args)
                called = self._timed(work, section)
                section.called.append(called)
                section.kept.append(
                    [None if t is None else written_copy(t) for t in called.tensors]
                )
        self._waiting = []
        return section

    def arrange(self, call: Callable[..., Any]) -> None:
        """Do what is not timed of the calls that will be made in a row."""
        self._arranged = [self._work(call, trial, args) for trial, args in self._waiting]
        self._waiting = []
        self._synchronize()

    def run_in_a_row(self) -> list[Called]:
        """Make the calls with nothing between them, for a clock outside of this process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [work() for work in self._arranged]
            for called in found[-1:]:  # a number that is read is there, whatever was replaced
                _ = [t.flatten()[-1].item() for t in called.outputs if t.numel()]
        self._synchronize()
        self._arranged = []
        return found

    def _work(
        self, call: Callable[..., Any], trial: Trial, args: tuple[Any, ...]
    ) -> Callable[[], Called]:
        """The part of a call that is timed; the rest is done here."""
        if self._mode == FORWARD or not self._gradients:
            return lambda: forward(call, args)
        if self._mode == BACKWARD:
            called = forward(call, args)
            cotangents = cotangents_for(called.outputs, trial.draw)
            return lambda: backward(called, cotangents)
        outputs = forward(call, args).outputs if not self._shapes_known(trial) else self._seen
        cotangents = cotangents_for(outputs, trial.draw)
        return lambda: backward(forward(call, args), cotangents)

    def _shapes_known(self, trial: Trial) -> bool:
        """Whether cotangents can be made for outputs such as came before, without another call."""
        return bool(self._seen) and trial.is_ordinary

    def remember(self, called: Called) -> None:
        """Note what outputs look like at the given sizes."""
        self._seen = tuple(output.detach() for output in called.outputs)

    def _timed(self, work: Callable[[], Called], section: Section) -> Called:
        clock = self._clock
        if not self._is_gpu:
            start = clock()
            called = work()
            section.times.append(clock() - start)
            section.tails.append(0.0)
            return called
        first, last = (self._event(enable_timing=True) for _ in range(2))
        self._record(first)
        called = work()
        self._record(last)
        self._await(last)
        ended = clock()
        self._synchronize()
        tail = clock() - ended
        section.times.append(self._elapsed(first, last) / 1e3)
        section.tails.append(tail)
        return called

    def _flush(self, args: Sequence[Any]) -> None:
        """Let nothing of the arguments be in a cache."""
        if self._flushed is None:
            device = torch.device("cuda") if self._is_gpu else torch.device("cpu")
            size = 2 * _cache_of_gpu() if self._is_gpu else CPU_CACHE
            self._flushed = torch.zeros(size // 4, dtype=torch.int32, device=device)
        self._flushed.add_(1)
        if not self._is_gpu:
            return
        # The GPU is busy with this while the call is launched, so that launches are not timed.
        self._flushed.add_(1)


def _poison(like: Sequence[Any]) -> None:
    """Fill memory of the size of results with NaN, and give it back."""
    kept = [
        torch.full_like(t, float("nan"), memory_format=torch.contiguous_format)
        for t in like
        if t is not None and t.is_floating_point()
    ]
    del kept


def _nothing() -> None:
    return


def _cache_of_gpu() -> int:
    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 1 << 26))
