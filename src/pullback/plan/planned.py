"""A plan: the best way to run a program at each size, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from pullback.compose.nested import callable_of, composition, nest
from pullback.errors import PlanFileError, PullbackError, type_and_line
from pullback.pages import page_of
from pullback.plan import figure, store, text
from pullback.plan.choice import follow
from pullback.plan.evidence import PlanEvidence, Sized
from pullback.plan.fingerprint import fingerprint_of, redrawn_arguments
from pullback.plan.measurements import NESTED, Measurement, PlanCandidate, build_candidate, front
from pullback.plan.sized_program import sized_program

UNCOMPILED = ("", "eager")

C = TypeVar("C", bound=Callable[..., Any])


class Plan(Generic[C]):
    """The best way to run a program, and why.

    `best` is called as the program is. `function` is the `Function` behind it. `evidence` is
    everything that was measured. `C` is the type of the program, and of `best`.
    """

    __slots__ = ("best", "evidence", "function", "program")

    def __init__(
        self,
        program: C,
        evidence: PlanEvidence,
        functions: Mapping[tuple[PlanCandidate, int], Any],
    ) -> None:
        self.program: C = program
        self.evidence: PlanEvidence = evidence
        stops, borders = _stops(evidence)
        # The program as written needs no info to go through.
        calls: list[Any] = [
            program if one.chosen.how == NESTED else functions[one.chosen, one.size].apply
            for one in stops
        ]
        if len(stops) == 1:
            (one,) = stops
            self.best: C = calls[0]
            is_nested = one.chosen.how == NESTED
            self.function: Any = nest(program) if is_nested else functions[one.chosen, one.size]
            return
        best: Any = follow(program, calls, borders, evidence.place, evidence.argument)
        self.best = best
        self.function = composition(program, "planned", best)
        self.function.explain = staticmethod(self.explain)

    def table(self) -> str:
        """Every candidate that was measured, size by size: time, bytes, error, nodes."""
        return text.table(self.evidence)

    def pareto(self, size: int | None = None) -> tuple[Measurement, ...]:
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
        figure.write_figure(self.evidence, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; `pb.load_plan` reads it."""
        store.write_plan(self.evidence, Path(path))

    def to_html(self, *examples: Any) -> str:
        """The plan as a page that needs no network; with examples, also the graph of the program.

        The graph is coloured by the groups that were chosen at the largest size.
        """
        return page_of("plan", self, *examples)

    def _repr_html_(self) -> str:
        return page_of("plan", self, is_framed=True)

    def __repr__(self) -> str:
        return f"<Plan of {self.evidence.program}: {text.chosen_text(self.evidence)}>"


def _stops(evidence: PlanEvidence) -> tuple[list[Sized], list[int]]:
    """The sizes that have functions of their own, smallest first, and the borders between them.

    What is not compiled serves all sizes alike: neighbours that chose the same share it.
    """
    stops, borders = [evidence.sized[0]], list[int]()
    for small, large in pairwise(evidence.sized):
        if small.chosen != large.chosen or large.chosen.backend not in UNCOMPILED:
            stops.append(large)
            borders.append(evidence.border(small, large))
    return stops, borders


def _units(
    program: Callable[..., Any], args: tuple[Any, ...], path: Path, *, is_given: bool
) -> Any:
    """The units of a program on `args`, which come from the file unless they are given."""
    try:
        return sized_program(program, args, 0).units
    except Exception as error:
        if is_given or isinstance(error, PullbackError):
            raise
        raise PlanFileError(
            f"`{getattr(program, '__name__', 'program')}` must run on arguments like those planned",
            at=str(path),
            got=type_and_line(error),
            fix="pb.load_plan(path, program, *examples), or plan again",
        ) from None


def load_program_plan(path: str | Path, program: Callable[..., Any], *examples: Any) -> Plan[Any]:
    """As `pullback.load_plan`, which says what it does."""
    program, path = callable_of(program), Path(path)
    evidence = store.read(path)
    args = examples or store.guarded(path, lambda: redrawn_arguments(evidence.signature))
    units = _units(program, args, path, is_given=bool(examples))
    if fingerprint_of(program, units) != evidence.fingerprint:
        raise PlanFileError(
            f"`{getattr(program, '__name__', 'program')}` must be the program that was planned",
            at=str(path),
            expected=f"`{evidence.program}` as it was written then, and the same calls in it",
            got="another text, or other calls",
            fix="plan again: pb.plan(program, *examples).save(path)",
        )
    wanted = [(one.chosen, one.size) for one in evidence.sized]
    return Plan(program, evidence, {key: build_candidate(program, key[0], args) for key in wanted})
