"""The times of a candidate and its rivals: taken in turn, looked at, and not taken on trust.

What a timed call gave is compared like any other result, its own clock is held against that of this
process, and numbers that came before against new ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pullback.candidates import rules
from pullback.candidates.reasons import Result, finding_of
from pullback.candidates.rules import JudgeFinding
from pullback.candidates.sections import BACKWARD, BOTH_WAYS, FORWARD
from pullback.candidates.system import busiest, computed
from pullback.candidates.timing import (
    FEW,
    Reading,
    is_believed,
    is_looked_up,
    is_steady,
    speedup,
)
from pullback.candidates.trials import Trial, ordinary

if TYPE_CHECKING:
    from pullback.candidates.case import Case

CALLS = {"cpu": 3, "cuda": 5}  # in a section
ROUNDS = (FEW + 2, 30)
SECONDS = {"cpu": 3.0, "cuda": 6.0}  # of timing
ROW, MANY, ENOUGH = 40, 1000, 0.02  # calls by the clock outside, and seconds that tell something
REPEATS = 16  # calls in a row at the same numbers, or at new ones
IMPOSSIBLE = 0.5  # of the time that the machine needs to move the numbers
HEAVY, SELDOM = 1 << 24, 0.25  # bytes of results of which not every row of calls is looked at
TAIL, TAIL_SHARE = 5e-5, 0.25  # seconds of work after a call, and share of the call


@dataclass
class Times:
    """Seconds per call: one number per round, and every call of the candidate."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    calls: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)


