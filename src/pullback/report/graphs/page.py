"""The page of a graph: zoom, search, hover; one file that needs no network.

The drawing is that of cytoscape.js, with the layout of dagre where the graph is not large. Both
stand in the page as they are (`report/libraries`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pullback.errors import PullbackError
from pullback.plan.figure import svg
from pullback.plan.planned import Plan
from pullback.report.graphs.drawn import drawn_graph
from pullback.report.graphs.picture import DrawnGraph
from pullback.report.html import in_frame, page_templates

LIBRARIES = Path(__file__).resolve().parents[1] / "libraries"
SCRIPTS = ("cytoscape.min.js", "cytoscape-dagre.min.js")
HEIGHT = 720  # of the page in a notebook, in pixels


@dataclass(frozen=True, slots=True)
class GraphPage:
    """A graph as a page: `save` writes it, and a notebook shows it."""

    graph: DrawnGraph
    plan: Plan[Any] | None = None

    @property
    def html(self) -> str:
        """The whole page."""
        return render(self.graph, self.plan)

    def save(self, path: str | Path) -> None:
        """Write the page."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        return in_frame(self.html, self.graph.name, HEIGHT)

    def __repr__(self) -> str:
        count = len(self.graph.nodes)
        return f"<GraphPage of {self.graph.name}: {count} nodes; .save(path) writes it>"


def graph_page(
    target: Any, *examples: Any, save: str | int | None = None, is_timed: bool = True
) -> GraphPage:
    """The page of a target: see `pullback.draw`."""
    drawn = drawn_graph(target, *examples, save=save, is_timed=is_timed)
    return GraphPage(drawn, target if isinstance(target, Plan) else None)


def plan_page(plan: Plan[Any], *examples: Any) -> GraphPage:
    """A plan: its candidates, and the graph of its program where that can be captured."""
    name = plan.evidence.program
    try:
        drawn = drawn_graph(plan, *examples, is_timed=bool(examples))
    except PullbackError as error:
        drawn = DrawnGraph(name, (), (), facts={"no graph": error.rule})
    return GraphPage(drawn, plan)


def render(graph: DrawnGraph, plan: Plan[Any] | None = None) -> str:
    """The page."""
    page: str = (
        page_templates()
        .get_template("graph.html")
        .render(
            graph=graph,
            data=_json(graph),
            scripts=[_script(name) for name in SCRIPTS],
            figure=Markup(svg(plan.evidence)) if plan is not None else "",
            table=plan.table() if plan is not None else "",
            reason=plan.explain() if plan is not None else "",
        )
    )
    return page


def _json(graph: DrawnGraph) -> Markup:
    """The graph as a script has it: nothing in it can end the script."""
    return Markup(json.dumps(graph.plain(), separators=(",", ":")).replace("<", "\\u003c"))


@cache
def _script(name: str) -> Markup:
    return Markup((LIBRARIES / name).read_text(encoding="utf-8").replace("</script", "<\\/script"))
