"""A candidate as a Function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.compose.combined import combine
from pullback.compose.grouped import hybrid
from pullback.compose.nested import nest
from pullback.plan.measurements import COMBINED, NESTED, PlanCandidate


def build_candidate(
    program: Callable[..., Any], candidate: PlanCandidate, args: Sequence[Any]
) -> Any:
    """The composition of `program` that a candidate stands for, made with `args` as examples."""
    if candidate.how == NESTED:
        return nest(program)
    options: Any = {"backend": candidate.backend, "save": candidate.save}
    if candidate.how == COMBINED:
        return combine(program, *args, **options)
    return hybrid(program, *args, groups=candidate.groups, **options)