class Race:
    """A candidate that is right, by the clock."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.times: dict[str, Times] = {}
        self.limits: dict[str, Any] = {}

    def run(self) -> None:
        """Time it, and look at what the times say."""
        modes = [FORWARD, BACKWARD, BOTH_WAYS] if self.case.gradients else [FORWARD]
        budget = self.case.settings.seconds or SECONDS[self.case.bench.device]
        rivals = ["reference", "compiled"] if self.case.bench.is_compiled else ["reference"]
        before = self._readings()
        self._interleave(modes, rivals, budget)
        self._clocks(before, self._readings())
        self._outside(modes[-1])
        self._repeated()
        self._limit(modes)
        self.case.tried["timed"] = sum(len(times.calls) for times in self.times.values())

    def _readings(self) -> list[Reading]:
        """What the clocks say by which the candidate's process times its calls."""
        clock = self.case.bench.clock
        earliest = clock()
        said = self.case.peer.ask("now")["now"]
        return [Reading(float(one), earliest, clock()) for one in said]

    def _clocks(self, before: Sequence[Reading], after: Sequence[Reading]) -> None:
        """Whether they went as fast as the clock of this process, whatever calls take."""
        for first, last in zip(before, after, strict=True):
            if not is_steady(first, last):
                expected = f"{last.latest - first.earliest:.3g} s between two readings"
                got = f"{last.said - first.said:.3g} s"
                why = "its own clock was replaced"
                self.case.found(JudgeFinding(rules.CLOCK, "while it was timed", expected, got, why))

    def _interleave(self, modes: Sequence[str], rivals: Sequence[str], budget: float) -> None:
        """Sections of the candidate and its rivals in turn, the first of each not counted."""
        clock, start = self.case.bench.clock, self.case.bench.clock()
        least, most = ROUNDS
        for number in range(most + 1):
            if number > least and clock() - start > budget:
                return
            for mode in modes:
                times = self.times.setdefault(mode, Times())
                sides = ["candidate", *rivals]
                self.case.rng.shuffle(sides)
                for side in sides:
                    taken, tails = self._section(mode, side)
                    if number == 0:
                        continue  # caches, pools and clocks are warming up
                    times.rounds.setdefault(side, []).append(statistics.median(taken))
                    if side == "candidate":
                        times.calls += taken
                        times.tails += tails

    def _section(self, mode: str, side: str) -> tuple[list[float], list[float]]:
        trials = [ordinary(self.case.rng) for _ in range(CALLS[self.case.bench.device])]
        if side != "candidate":
            which = "eager" if side == "reference" else "compiled"
            self.case.bench.ask("prepare", mode, trials, self.case.gradients)
            return self.case.bench.ask("go", which, self.case.settings.cold)["times"], []
        said = self._own_section(mode, trials)
        times = [float(t) for t in said["times"]], [float(t) for t in said["tails"]]
        if self.case.bench.known["bytes"] > HEAVY and self.case.rng.random() > SELDOM:
            return times
        number = self.case.rng.randrange(len(trials))  # which one nobody could know before
        path = self.case.bench.path()
        self.case.peer.ask("give", [number], [path])
        is_whole = mode != FORWARD and self.case.gradients
        self._verify(trials[number], is_whole, path)
        return times

    def _own_section(self, mode: str, trials: Sequence[Trial]) -> dict[str, Any]:
        self.case.peer.ask("prepare", mode, list(trials), self.case.gradients)
        said: dict[str, Any] = self.case.peer.ask("go", self.case.settings.cold)
        if said["unfinished"]:
            self.case.found(JudgeFinding(rules.UNFINISHED, "in timed calls"))
        if said["reused"]:
            why = "several calls gave results in the same memory"
            self.case.found(JudgeFinding(rules.REUSED, "in timed calls", why=why))
        return said

    def _verify(self, trial: Trial, gradients: bool, path: str) -> None:
        """Look at the result of a timed call."""
        self.case.tried["verified"] = self.case.tried.get("verified", 0) + 1
        truth = self.case.bench.ask("truth", trial, gradients)
        if not truth["accepted"]:
            return
        compared = self.case.bench.ask("compare", trial, gradients, path)
        if compared["status"] != "right":
            result = Result(trial, compared, truth["digest"])
            earlier = {one.digest for one in self.case.results if one.truth != result.truth}
            if result.digest in earlier:
                why = "a timed call gave the result of another one"
                self.case.found(finding_of(rules.STALE, result, why))
            self.case.found(finding_of(rules.TIMED, result))
        else:
            self.case.results.append(Result(trial, compared, truth["digest"]))

    def _outside(self, mode: str) -> None:
        """Calls in a row, by the clock of this process."""
        sections: list[tuple[int, float]] = []
        calls = ROW
        for _ in range(4):
            few = [ordinary(self.case.rng) for _ in range(8)]
            trials = [few[i % len(few)] for i in range(calls)]
            sections.append((calls, self._row(mode, trials)))
            if sections[-1][1] < ENOUGH and calls < MANY:
                calls *= 5  # too short to be told from what a message takes
        reported = self.times[mode].calls
        if not is_believed(reported, sections):
            calls, seconds = min(sections, key=lambda section: section[1] / section[0])
            expected = f"{statistics.median(reported):.3g} s a call, as its own clock says"
            got = f"{seconds / calls:.3g} s a call"
            why = "its own clock was replaced, or what waits for the end of the work"
            self.case.found(
                JudgeFinding(rules.CLOCK, f"{calls} calls in a row", expected, got, why)
            )
        times = self.times[mode]
        tail, usual = statistics.median(times.tails), statistics.median(times.calls)
        if tail > TAIL + TAIL_SHARE * usual:
            got = f"{tail:.3g} s after calls of {usual:.3g} s"
            why = "the GPU was still busy when the call's own stream had nothing left to do"
            self.case.found(JudgeFinding(rules.UNFINISHED, "in timed calls", got=got, why=why))

    def _row(self, mode: str, trials: Sequence[Trial]) -> float:
        """How long calls in a row take, by what the candidate's process cannot reach.

        On a processor, what the system says that it has computed, in the thread that did most:
        other programs do not count. A GPU is waited for, so there the clock counts.
        """
        peer, clock = self.case.peer, self.case.bench.clock
        peer.ask("prepare", mode, list(trials), self.case.gradients)
        peer.ask("arrange")
        before, start = computed(peer.pid), clock()
        peer.ask("row")
        end, after = clock(), computed(peer.pid)
        spent = busiest(before, after)
        if spent is None or self.case.bench.device != "cpu":
            return end - start
        return min(spent, end - start)

    def _repeated(self) -> None:
        """Rows of calls at numbers that came before, between rows at new ones."""
        new: list[float] = []
        old: list[float] = []
        kept = ordinary(self.case.rng)
        for number in range(FEW + 1):
            again = self._row(FORWARD, [kept] * REPEATS)
            fresh = self._row(FORWARD, [ordinary(self.case.rng) for _ in range(REPEATS)])
            if number:  # the first ones fill what is looked up
                old.append(again / REPEATS)
                new.append(fresh / REPEATS)
        if is_looked_up(new, old):
            expected = f"{statistics.median(new):.3g} s, as at new numbers"
            got = f"{statistics.median(old):.3g} s"
            self.case.found(JudgeFinding(rules.CACHED, "numbers that came before", expected, got))

    def _limit(self, modes: Sequence[str]) -> None:
        """What the machine can do, beside what the candidate says."""
        said = self.case.bench.ask("limits", self.case.gradients)
        machine, needs = said["machine"], said["needs"]
        if not machine:
            self.case.notes.append(
                f"no limit is known: {said['why']} while the reference was counted"
            )
            return
        self.limits = {**machine, "needs": needs, "share_of_limit": {}}
        for mode in modes:
            taken = statistics.median(self.times[mode].calls)
            least = needs.get(f"{mode}_bytes", 0.0) / machine["bytes_per_second"]
            work = needs.get(f"{mode}_flops", 0.0) / machine["flops_per_second"]
            shares = {"bytes": round(least / taken, 4), "flops": round(work / taken, 4)}
            self.limits["share_of_limit"][mode] = shares
            counts = needs.get(f"{mode}_bytes", 0.0) >= 4 * machine["cache_bytes"]
            got = f"{taken:.3g} s"
            if counts and taken < IMPOSSIBLE * least:
                expected = f"at least {least:.3g} s to move the numbers once"
                self.case.found(JudgeFinding(rules.IMPOSSIBLE, mode, expected, got))
            elif taken < IMPOSSIBLE * work:
                expected = f"{work:.3g} s for the operations of the reference"
                why = "a better algorithm, or work that is left out"
                self.case.found(JudgeFinding(rules.FEWER, mode, expected, got, why))

    def speedups(self) -> dict[str, Any]:
        """How many times faster than each rival, in each mode."""
        found: dict[str, Any] = {}
        for mode, times in self.times.items():
            mine = times.rounds.get("candidate", [])
            ratios = {
                side: speedup(mine, theirs, self.case.seed)
                for side, theirs in times.rounds.items()
                if side != "candidate"
            }
            found[mode] = {side: ratio for side, ratio in ratios.items() if ratio is not None}
        return {mode: ratios for mode, ratios in found.items() if ratios}

    def seconds(self) -> dict[str, dict[str, float]]:
        """A usual call of each side, in each mode."""
        return {
            mode: {side: statistics.median(rounds) for side, rounds in times.rounds.items()}
            for mode, times in self.times.items()
        }
