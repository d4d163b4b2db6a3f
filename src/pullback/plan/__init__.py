"""Plan: which units of a program should share a node, decided by measurement.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pullback.plan.planned import Plan


def plan(
    program: Callable[..., Any],
    *examples: Any,
    sizes: Iterable[tuple[Any, ...]] = (),
    objective: str | float = "time",
    backends: Iterable[str] | None = None,
    budget: float = 60.0,
    progress: bool | Callable[[int, int, str], None] | None = None,
) -> Plan:
    """A `Plan`: the best way to run `program`, with the evidence for it: see `plan.planning`."""
    from pullback.plan.planning import plan as make  # heavy

    return make(
        program,
        *examples,
        sizes=sizes,
        objective=objective,
        backends=backends,
        budget=budget,
        progress=progress,
    )


def load_plan(path: str | Path, program: Callable[..., Any], *examples: Any) -> Plan:
    """The `Plan` that was saved in `path`, for the same program: see `plan.planned`."""
    from pullback.plan.planned import load_plan as load  # heavy

    return load(path, program, *examples)
