"""The search for the best way to run a program, at each of its sizes.

First the program as written and combined as a whole are measured, and before that, if there are few
units, the groupings of them for which nothing must be compiled. Then each group of units is
measured by itself, once for all groups that are written alike, and groupings are ranked by what
their groups cost together. The best few are built and measured side by side with the first: only
that decides. A search can be stopped at any time, and keeps what it has measured by then.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pullback.derive.returned import record_of
from pullback.errors import PullbackWarning
from pullback.graph.cut_problem import is_factor
from pullback.plan.choice import choose_measurement, scores
from pullback.plan.groupings import Groupings, best_groupings, groupings_of
from pullback.plan.measure import Meter, Task, measuring
from pullback.plan.measurements import (
    AS_WRITTEN,
    COMBINED,
    HYBRID,
    NESTED,
    Measurement,
    PlanCandidate,
    build_candidate,
    label_of,
    marked,
    node_count,
)
from pullback.plan.prices import Prices, price_groups
from pullback.plan.progress import stoppable
from pullback.plan.sized_program import SizedProgram
from pullback.plan.timing import interleave, ratio, typical

EVERY = 16  # groupings that are all built and measured, if there are no more
BEST = 4  # else so many of the best, for each backend and policy of saving
FIRST, MORE, MOST = 5, 4, 41  # rounds: at first, each time the answer is not clear, and in all
CLEAR = 0.03  # the width of an interval that is known well enough
PROMISING = 1.5  # times the cost of the best combined program: groups of it are worth a look
HOPELESS = 1.25  # times slower than the best: not measured any further
EXPLORING = 0.75  # the part of the budget until groups must be measured
EAGER_SHARE = 0.4  # the part of it for groupings that need no compiler, before anything is compiled

Report = Callable[[int, int, str], None]


@dataclass
class PlanSearch:
    """The search for the best candidate. `pairs` are the backends and policies of saving to try.

    Each size has Functions of its own: what is compiled for one size serves others less well.
    """

    program: Callable[..., Any]
    cases: Sequence[SizedProgram]
    pairs: Sequence[tuple[str, str]]
    weight: float
    budget: float
    meter: Meter
    report: Report
    functions: dict[tuple[PlanCandidate, int], Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    rows: dict[int, tuple[Measurement, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopped: str = ""

    def __post_init__(self) -> None:
        self.start = self.meter.now()
        self.done, self.total = 0, 3 * len(self.cases)
        self._contenders: dict[int, list[PlanCandidate]] = {}
        self._alive: list[Prices] = []
        self._check: Callable[[], None] = lambda: None
        first = [pair for pair in self.pairs if pair[0] == self.pairs[0][0]]
        self._always = {AS_WRITTEN, *(PlanCandidate(COMBINED, (), *pair) for pair in first)}

    def run(self) -> None:
        """PlanSearch until all is known, the budget is spent, or Ctrl-C."""
        count = len(self.cases)
        try:
            with measuring(), stoppable() as self._check:
                for place, case in enumerate(self.cases):
                    self._explore(case, self._at(EXPLORING * (place + 1) / count))
                for place, case in enumerate(self.cases):
                    part = EXPLORING + (1 - EXPLORING) * (place + 1) / count
                    self._side_by_side(case, self._contenders[case.size], self._at(part))
                self._confirm()
        except KeyboardInterrupt:
            self.stopped = "stopped by Ctrl-C before all was measured"

    def _at(self, part: float) -> float:
        return self.start + part * self.budget

    def _expect(self, count: int) -> None:
        self.total += count

    def _step(self, text: str) -> None:
        self._check()
        self.done += 1
        self.total = max(self.total, self.done)
        self.report(self.done, self.total, text)

    # ---- candidates ----

    def _built(self, candidate: PlanCandidate, case: SizedProgram) -> Any:
        """The Function of a candidate; None if it cannot be built."""
        key = candidate, case.size
        if key not in self.functions:
            self.functions[key] = self._build(candidate, case)
        return self.functions[key]

    def _build(self, candidate: PlanCandidate, case: SizedProgram) -> Any:
        if candidate.save == "factors" and not self._has_factors(candidate, case):
            return None  # it would save what "auto" saves
        self._step(f"building {candidate}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PullbackWarning)
                made = build_candidate(self.program, candidate, case.args)
        except Exception as error:  # a backend that fails is no reason to fail
            self._refuse(candidate, f"{type(error).__name__}: {error}")
            return None
        if made.composed == candidate.how:
            return made
        self._refuse(candidate, made.refusal)
        return None

    def _has_factors(self, candidate: PlanCandidate, case: SizedProgram) -> bool:
        """Whether the policy "factors" saves more than "auto" does for the whole program."""
        whole = replace(candidate, how=COMBINED, groups=(), save="auto")
        made = self.functions.get((whole, case.size))
        if made is None:
            return False
        return any(map(is_factor, record_of(made).general.captured.joint.graph.nodes))

    def _refuse(self, what: PlanCandidate | str, reason: str) -> None:
        self.refused.setdefault(str(what), " ".join(reason.split())[:300])

    def _task(self, candidate: PlanCandidate, case: SizedProgram) -> Task | None:
        """A task for a candidate; None if it cannot be built, or does not run here."""
        function = self._built(candidate, case)
        if function is None:
            return None
        call = self.program if candidate.how == NESTED else function.apply
        task = case.task(call)
        if candidate.how == NESTED:
            return task  # an error of the program itself is the user's
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PullbackWarning)  # the plan says the same
                task()
        except Exception as error:
            self._refuse(candidate, f"{type(error).__name__}: {error}")
            return None
        if function.is_wrong():
            self._refuse(candidate, "its compiled code computes something else than the program")
            return None
        for reason in function.eager_reasons():
            self._note(f"{candidate} runs eagerly in part: {reason}")
        return task

    # ---- which ones to measure ----

    def _explore(self, case: SizedProgram, until: float) -> None:
        """Find the contenders at one size."""
        whole = [AS_WRITTEN]
        self._contenders[case.size] = whole
        self._expect(len(self.pairs))
        self._step(f"{case.size} elements: as written and combined")
        if case.units is None:
            self.refused.setdefault("every grouping", case.reason)
            self._side_by_side(case, whole, until, rounds=FIRST)
            return
        is_single = len(case.units.units) < 2
        space = groupings_of(case.waits)
        hybrids = [] if is_single else self._at_once(case, space)
        whole += [PlanCandidate(COMBINED, (), *pair) for pair in self.pairs]
        self._side_by_side(case, whole, self._at(1.0), rounds=FIRST)
        if is_single:
            return
        whole += hybrids
        self._note(space.description)
        for pair in self._promising(case):
            if self._is_over(until):
                self._note("not every backend and policy was searched: the budget was spent")
                return
            whole += self._ranked(case, space, pair, until)

    def _at_once(self, case: SizedProgram, space: Groupings) -> list[PlanCandidate]:
        """Every grouping of few, if no compiler is needed, measured before one is called.

        To compile takes seconds for each group, which may be more than there are.
        """
        pair = next((pair for pair in self.pairs if pair[0] == "eager"), None)
        if pair is None or pair == self.pairs[0] or not self.budget:
            return []
        every = best_groupings(space, lambda group: 1.0, EVERY + 1)
        if len(every) > EVERY:
            return []
        nodes = [tuple(group for group in row if len(group) > 1) for _, row in every]
        nodes = [groups for groups in nodes if groups and groups != (space.everything,)]
        found = [PlanCandidate(HYBRID, groups, *pair) for groups in nodes]
        until = self.meter.now() + EAGER_SHARE * self.budget / len(self.cases)
        self._side_by_side(case, [AS_WRITTEN, *found], until, rounds=FIRST, is_last=False)
        return found

    def _promising(self, case: SizedProgram) -> list[tuple[str, str]]:
        """The backends and policies, those first that do well on the whole program."""
        cost = scores(self.rows[case.size], self.weight)
        whole = [row for row in cost if row.candidate.how == COMBINED]
        known = {(row.candidate.backend, row.candidate.save): cost[row] for row in whole}
        known = {pair: known.get(pair, math.inf) for pair in self.pairs}
        best = min(known.values())
        hopeful = [pair for pair in self.pairs if known[pair] <= best * PROMISING]
        for backend, save in self.pairs:
            if (backend, save) in hopeful or math.isinf(known[backend, save]):
                continue  # there is another note for what was not measured
            self._note(
                f'no grouping was built with backend "{backend}" and save "{save}": '
                "combined with them, the program is far from the best"
            )
        return sorted(hopeful, key=known.__getitem__)

    def _ranked(
        self, case: SizedProgram, space: Groupings, pair: tuple[str, str], until: float
    ) -> list[PlanCandidate]:
        """The groupings to measure with one backend and policy."""
        prices = self._prices(case, space, pair, until)
        for group, reason in prices.refused.items():
            if len(group) > 1:
                self._refuse(f"[{' '.join(case.names[unit] for unit in group)}]", reason)
        if prices.left:
            self._note(f"{prices.left} groups were not measured: the budget was spent")
        ranked = best_groupings(space, prices.cost, EVERY + 1)
        if len(ranked) > EVERY:
            ranked = ranked[:BEST]
        found = []
        for _, grouping in ranked:
            nodes = tuple(group for group in grouping if group in prices.nodes)
            if nodes and nodes != (space.everything,):
                found.append(PlanCandidate(HYBRID, nodes, *pair))
        return found

    def _prices(
        self, case: SizedProgram, space: Groupings, pair: tuple[str, str], until: float
    ) -> Prices:
        base = next(row for row in self.rows[case.size] if row.candidate == AS_WRITTEN)
        self._expect(len(space.groups))
        prices = price_groups(
            case,
            space,
            pair,
            meter=self.meter,
            weights=((1 - self.weight) / base.seconds, self.weight / ((base.saved or 0) + 1)),
            is_over=lambda: self._is_over(until),
            report=self._step,
        )
        self._alive.append(prices)
        self._expect(-prices.left)
        return prices

    def _is_over(self, until: float) -> bool:
        self._check()
        return self.meter.now() > until

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ---- measuring side by side ----

    def _side_by_side(
        self,
        case: SizedProgram,
        candidates: Sequence[PlanCandidate],
        until: float,
        *,
        rounds: int = MOST,
        is_last: bool = True,
    ) -> None:
        """Measure candidates at one size, and keep what was known of others.

        Those that there is no time to build are left out; a note says so if this `is_last`.
        """
        tasks: dict[PlanCandidate, Task] = {}
        for candidate in dict.fromkeys(candidates):
            is_new = candidate not in self._always and (candidate, case.size) not in self.functions
            if is_new and self._is_over(until):
                if is_last:
                    self._note("not every backend and policy was searched: the budget was spent")
                continue
            task = self._task(candidate, case)
            if task is not None:
                tasks[candidate] = task
        self._step(f"{case.size} elements: {len(tasks)} candidates side by side")
        taken: dict[PlanCandidate, list[float]] = {}
        alive = dict(tasks)
        while alive and len(next(iter(taken.values()), ())) < rounds:
            is_first = not taken
            count = FIRST if is_first else MORE
            over = (lambda: False) if is_first else (lambda: self._is_over(until))
            interleave(self.meter.time, alive, taken, rounds=count, is_over=over)
            if self._is_over(until) or self._is_clear(taken, alive):
                break
        self._keep(case, tasks, taken)

    def _is_clear(
        self, taken: dict[PlanCandidate, list[float]], alive: dict[PlanCandidate, Task]
    ) -> bool:
        """Whether more rounds would not change the choice; drops candidates that are far behind."""
        if self.weight == 1:
            return True
        leader = min(alive, key=lambda one: ratio(taken[one], taken[AS_WRITTEN])[0])
        is_clear = True
        for candidate in list(alive):
            middle, low, high = ratio(taken[candidate], taken[leader])
            if low > HOPELESS and self.weight == 0 and candidate.how == HYBRID:
                del alive[candidate]
            is_clear &= low > 1 or high - low < CLEAR * middle
        return is_clear

    def _keep(
        self,
        case: SizedProgram,
        tasks: dict[PlanCandidate, Task],
        taken: dict[PlanCandidate, list[float]],
    ) -> None:
        """Turn what was measured into rows."""
        old = {row.candidate: row for row in self.rows.get(case.size, ())}
        fresh = {}
        for candidate, task in tasks.items():
            known = old.get(candidate)
            evidence = (
                (known.saved, known.peak, known.error) if known else self._evidence(case, task)
            )
            fresh[candidate] = Measurement(
                candidate,
                label_of(candidate, case.names) or "as written",
                node_count(candidate, len(case.names)),
                typical(taken[candidate]),
                *ratio(taken[candidate], taken[AS_WRITTEN]),
                *evidence,
            )
        self.rows[case.size] = marked(tuple((old | fresh).values()), case.rounding)

    def _evidence(self, case: SizedProgram, task: Task) -> tuple[int, int | None, float | None]:
        """Saved bytes, peak bytes and error of a task."""
        saved, peak = self.meter.saved(task, case.spared), self.meter.peak(task)
        exact = case.reference(task)
        return saved, peak, None if exact is None else self.meter.error(task, exact)

    # ---- confirmation ----

    def _confirm(self) -> None:
        """Measure again, at each size, the winners of all sizes and what needs no grouping.

        The best of many noisy measurements is often not the best candidate, and the size at which
        a choice overtakes another is known only from both at both sizes.
        """
        winners = {
            size: choose_measurement(rows, self.weight).candidate
            for size, rows in self.rows.items()
            if rows
        }
        for case in self.cases:
            rows = {row.candidate: row for row in self.rows[case.size]}
            rivals = list(dict.fromkeys(winners.values()))
            if winners[case.size].how != HYBRID and all(one in rows for one in rivals):
                continue
            whole = [row for row in rows.values() if row.candidate.how == COMBINED]
            cost = scores(list(rows.values()), self.weight)
            combined = [min(whole, key=cost.__getitem__).candidate] if whole else []
            self._side_by_side(case, [AS_WRITTEN, *combined, *rivals], self._at(1.0))
