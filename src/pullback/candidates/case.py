"""One candidate in its own process: is it right, how fast is it, and what does it do beside?"""

from __future__ import annotations

import random
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.candidates import rules
from pullback.candidates.host import LostError, RefusedError
from pullback.candidates.reasons import BY_SHAPE, Result, finding_of, reasons_of
from pullback.candidates.rules import JudgeFinding
from pullback.candidates.sections import BACKWARD, BOTH_WAYS, FORWARD
from pullback.candidates.sources import Source
from pullback.candidates.timing import FEW, is_believed, is_looked_up, speedup
from pullback.candidates.trials import GIVEN, Trial, ordinary, trials_of
from pullback.candidates.verdict import Verdict

if TYPE_CHECKING:
    from pullback.candidates.judging import Bench

FIRST = 300.0  # seconds that a call may take that loads, builds or tunes something
CALLS = {"cpu": 3, "cuda": 5}  # in a section
ROUNDS = (FEW + 2, 30)
SECONDS = {"cpu": 3.0, "cuda": 6.0}  # of timing
CHECKING = {"cpu": 4.0, "cuda": 8.0}  # of `pb.check`, after which no rule is begun
ROW, MANY, ENOUGH = 40, 1000, 0.02  # calls by the clock outside, and seconds that tell something
REPEATS = 16  # calls in a row at the same numbers, or at new ones
IMPOSSIBLE = 0.5  # of the time that the machine needs to move the numbers
HEAVY, SELDOM = 1 << 24, 0.25  # bytes of results of which not every row of calls is looked at
LARGE = 1 << 20  # numbers of an example for which `pb.check` gets a smaller one
TAIL, TAIL_SHARE = 5e-5, 0.25  # seconds of work after a call, and share of the call

# What a result may be kept by, from the finest to the coarsest.
KEYS = {
    "identity": "it is kept by the identity of its inputs",
    "address": "it is kept by the address of its inputs",
    "shape": BY_SHAPE,
}


