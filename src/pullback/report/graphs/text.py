"""A graph as a table, for a screen."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from pullback.graph.cost import bytes_text
from pullback.plan.text import seconds_text
from pullback.report.graphs.picture import DrawnGraph, DrawnNode

MOST = 200  # rows that are printed


def graph_table(graph: DrawnGraph) -> str:
    """The nodes in order, a row each, and what is said of the whole."""
    table = Table(box=None, pad_edge=False, header_style="")
    for title in ("value", "op", "pass", "call", "line", "bytes", "time", "is"):
        table.add_column(title, justify="right" if title in ("bytes", "time") else "left")
    for node in graph.nodes[:MOST]:
        table.add_row(*_row(node, graph))
    text = io.StringIO()
    Console(file=text, width=140, highlight=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    if len(graph.nodes) > MOST:
        lines.append(f"and {len(graph.nodes) - MOST} more: --html shows them")
    lines.append("")
    return "\n".join([*lines, *(f"{label}: {fact}" for label, fact in graph.facts.items())])


def _row(node: DrawnNode, graph: DrawnGraph) -> list[str]:
    marks = [*node.returns, *["kept"] * bool(node.saved), *["computed again"] * node.again]
    unit = graph.units[node.unit] if node.unit is not None and node.op else ""
    return [
        node.name,
        node.op,
        node.kind,
        unit,
        node.place,
        bytes_text(node.bytes) if node.bytes else "",
        seconds_text(node.seconds) if node.seconds is not None else "",
        ", ".join(marks),
    ]
