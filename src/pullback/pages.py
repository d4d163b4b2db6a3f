"""Pages of what a notebook shows: `report` registers how they are made, a report or a plan asks.

So neither imports what shows it, which stands above it and is loaded when a page is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

_makers: dict[str, Callable[..., str]] = {}


def register_page(kind: str, make: Callable[..., str]) -> None:
    """Let `make` write the pages of one kind of thing; `is_framed` asks for one in a frame."""
    _makers[kind] = make


def page_of(kind: str, *shown: object, is_framed: bool = False) -> str:
    """The page of something, or a frame with it for a cell of a notebook."""
    return _makers[kind](*shown, is_framed=is_framed)
