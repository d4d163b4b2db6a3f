"""The pictures of the documents, from kept results: part of `python -m docs.generate`.

`python -m docs.pictures` also takes those of the pages that pullback writes, with Chromium.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
HERE = Path(__file__).resolve().parent / "pictures"

COLOURS = {"plan": "#1f77b4", "compile": "#d95f02", "other": "#999999"}
STYLE = (
    "text{font:12px sans-serif;fill:#222}.small{font-size:11px;fill:#555}"
    ".title{font-size:15px;font-weight:bold}"
)


def pictures() -> Iterator[tuple[Path, str]]:
    """The pictures that are made of kept results, with their texts."""
    yield HERE / "speed.svg", speed()
    yield HERE / "gpu.svg", gpu()
    yield HERE / "checkers.svg", checkers()


# ---- from results ----


def speed() -> str:
    """Speed-up over nested Functions against size, on one CPU thread."""
    rows = [row for row in _rows("composed_cpu.json") if row["threads"] == 1]
    sizes = sorted({row["size"] for row in rows})
    wide, high, left, top = 560, 300, 60, 60
    across = _log(sizes[0], sizes[-1], left, left + wide)
    up = _log(0.5, 60, top + high, top)
    lines = _head(left + wide + 150, top + high + 60, "Forward and backward, one CPU thread")
    lines.append(
        _text(
            left,
            42,
            "speed-up over nested Functions; thin: each pipeline, thick: their mean",
            "small",
        )
    )
    for tick in (0.5, 1, 2, 5, 10, 20, 50):
        lines.append(_line(left, up(tick), left + wide, up(tick), "#ddd" if tick != 1 else "#888"))
        lines.append(_text(left - 8, up(tick) + 4, f"{tick:g}", anchor="end"))
    for size in sizes:
        lines.append(_text(across(size), top + high + 20, _count(size), anchor="middle"))
    lines.append(_text(left + wide / 2, top + high + 42, "elements", "small", anchor="middle"))
    for place, way in enumerate(("plan", "compile")):
        colour = COLOURS[way]
        for name in sorted({row["pipeline"] for row in rows}):
            own = {row["size"]: row["speedups"].get(way) for row in rows if row["pipeline"] == name}
            points = [(across(s), up(v)) for s, v in sorted(own.items()) if v]
            lines.append(_path(points, colour, 1, 0.25))
        mean = [
            (
                s,
                _mean(
                    [r["speedups"][way] for r in rows if r["size"] == s and way in r["speedups"]]
                ),
            )
            for s in sizes
        ]
        lines.append(_path([(across(s), up(v)) for s, v in mean], colour, 3.5))
        lines += [
            f'<circle cx="{across(s):.1f}" cy="{up(v):.1f}" r="4" fill="{colour}"/>'
            for s, v in mean
        ]
        name = {"plan": "pb.plan", "compile": "torch.compile"}[way]
        lines.append(_text(left + wide + 14, up(mean[-1][1]) + 4 + 14 * place, name, colour=colour))
    return _whole(lines)


def gpu() -> str:
    """How far each large row on an H200 is from the time that moving its bytes takes."""
    rows = [r for r in _rows("composed_h200.json") if r["limit"] and r["size"] >= 1 << 20]
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = f"{row['pipeline']}, {row['dtype']}"
        if key not in best or row["size"] > best[key]["size"]:
            best[key] = row
    names = sorted(best)
    wide, step, left, top = 460, 20, 210, 74
    across = _log(0.8, 40, left, left + wide)
    height = top + step * len(names) + 50
    lines = _head(
        left + wide + 40, height, "H200, forward and backward, largest size of each program"
    )
    lines.append(
        _text(
            left,
            42,
            "time as a multiple of the limit: that of moving the bytes (left is better)",
            "small",
        )
    )
    for x, (way, label) in ((left, ("plan", "pb.plan")), (left + 90, ("compile", "torch.compile"))):
        lines.append(f'<circle cx="{x + 4}" cy="56" r="4.5" fill="{COLOURS[way]}"/>')
        lines.append(_text(x + 13, 60, label, "small"))
    for tick in (1, 2, 5, 10, 20):
        lines.append(
            _line(across(tick), top - 6, across(tick), height - 34, "#888" if tick == 1 else "#ddd")
        )
        lines.append(_text(across(tick), height - 18, f"{tick}", anchor="middle"))
    for place, name in enumerate(names):
        y, row = top + step * place + 6, best[name]
        lines.append(_text(left - 10, y + 4, name, anchor="end"))
        for way in ("compile", "plan"):
            if way in row["speedups"]:
                value = row["nested"] / row["speedups"][way] / row["limit"]
                lines.append(
                    f'<circle cx="{across(value):.1f}" cy="{y}" r="5" fill="{COLOURS[way]}"/>'
                )
    return _whole(lines)


def checkers() -> str:
    """How many of the planted faults each checker names: the table of docs/check.md."""
    page = (HERE.parent / "check.md").read_text("utf-8")
    table = page.partition("| found, of ")[2]
    every = int(re.match(r"\d+", table)[0])
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \(", table.partition("\n\n")[0], re.MULTILINE)
    names = [name.replace("`", "") for name, _ in rows]
    counts = [(int(found), every) for _, found in rows]
    left, wide, step, top = 210, 420, 30, 66
    lines = _head(
        left + wide + 90, top + step * len(names) + 20, "Planted faults that each checker names"
    )
    lines.append(
        _text(left, 42, f"of {counts[0][1]}, by python -m benchmarks.faults.score", "small")
    )
    for place, (name, (found, every)) in enumerate(zip(names, counts, strict=True)):
        y = top + step * place
        colour = COLOURS["plan"] if name.startswith("pb.") else COLOURS["other"]
        lines.append(_text(left - 10, y + 14, name, anchor="end"))
        lines.append(f'<rect x="{left}" y="{y}" width="{wide}" height="20" fill="#f2f2f2"/>')
        long = wide * found / every
        lines.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="20" fill="{colour}"/>')
        lines.append(_text(left + wide + 8, y + 14, f"{found}"))
    return _whole(lines)


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


# ---- drawing ----

Scale = Callable[[float], float]


def _log(low: float, high: float, first: float, last: float) -> Scale:
    span = math.log(high / low)
    return lambda value: first + math.log(max(value, low) / low) / span * (last - first)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _count(size: int) -> str:
    for unit, one in (("M", 10**6), ("k", 10**3)):
        if size >= one:
            return f"{size / one:.3g}{unit}"
    return str(size)


def _head(width: float, height: float, title: str) -> list[str]:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        _text(16, 24, title, "title"),
    ]


def _whole(lines: Sequence[str]) -> str:
    return "\n".join([*lines, "</svg>", ""])


def _text(
    x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", colour: str = ""
) -> str:
    style = f' style="fill:{colour};font-weight:bold"' if colour else ""
    place = f'x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {place}{style}>{escape(text)}</text>"


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{colour}"/>'


def _path(
    points: Sequence[tuple[float, float]], colour: str, width: float, opacity: float = 1
) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = f'fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"'
    return f'<polyline points="{drawn}" {stroke}/>'


# ---- of pages ----


def photographs() -> Iterator[tuple[str, str]]:
    """The pages to take pictures of: the graph of the first example, and a report."""
    import torch

    import pullback as pb
    from examples.my_complex_op import MyComplexOpAsPublished
    from examples.my_ops import act

    torch.manual_seed(0)
    yield "graph.png", pb.draw(act, torch.randn(64, requires_grad=True)).html
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    yield "report.png", pb.check(MyComplexOpAsPublished, (x,), select=["gradient"]).to_html()


def main() -> None:
    """Write all pictures; those of pages where there is a browser."""
    HERE.mkdir(exist_ok=True)
    for path, text in pictures():
        path.write_text(text, encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        print("no Chromium: the pictures of pages are left as they are")  # noqa: T201
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, page in photographs():
            file = Path(folder, "page.html")
            file.write_text(page, encoding="utf-8")
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            options += ["--window-size=1200,820", "--virtual-time-budget=4000"]
            options += [f"--user-data-dir={folder}/profile", f"--screenshot={HERE / name}"]
            subprocess.run([browser, *options, file.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
