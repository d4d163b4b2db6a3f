"""Outcomes as a table, and the table of refusals that is kept in the repository.

`refusals.md` beside this file has one row for each thing that pullback refuses to do with an op or
a random program, and the reason in the words that a user reads. It holds for the torch that it was
made with, which its first lines name; with another one, ops and their samples differ, and only
wrong results count.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).with_name("refusals.md")
ORDER = ("died", "wrong", "error", "refused", "right")
"""From the worst: of what happened to the samples of an op, the worst counts."""

Row = dict[str, Any]
Refusal = tuple[str, str, str, str]


def version() -> str:
    """The torch that is installed, without its build: "2.13.0"."""
    return re.sub(r"\+.*", "", torch.__version__)


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row for each op, dtype and feature: the worst of those there are."""
    worst: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = row["op"], row["dtype"], row["feature"]
        if key not in worst or _place(row) < _place(worst[key]):
            worst[key] = row
    return list(worst.values())


def _place(row: Row) -> int:
    return ORDER.index(row["status"])


def text(rows: Iterable[Row]) -> str:
    """Rows as lines with columns."""
    cells = [(r["op"], r["dtype"], r["feature"], r["status"], r["said"]) for r in rows]
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(4)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


# ---- refusals ----

HEAD = """\
# What pullback refuses to do with PyTorch's ops, and with programs of several of them

Made with torch {version} by `pytest tests/upstream -m "" --update-gold`: one row for each op or
[program](programs.py), dtype and [feature](features.py) that is refused. The reason is what a user
reads.

| op | dtype | feature | reason |
|---|---|---|---|
"""


def refusals_in(rows: Iterable[Row]) -> set[Refusal]:
    """The refusals among rows."""
    return {
        (r["op"], r["dtype"], r["feature"], r["said"]) for r in rows if r["status"] == "refused"
    }


def recorded() -> set[Refusal]:
    """The refusals in the table of the repository."""
    lines = PATH.read_text(encoding="utf-8").splitlines() if PATH.exists() else []
    cells = [tuple(c.strip() for c in line.strip("|").split("|")) for line in lines if "|" in line]
    return {(c[0], c[1], c[2], c[3]) for c in cells[2:]}


def is_of_this_torch() -> bool:
    """Whether the table of the repository was made with the torch that is installed."""
    return not PATH.exists() or f"torch {version()} by" in PATH.read_text(encoding="utf-8")


def record(found: set[Refusal], asked: set[tuple[str, str]]) -> None:
    """Write what was found into the table, in the place of all about the ops and dtypes asked."""
    kept = {row for row in recorded() if (row[0], row[1]) not in asked}
    lines = [f"| {' | '.join(row)} |" for row in sorted(kept | found)]
    head = HEAD.format(version=version())
    PATH.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