@dataclass
class Times:
    """Seconds per call: one number per round, and every call of the candidate."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    calls: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)


class Case:
    """One candidate, and what is known of it so far."""

    def __init__(self, bench: Bench, source: Source) -> None:
        self.bench, self.source, self.settings = bench, source, bench.settings
        seed = bench.settings.seed
        self.seed = secrets.randbits(62) if seed is None else seed
        self.rng = random.Random(self.seed)
        self.findings: list[JudgeFinding] = []
        self.notes = list(bench.notes)
        self.tried: dict[str, Any] = {}
        self.results: list[Result] = []
        self.times: dict[str, Times] = {}
        self.limits: dict[str, Any] = {}
        self.checked: list[dict[str, Any]] = []
        self.gradients = bool(bench.known["has_gradient"]) and bench.settings.gradients is not False
        self.peer = bench.host.fork("candidate")

    # ---- the order of events ----

    def verdict(self) -> Verdict:
        """All of it, as far as the candidate comes."""
        start = self.bench.clock()
        try:
            self._judged()
        except (LostError, RefusedError) as error:
            self._found(JudgeFinding(rules.FAILS, got=str(error)))
        finally:
            self.peer.stop()
        broken = {what for finding in self.findings for what in finding.rule.breaks}
        is_right = "right" not in broken
        ratios = self._speedups() if is_right else {}
        mode = BOTH_WAYS if BOTH_WAYS in ratios else FORWARD
        return Verdict(
            self.source.name or self.source.title,
            self.bench.reference.name or self.bench.reference.title,
            is_right,
            "honest" not in broken,
            tuple(sorted(self.findings, key=lambda f: (not f.rule.breaks, f.rule.code))),
            ratios.get(mode, {}).get("reference"),
            ratios,
            self._seconds() if is_right else {},
            self.limits,
            self.tried,
            tuple(self.checked),
            tuple(self.notes),
            self.seed,
            self.bench.clock() - start,
        )

    def _judged(self) -> None:
        try:
            loaded = self.peer.ask("load", self.source, self.bench.examples, seconds=FIRST)
        except RefusedError as error:
            self._found(JudgeFinding(rules.FAILS, "where it is loaded", got=str(error)))
            return
        self.donated = set(loaded["donated"])
        if not self._is_run_at_given(loaded["is_function"]):
            return
        self._tries()
        self._poisoned()
        self._name_wrong()
        self._kept_results()
        if self._is_right():
            self._time()
        self._tampered()
        if self.settings.check and self._is_right():
            self._check()

    def _found(self, finding: JudgeFinding) -> None:
        """Add a finding; one for each rule is enough."""
        if all(one.rule is not finding.rule for one in self.findings):
            self.findings.append(finding)

    def _is_right(self) -> bool:
        return not any("right" in finding.rule.breaks for finding in self.findings)

    # ---- right ----

    def _is_run_at_given(self, is_function: bool) -> bool:
        """Whether the candidate runs at the given inputs; it decides whether it has a gradient."""
        first = ordinary(self.rng)
        if not self.bench.ask("truth", first, False)["accepted"]:
            first = replace(first, values=GIVEN)
        said = self._call(first, self.bench.path(), self.gradients)
        has_gradient = bool(said.get("has_gradient"))
        if self.gradients and not has_gradient:
            plain = self._call(first, self.bench.path(), False)
            if "refused" not in plain:
                must = self.settings.gradients or is_function
                self._found(JudgeFinding(rules.NO_GRADIENT if must else rules.FORWARD_ONLY))
                self.gradients, said = False, plain
        if "refused" in said:
            self._found(JudgeFinding(rules.FAILS, "at the given inputs", got=said["refused"]))
            return False
        return True

    def _call(
        self, trial: Trial, path: str, gradients: bool, *, poison: bool = False, watch: bool = False
    ) -> dict[str, Any]:
        """One call of the candidate, with what it did beside noted."""
        codes = self.bench.known["codes"] if watch else []
        asked = (trial, path, gradients, poison, codes)
        said: dict[str, Any] = self.peer.ask("call", *asked, seconds=FIRST)
        if "refused" in said:
            return said
        if said["lazy"]:
            self._found(JudgeFinding(rules.LAZY, trial.label(), "a torch.Tensor", said["lazy"]))
        if said["unfinished"]:
            why = "the numbers changed after the call: a thread, or another stream, writes them"
            self._found(JudgeFinding(rules.UNFINISHED, trial.label(), why=why))
        changed = set(said["changed"]) - set(self.bench.known["changes"]) - self.donated
        if changed:
            names = self.bench.known["names"]
            told = ", ".join(names[i] if i < len(names) else f"tensor {i}" for i in sorted(changed))
            why = "a reference that runs after it would see other inputs"
            self._found(JudgeFinding(rules.INPUTS, trial.label(), "inputs as given", told, why))
        if said["same_code"]:
            self._found(JudgeFinding(rules.SAME_CODE, trial.label()))
        return said

    def _tries(self) -> None:
        """Every trial that the reference accepts."""
        refused: list[str] = []
        dropped = 0
        trials = list(trials_of(self.bench.known["symbols"], self.rng))
        for number, trial in enumerate(trials):
            truth = self.bench.ask("truth", trial, self.gradients)
            if not truth["accepted"]:
                dropped += 1
                continue
            path = self.bench.path()
            said = self._call(trial, path, self.gradients, watch=number == 1)
            if "refused" in said:
                refused.append(f"{trial.label()}: {said['refused']}")
                if trial.is_ordinary or trial.values == GIVEN:
                    self._found(JudgeFinding(rules.FAILS, trial.label(), got=said["refused"]))
                continue
            compared = self.bench.ask("compare", trial, self.gradients, path)
            self.results.append(Result(trial, compared, truth["digest"]))
        self.tried |= {"trials": len(self.results), "dropped": dropped, "refused": len(refused)}
        if not any(r.trial.is_ordinary or r.trial.values == GIVEN for r in self.results):
            why = "no result at the given sizes could be compared"
            self._found(JudgeFinding(rules.FAILS, why=why))
        elif refused:
            self._found(JudgeFinding(rules.REFUSES, got="; ".join(refused[:3])[:400]))

    def _poisoned(self) -> None:
        """One more call, where fresh memory holds NaN."""
        plain = next((r for r in self.results if r.trial.is_ordinary), None)
        if plain is None:
            return
        path = self.bench.path()
        said = self._call(plain.trial, path, self.gradients, poison=True)
        if "refused" in said:
            return
        compared = self.bench.ask("compare", plain.trial, self.gradients, path)
        if compared.get("has_nan") and (plain.is_right or compared["digest"] != plain.digest):
            why = "fresh memory held NaN: what was there before comes back otherwise"
            self._found(finding_of(rules.UNWRITTEN, replace(plain, compared=compared), why))

    def _kept_results(self) -> None:
        """Calls at other numbers in the same tensors, in the same memory, or elsewhere."""
        if not any(result.is_right for result in self.results if result.trial.is_ordinary):
            return
        stale: list[str] = []
        shown: Result | None = None
        for how in KEYS:
            first, second = ordinary(self.rng), ordinary(self.rng)
            truth = self.bench.ask("truth", second, False)
            paths = [self.bench.path(), self.bench.path()]
            said = self.peer.ask("again", first, second, how, paths)
            if "refused" in said or not truth["accepted"]:
                continue
            before = self.bench.ask("digest", paths[0])["digest"]
            Path(paths[0]).unlink(missing_ok=True)
            compared = self.bench.ask("compare", second, False, paths[1])
            if compared["status"] == "wrong" and compared["digest"] == before:
                stale.append(how)
                shown = Result(second, compared)
        if shown is not None:
            self._found(finding_of(rules.STALE, shown, KEYS[stale[-1]]))

    def _name_wrong(self) -> None:
        """Findings about the results of all trials."""
        if all(result.is_right for result in self.results):
            return
        if any(one.rule in (rules.UNWRITTEN, rules.INPUTS) for one in self.findings):
            return
        for finding in reasons_of(self.results, ignored=self._ignored()):
            self._found(finding)

    def _ignored(self) -> str:
        """A part of the inputs that the reference reads and the candidate does not."""
        trial = ordinary(self.rng)
        for side in (0, 1):
            theirs = self.bench.ask("reacts", trial, side)["reacts"]
            try:
                mine = self.peer.ask("reacts", trial, side)["reacts"]
            except RefusedError:
                continue
            for place, reacts in enumerate(theirs):
                if reacts and not mine[place]:
                    name = self.bench.known["names"][place]
                    return f"the {'last' if side else 'first'} half of `{name}`"
        return ""

    # ---- faster ----

    def _time(self) -> None:
        modes = [FORWARD, BACKWARD, BOTH_WAYS] if self.gradients else [FORWARD]
        budget = self.settings.seconds or SECONDS[self.bench.device]
        rivals = ["reference", "compiled"] if self.bench.is_compiled else ["reference"]
        self._interleave(modes, rivals, budget)
        self._outside(modes[-1])
        self._repeated()
        self._limit(modes)
        self.tried["timed"] = sum(len(times.calls) for times in self.times.values())

    def _interleave(self, modes: Sequence[str], rivals: Sequence[str], budget: float) -> None:
        """Sections of the candidate and its rivals in turn, the first of each not counted."""
        clock, start = self.bench.clock, self.bench.clock()
        least, most = ROUNDS
        for number in range(most + 1):
            if number > least and clock() - start > budget:
                return
            for mode in modes:
                times = self.times.setdefault(mode, Times())
                sides = ["candidate", *rivals]
                self.rng.shuffle(sides)
                for side in sides:
                    taken, tails = self._section(mode, side)
                    if number == 0:
                        continue  # caches, pools and clocks are warming up
                    times.rounds.setdefault(side, []).append(statistics.median(taken))
                    if side == "candidate":
                        times.calls += taken
                        times.tails += tails

    def _section(self, mode: str, side: str) -> tuple[list[float], list[float]]:
        trials = [ordinary(self.rng) for _ in range(CALLS[self.bench.device])]
        if side != "candidate":
            self.bench.ask("prepare", mode, trials, self.gradients)
            which = "eager" if side == "reference" else "compiled"
            return self.bench.ask("go", which, self.settings.cold)["times"], []
        said = self._own_section(mode, trials)
        times = [float(t) for t in said["times"]], [float(t) for t in said["tails"]]
        if self.bench.known["bytes"] > HEAVY and self.rng.random() > SELDOM:
            return times
        number = self.rng.randrange(len(trials))  # which one nobody could know before
        path = self.bench.path()
        self.peer.ask("give", [number], [path])
        is_whole = mode != FORWARD and self.gradients
        self._verify(trials[number], is_whole, path)
        return times

    def _own_section(self, mode: str, trials: Sequence[Trial]) -> dict[str, Any]:
        self.peer.ask("prepare", mode, list(trials), self.gradients)
        said: dict[str, Any] = self.peer.ask("go", self.settings.cold)
        if said["unfinished"]:
            self._found(JudgeFinding(rules.UNFINISHED, "in timed calls"))
        if said["reused"]:
            why = "several calls gave results in the same memory"
            self._found(JudgeFinding(rules.REUSED, "in timed calls", why=why))
        return said

    def _verify(self, trial: Trial, gradients: bool, path: str) -> None:
        """Look at the result of a timed call."""
        self.tried["verified"] = self.tried.get("verified", 0) + 1
        truth = self.bench.ask("truth", trial, gradients)
        if not truth["accepted"]:
            return
        compared = self.bench.ask("compare", trial, gradients, path)
        if compared["status"] != "right":
            result = Result(trial, compared, truth["digest"])
            earlier = {one.digest for one in self.results if one.truth != result.truth}
            if result.digest in earlier:
                why = "a timed call gave the result of another one"
                self._found(finding_of(rules.STALE, result, why))
            self._found(finding_of(rules.TIMED, result))
        else:
            self.results.append(Result(trial, compared, truth["digest"]))

    def _outside(self, mode: str) -> None:
        """Calls in a row, by the clock of this process."""
        sections: list[tuple[int, float]] = []
        calls = ROW
        for _ in range(4):
            few = [ordinary(self.rng) for _ in range(8)]
            trials = [few[i % len(few)] for i in range(calls)]
            sections.append((calls, self._row(mode, trials)))
            if sections[-1][1] < ENOUGH and calls < MANY:
                calls *= 5  # too short to be told from what a message takes
        told = self.times[mode].calls
        if not is_believed(told, sections):
            calls, seconds = min(sections, key=lambda section: section[1] / section[0])
            expected = f"{statistics.median(told):.3g} s a call, as its own clock says"
            got = f"{seconds / calls:.3g} s a call"
            why = "its own clock was replaced, or what waits for the end of the work"
            self._found(JudgeFinding(rules.CLOCK, f"{calls} calls in a row", expected, got, why))
        times = self.times[mode]
        tail, usual = statistics.median(times.tails), statistics.median(times.calls)
        if tail > TAIL + TAIL_SHARE * usual:
            got = f"{tail:.3g} s after calls of {usual:.3g} s"
            why = "the GPU was still busy when the call's own stream had nothing left to do"
            self._found(JudgeFinding(rules.UNFINISHED, "in timed calls", got=got, why=why))

    def _row(self, mode: str, trials: Sequence[Trial]) -> float:
        """How long calls in a row take, by what the candidate's process cannot reach.

        On a processor, what the system says that it has computed: other programs do not count. A
        GPU is waited for, so there the clock counts.
        """
        self.peer.ask("prepare", mode, list(trials), self.gradients)
        self.peer.ask("arrange")
        before, start = self.peer.work(), self.bench.clock()
        self.peer.ask("row")
        after, end = self.peer.work(), self.bench.clock()
        if before is None or after is None or self.bench.device != "cpu":
            return end - start
        return min(after - before, end - start)

    def _repeated(self) -> None:
        """Rows of calls at numbers that came before, between rows at new ones."""
        new: list[float] = []
        old: list[float] = []
        kept = ordinary(self.rng)
        for number in range(FEW + 1):
            again = self._row(FORWARD, [kept] * REPEATS)
            fresh = self._row(FORWARD, [ordinary(self.rng) for _ in range(REPEATS)])
            if number:  # the first ones fill what is looked up
                old.append(again / REPEATS)
                new.append(fresh / REPEATS)
        if is_looked_up(new, old):
            expected = f"{statistics.median(new):.3g} s, as at new numbers"
            got = f"{statistics.median(old):.3g} s"
            self._found(JudgeFinding(rules.CACHED, "numbers that came before", expected, got))

    def _limit(self, modes: Sequence[str]) -> None:
        """What the machine can do, beside what the candidate says."""
        said = self.bench.ask("limits", self.gradients)
        machine, needs = said["machine"], said["needs"]
        if not machine:
            self.notes.append(f"no limit is known: {said['why']} while the reference was counted")
            return
        self.limits = {**machine, "needs": needs, "share_of_limit": {}}
        for mode in modes:
            taken = statistics.median(self.times[mode].calls)
            least = needs.get(f"{mode}_bytes", 0.0) / machine["bytes_per_second"]
            work = needs.get(f"{mode}_flops", 0.0) / machine["flops_per_second"]
            shares = {"bytes": round(least / taken, 4), "flops": round(work / taken, 4)}
            self.limits["share_of_limit"][mode] = shares
            counts = needs.get(f"{mode}_bytes", 0.0) >= 4 * machine["cache_bytes"]
            told = f"{taken:.3g} s"
            if counts and taken < IMPOSSIBLE * least:
                expected = f"at least {least:.3g} s to move the numbers once"
                self._found(JudgeFinding(rules.IMPOSSIBLE, mode, expected, told))
            elif taken < IMPOSSIBLE * work:
                expected = f"{work:.3g} s for the operations of the reference"
                why = "a better algorithm, or work that is left out"
                self._found(JudgeFinding(rules.FEWER, mode, expected, told, why))

    def _speedups(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for mode, times in self.times.items():
            mine = times.rounds.get("candidate", [])
            ratios = {
                side: speedup(mine, theirs, self.seed)
                for side, theirs in times.rounds.items()
                if side != "candidate"
            }
            found[mode] = {side: ratio for side, ratio in ratios.items() if ratio is not None}
        return {mode: ratios for mode, ratios in found.items() if ratios}

    def _seconds(self) -> dict[str, dict[str, float]]:
        return {
            mode: {side: statistics.median(rounds) for side, rounds in times.rounds.items()}
            for mode, times in self.times.items()
        }

    # ---- honest ----

    def _tampered(self) -> None:
        said = self.peer.ask("tampered")
        if said["replaced"]:
            names = ", ".join(said["replaced"][:5])
            self._found(JudgeFinding(rules.PATCHED, "after its calls", got=names))
        if said["settings"]:
            self._found(JudgeFinding(rules.SETTINGS, got="; ".join(said["settings"])))

    def _small_trial(self) -> Trial | None:
        """The trial with the smallest inputs that was gone through, where those given are large."""
        sizes = [r.trial for r in self.results if r.trial.sizes and not r.trial.layout]
        if self.bench.known["elements"] < LARGE or not sizes:
            return None
        return min(sizes, key=lambda trial: sum(trial.sizes.values()))

    def _check(self) -> None:
        """What `pb.check` finds, with the reference."""
        if not self.gradients:
            self.notes.append("pb.check was not run: there is no gradient to check")
            return
        limit = CHECKING[self.bench.device]
        peer = self.bench.host.fork("checker")
        try:
            said = peer.ask(
                "check",
                self.source,
                self.bench.reference,
                self.bench.examples,
                self._small_trial(),
                self.settings.profile,
                limit,
                seconds=limit + 120.0,
            )
        except (RefusedError, LostError) as error:
            self.notes.append(f"pb.check could not be run: {error}")
            return
        finally:
            peer.stop()
        self.checked = said["findings"]
        self.tried |= {"rules": said["rules"], "rules_left_out": said["refused"]}
        for one in self.checked:
            if one["severity"] == "wrong":
                told = f"{one['code']} {one['name']}: {one['sentence']}"
                self._found(
                    JudgeFinding(rules.UNSOUND, one["at"], one["expected"], one["got"], told)
                )
