"""A plan: the best way to run a program at each size, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pullback.compose.nested import callable_of, composition
from pullback.errors import PlanFileError
from pullback.plan import figure, store, text
from pullback.plan.build import build
from pullback.plan.case import case_of
from pullback.plan.choice import follow
from pullback.plan.evidence import Evidence
from pullback.plan.fingerprint import examples_from, fingerprint_of
from pullback.plan.rows import NESTED, Candidate, Row, front


class Plan:
    """The best way to run a program, and why.

    `best` is called as the program is. `function` is the `Function` behind it. `evidence` is
    everything that was measured.
    """

    __slots__ = ("best", "evidence", "function", "program")

    def __init__(
        self,
        program: Callable[..., Any],
        evidence: Evidence,
        functions: Mapping[Candidate, Any],
    ) -> None:
        self.program = program
        self.evidence = evidence
        chosen = evidence.chosen
        # The program as written needs no door to go through.
        calls = [program if c.how == NESTED else functions[c].apply for c in chosen]
        if len(chosen) == 1:
            self.best: Callable[..., Any] = calls[0]
            self.function: Any = functions[chosen[0]]
            return
        place, name = evidence.place, evidence.argument
        self.best = follow(program, calls, evidence.borders, place, name)
        self.function = composition(program, "planned", self.best)
        self.function.explain = staticmethod(self.explain)

    def table(self) -> str:
        """Every candidate that was measured, size by size: time, bytes, error, nodes."""
        return text.table(self.evidence)

    def pareto(self, size: int | None = None) -> tuple[Row, ...]:
        """The rows at a size that nothing beats in both time and saved bytes, fastest first.

        At the largest size, unless one is given: the nearest one that was measured.
        """
        sized = self.evidence.sized
        at = sized[-1] if size is None else min(sized, key=lambda one: abs(one.size - size))
        return tuple(front(at.rows))

    def explain(self) -> str:
        """Why this one was chosen, and at which sizes another would be."""
        return text.explain(self.evidence)

    def plot(self, path: str | Path) -> None:
        """Write a figure of time against saved bytes, as SVG."""
        figure.write(self.evidence, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; `pb.load_plan` reads it."""
        store.write(self.evidence, Path(path))

    def __repr__(self) -> str:
        return f"<Plan of {self.evidence.program}: {text.chosen_text(self.evidence)}>"


def load_plan(path: str | Path, program: Callable[..., Any], *examples: Any) -> Plan:
    """The plan in the file `path`, for the program that it was measured with.

    Nothing is measured again. The program is recorded once, to see that it is the same: on
    `examples`, or on tensors like those of the plan's smallest size. Raises `PlanFileError` for a
    program that was written anew, and for a file that is no plan.
    """
    program, path = callable_of(program), Path(path)
    evidence = store.read(path)
    args = examples or store.guarded(path, lambda: examples_from(evidence.signature))
    units = case_of(program, args, 0).units
    if fingerprint_of(program, units) != evidence.fingerprint:
        raise PlanFileError(
            f"`{getattr(program, '__name__', 'program')}` must be the program that was planned",
            at=str(path),
            expected=f"`{evidence.program}` as it was written then, and the same calls in it",
            got="another text, or other calls",
            fix="plan again: pb.plan(program, *examples).save(path)",
        )
    return Plan(program, evidence, {one: build(program, one, args) for one in evidence.chosen})
