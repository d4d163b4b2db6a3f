"""A plan as a figure: time against saved bytes, a panel for each size. SVG, written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from pullback.errors import PlanFileError
from pullback.graph.cost import bytes_text
from pullback.plan.evidence import PlanEvidence, Sized
from pullback.plan.measurements import Measurement, front
from pullback.plan.store import write_whole
from pullback.plan.text import candidate_text, error_text, seconds_text

WIDE, HIGH, LEFT, TOP, ROOM = 380, 300, 78, 64, 30  # in pixels
COLOURS = {"nested": "#666666", "combined": "#1f77b4", "hybrid": "#2ca02c"}
STYLE = (
    "text{font:12px sans-serif;fill:#222}.small{font-size:10px;fill:#555}"
    ".title{font-size:14px;font-weight:bold}"
)

Scale = Callable[[float], float]


def write_figure(evidence: PlanEvidence, path: Path) -> None:
    """Write the figure of a plan."""
    require_svg(path)
    write_whole(path, svg(evidence))


def require_svg(path: Path) -> None:
    """Raise unless the name of a file ends in .svg."""
    if path.suffix.lower() != ".svg":
        raise PlanFileError(
            f"`{path}` must be a file that a figure can be written to",
            expected="a name that ends in .svg",
            got=repr(path.suffix),
        )


def svg(evidence: PlanEvidence) -> str:
    """The figure as text."""
    panels = [one for one in evidence.sized if one.rows]
    width = LEFT + max(len(panels), 1) * (WIDE + LEFT)
    height = TOP + HIGH + 88
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(LEFT, 24, f"{evidence.program}: time against saved bytes", kind="title"),
    ]
    for place, one in enumerate(panels):
        lines += _panel(evidence, one, LEFT + place * (WIDE + LEFT))
    if not panels:
        lines.append(_text(LEFT, TOP, "nothing was measured"))
    lines += [*_legend(LEFT, height - 30), "</svg>"]
    return "\n".join(lines) + "\n"


def _panel(evidence: PlanEvidence, sized: Sized, left: float) -> Iterator[str]:
    of = f" of {evidence.argument}" if evidence.argument else ""
    yield f'<g transform="translate({left},{TOP})">'
    yield _text(0, -12, f"{sized.size} elements{of}")
    yield f'<rect width="{WIDE}" height="{HIGH}" fill="none" stroke="#bbb"/>'
    across = _scale([row.seconds for row in sized.rows], ROOM, WIDE - ROOM)
    up = _scale([row.saved or 0 for row in sized.rows], HIGH - ROOM, ROOM)
    yield from _axes(sized.rows, across, up)
    best = list(front(sized.rows))
    points = " ".join(f"{across(r.seconds):.1f},{up(r.saved or 0):.1f}" for r in best)
    yield f'<polyline points="{points}" fill="none" stroke="#f0a030" stroke-width="1.5"/>'
    for row in sorted(sized.rows, key=lambda row: -row.seconds):
        yield from _mark(row, across(row.seconds), up(row.saved or 0), row == sized.row)
    yield "</g>"


def _axes(rows: Sequence[Measurement], across: Scale, up: Scale) -> Iterator[str]:
    for seconds in _ends([row.seconds for row in rows]):
        yield _text(across(seconds), HIGH + 16, seconds_text(seconds), anchor="middle")
    for kept in _ends([row.saved or 0 for row in rows]):
        yield _text(-6, up(kept) + 4, bytes_text(int(kept)), anchor="end")
    yield _text(WIDE / 2, HIGH + 34, "time, forward and backward", kind="small", anchor="middle")
    yield _text(-6, -12, "saved", kind="small", anchor="end")


def _ends(values: Sequence[float]) -> list[float]:
    return sorted({min(values), max(values)})


def _mark(row: Measurement, x: float, y: float, is_chosen: bool) -> Iterator[str]:
    colour = COLOURS[row.candidate.how]
    title = (
        f"{row.label}: {candidate_text(row.candidate)}, {seconds_text(row.seconds)}, "
        f"{bytes_text(row.saved)} saved, error {error_text(row)}"
    )
    yield f"<g><title>{escape(title)}</title>"
    if row.is_inexact:
        yield (
            f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{colour}" '
            'stroke-width="2"/>'
        )
    else:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" fill-opacity="0.8"/>'
    if is_chosen:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="#d62728"/>'
        anchor, shift = ("end", -13) if x > WIDE / 2 else ("start", 13)
        yield _text(x + shift, y - 8, row.label[:36], kind="small", anchor=anchor)
    yield "</g>"


def _legend(x: float, y: float) -> Iterator[str]:
    for name, colour in COLOURS.items():
        yield f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="{colour}"/>'
        yield _text(x + 9, y, name, kind="small")
        x += 72
    yield f'<circle cx="{x}" cy="{y - 4}" r="6" fill="none" stroke="#d62728"/>'
    yield _text(x + 10, y, "chosen", kind="small")
    yield _text(LEFT - 4, y + 16, "× loses accuracy", kind="small")
    yield _text(LEFT + 92, y + 16, "— nothing beats these in both", kind="small")


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{escape(text)}</text>'


def _scale(values: Sequence[float], first: float, last: float) -> Scale:
    """From values to places, by their logarithms where they differ much; all equal: the middle."""
    low, high = min(values), max(values)
    if low == high:
        return lambda value: (first + last) / 2
    is_wide = low > 0 and high / low > 4
    turned: Scale = math.log if is_wide else float
    start, end = turned(low), turned(high)
    return lambda value: first + (turned(value) - start) / (end - start) * (last - first)
