"""Examples at sizes that no block divides: where the edges of a kernel show."""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.shapes import fits, resized, symbols_of
from pullback.check.subject.subject import Subject
from pullback.judge.example import Example

# Sizes that are no multiple of any block; the larger ones in the deep profile.
ODD = (33, 3, 129, 1, 17, 127)
LARGE = (1000, 4097)
ELEMENTS = {"quick": 20_000, "standard": 100_000, "deep": 4_000_000}


def odd_sizes(subject: Subject) -> Iterator[Example]:
    """The example at sizes that no block divides: all of them at once, then one by one."""
    start = subject.small_given
    symbols = symbols_of(start)
    sizes = (*ODD, *LARGE) if subject.profile == "deep" else ODD
    rows = [{s: sizes[(i + k) % len(sizes)] for i, s in enumerate(symbols)} for k in range(3)]
    rows += [{symbol: size} for size in sizes for symbol in symbols]
    for row in rows:
        if fits(start, row, ELEMENTS[subject.profile]):
            words = ", ".join(f"size {old} as {new}" for old, new in row.items())
            yield subject.kept(resized(start, row, words))
