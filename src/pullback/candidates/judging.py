"""`pb.judge`: a candidate and its reference become a verdict.

The process that asks holds what a candidate must not reach: the seed, and a clock. It never loads
a candidate that is given by its name. The order: inputs that nobody can foresee, calls that would
come from a cache, timed calls whose results are looked at again, calls by the clock outside, and
`pb.check` last.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pullback.candidates.case import FIRST, Case
from pullback.candidates.host import LostError, Peer, ReferenceLostError, RefusedError, warm_host
from pullback.candidates.sources import Source, sendable
from pullback.candidates.system import held_back
from pullback.candidates.verdict import Verdict
from pullback.errors import ExamplesError, InternalError
from pullback.judge.example import example_of

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How to judge: the options of `pb.judge`, which explains them."""

    gradients: bool | None = None
    seed: int | None = None
    check: bool = True
    compiled: bool = True
    cold: bool = True
    seconds: float | None = None
    profile: str = "standard"


def judge_all(
    candidates: Iterable[Any],
    reference: Callable[..., Any] | str,
    inputs: Any = None,
    **options: Any,
) -> Iterator[Verdict]:
    """A verdict on each candidate in turn: the reference is loaded, and compiled, once."""
    settings = JudgeSettings(**options)
    bench = Bench(sendable(reference, "reference"), _inputs_source(inputs), settings)
    try:
        bench.start()
        for candidate in candidates:
            yield bench.judge(sendable(candidate, "candidate"))
    finally:
        bench.stop()


def _inputs_source(inputs: Any) -> Source | None:
    """The inputs, to be sent; tensors keep that they require grad."""
    if inputs is None:
        return None
    if isinstance(inputs, str):
        return Source(inputs, inputs)
    rows = inputs if isinstance(inputs, list) else [inputs]
    if not callable(inputs):
        for row in rows:
            example_of(row if isinstance(row, tuple) else (row,))
    return Source("inputs", "", cloudpickle.dumps(inputs))


class Bench:
    """A reference in a process of its own, against which candidates are judged."""

    def __init__(
        self,
        reference: Source,
        inputs: Source | None,
        settings: JudgeSettings,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.reference, self.inputs, self.settings = reference, inputs, settings
        self.clock = clock
        self.host = warm_host()
        self.numbers = itertools.count()
        self.referee: Peer | None = None
        self.known: dict[str, Any] = {}
        self.is_compiled = False
        self.notes: list[str] = []
        self.was_held_back = False
        self._free: object = None

    def start(self) -> None:
        """Load the reference, and compile it where that is asked for."""
        self.referee = self.host.fork("referee")
        self._free = held_back(self.referee.pid)
        self.was_held_back = False
        self.examples = self.path()
        try:
            given = (self.reference, self.inputs, self.examples)
            self.known = self.referee.ask("start", *given, seconds=FIRST)
        except (RefusedError, LostError) as error:
            raise ExamplesError(
                f"the reference `{self.reference.title}` must run at its inputs",
                got=str(error),
            ) from None
        if not self.known["is_steady"]:
            raise ExamplesError(
                f"the reference `{self.reference.title}` must give the same for the same inputs",
                got="two results that differ: it draws random numbers, or keeps a state",
            )
        if self.settings.compiled:
            try:
                self.referee.ask("compile", seconds=FIRST)
                self.is_compiled = True
            except (RefusedError, LostError) as error:
                self.notes.append(f"torch.compile of the reference was not timed: {error}"[:200])

    def stop(self) -> None:
        """End the process of the reference."""
        if self.referee is not None:
            self.referee.stop()

    def ask(self, verb: str, *args: Any, seconds: float = 120.0) -> Any:
        """What the referee answers, in which no code runs that is not trusted."""
        assert self.referee is not None
        self.was_held_back |= not self.is_free
        try:
            return self.referee.ask(verb, *args, seconds=seconds)
        except LostError as error:
            raise ReferenceLostError((verb, *args), str(error)) from None
        except RefusedError as error:
            raise InternalError(
                f"the reference `{self.reference.title}` must be judged by", got=f"{verb}: {error}"
            ) from None

    def path(self) -> str:
        """A new file."""
        return str(self.host.folder / f"{next(self.numbers)}.pt")

    @property
    def device(self) -> str:
        """The kind of device of the inputs."""
        return str(self.known["device"]).partition(":")[0]

    @property
    def is_free(self) -> bool:
        """Whether the process of the reference is there, and runs as it did at the start."""
        return self.referee is not None and held_back(self.referee.pid) == self._free

    def restart(self) -> None:
        """Another process of the reference: what a candidate did to the old one is over."""
        self.stop()
        self.start()

    def ask_again(self, lost: ReferenceLostError) -> None:
        """Raise where a new process of the reference is lost, too, by what it was asked."""
        self.restart()
        verb, *args = lost.asked
        if verb != "truth":  # what else there is needs a candidate, or comes after that
            return
        try:
            self.ask(verb, *args)
        except ReferenceLostError as error:
            raise InternalError(
                f"the reference `{self.reference.title}` must be judged by", got=f"{verb}: {error}"
            ) from None

    def judge(self, source: Source) -> Verdict:
        """A verdict on one candidate, in a process of its own."""
        verdict = Case(self, source).verdict()
        if self.was_held_back or not self.is_free:
            self.restart()
        return verdict
