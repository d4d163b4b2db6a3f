"""One candidate in its own process: is it right, how fast is it, and what does it do beside?"""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.candidates import rules
from pullback.candidates.host import LostError, ReferenceLostError, RefusedError
from pullback.candidates.race import Race
from pullback.candidates.reasons import BY_SHAPE, Result, finding_of, reasons_of
from pullback.candidates.rules import JudgeFinding
from pullback.candidates.sections import BOTH_WAYS, FORWARD
from pullback.candidates.sources import Source
from pullback.candidates.trials import GIVEN, Trial, ordinary, trials_of
from pullback.candidates.verdict import Verdict

if TYPE_CHECKING:
    from pullback.candidates.judging import Bench

FIRST = 300.0  # seconds that a call may take that loads, builds or tunes something
CHECKING = {"cpu": 4.0, "cuda": 8.0}  # that `pb.check` computes, then no rule is begun
LARGE = 1 << 20  # numbers of an example for which `pb.check` gets a smaller one

# What a result may be kept by, from the finest to the coarsest.
KEYS = {
    "identity": "it is kept by the identity of its inputs",
    "address": "it is kept by the address of its inputs",
    "shape": BY_SHAPE,
}


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
        self.checked: list[dict[str, Any]] = []
        self.gradients = bool(bench.known["has_gradient"]) and bench.settings.gradients is not False
        self.peer = bench.host.fork("candidate")
        self.race = Race(self)

    # ---- the order of events ----

    def verdict(self) -> Verdict:
        """All of it, as far as the candidate comes."""
        start = self.bench.clock()
        try:
            self._judged()
        except (LostError, RefusedError) as error:
            self.found(JudgeFinding(rules.FAILS, got=str(error)))
        except ReferenceLostError as lost:
            self.peer.stop()
            self.bench.ask_again(lost)
            self.found(JudgeFinding(rules.HELD_BACK, got=str(lost)))
        finally:
            self.peer.stop()
        if self.bench.was_held_back:
            self.found(JudgeFinding(rules.HELD_BACK, got="it was stopped, or made to wait"))
        broken = {what for finding in self.findings for what in finding.rule.breaks}
        is_right = "right" not in broken
        ratios = self.race.speedups() if is_right else {}
        mode = BOTH_WAYS if BOTH_WAYS in ratios else FORWARD
        return Verdict(
            self.source.name or self.source.title,
            self.bench.reference.name or self.bench.reference.title,
            is_right,
            "honest" not in broken,
            tuple(sorted(self.findings, key=lambda f: (not f.rule.breaks, f.rule.code))),
            ratios.get(mode, {}).get("reference"),
            ratios,
            self.race.seconds() if is_right else {},
            self.race.limits,
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
            self.found(JudgeFinding(rules.FAILS, "where it is loaded", got=str(error)))
            return
        self.donated = set(loaded["donated"])
        if not self._is_run_at_given(loaded["is_function"]):
            return
        self._tries()
        self._poisoned()
        self._name_wrong()
        self._kept_results()
        if self._is_right():
            self.race.run()
        self._tampered()
        if self.settings.check and self._is_right():
            self._check()

    def found(self, finding: JudgeFinding) -> None:
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
                self.found(JudgeFinding(rules.NO_GRADIENT if must else rules.FORWARD_ONLY))
                self.gradients, said = False, plain
        if "refused" in said:
            self.found(JudgeFinding(rules.FAILS, "at the given inputs", got=said["refused"]))
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
            self.found(JudgeFinding(rules.LAZY, trial.label(), "a torch.Tensor", said["lazy"]))
        if said["unfinished"]:
            why = "the numbers changed after the call: a thread, or another stream, writes them"
            self.found(JudgeFinding(rules.UNFINISHED, trial.label(), why=why))
        changed = set(said["changed"]) - set(self.bench.known["changes"]) - self.donated
        if changed:
            names = self.bench.known["names"]
            told = ", ".join(names[i] if i < len(names) else f"tensor {i}" for i in sorted(changed))
            why = "a reference that runs after it would see other inputs"
            self.found(JudgeFinding(rules.INPUTS, trial.label(), "inputs as given", told, why))
        if said["same_code"]:
            self.found(JudgeFinding(rules.SAME_CODE, trial.label()))
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
                    self.found(JudgeFinding(rules.FAILS, trial.label(), got=said["refused"]))
                continue
            compared = self.bench.ask("compare", trial, self.gradients, path)
            self.results.append(Result(trial, compared, truth["digest"]))
        self.tried |= {"trials": len(self.results), "dropped": dropped, "refused": len(refused)}
        if not any(r.trial.is_ordinary or r.trial.values == GIVEN for r in self.results):
            why = "no result at the given sizes could be compared"
            self.found(JudgeFinding(rules.FAILS, why=why))
        elif refused:
            self.found(JudgeFinding(rules.REFUSES, got="; ".join(refused[:3])[:400]))

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
            self.found(finding_of(rules.UNWRITTEN, replace(plain, compared=compared), why))

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
            self.found(finding_of(rules.STALE, shown, KEYS[stale[-1]]))

    def _name_wrong(self) -> None:
        """Findings about the results of all trials."""
        if all(result.is_right for result in self.results):
            return
        if any(one.rule in (rules.UNWRITTEN, rules.INPUTS) for one in self.findings):
            return
        for finding in reasons_of(self.results, ignored=self._ignored()):
            self.found(finding)

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

    # ---- honest ----

    def _tampered(self) -> None:
        said = self.peer.ask("tampered")
        if said["replaced"]:
            names = ", ".join(said["replaced"][:5])
            self.found(JudgeFinding(rules.PATCHED, "after its calls", got=names))
        if said["settings"]:
            self.found(JudgeFinding(rules.SETTINGS, got="; ".join(said["settings"])))

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
        self.tried |= {"rules": said["rules"], "rules_left_out": said["left"]}
        if said["left"]:
            which = f"{said['left']} of the {said['rules']} rules of pb.check"
            self.notes.append(f"not tried: {which}, after {limit:g} s of computing")
        for one in self.checked:
            if one["severity"] == "wrong":
                told = f"{one['code']} {one['name']}: {one['sentence']}"
                self.found(
                    JudgeFinding(rules.UNSOUND, one["at"], one["expected"], one["got"], told)
                )
