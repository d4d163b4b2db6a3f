"""`docs/wild.md`, made from the results: what one finds in public code, per rule."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.wild.results import Result
from benchmarks.wild.table import Known


def write(results: Sequence[Result], known: Known) -> None:
    """Write the page."""
