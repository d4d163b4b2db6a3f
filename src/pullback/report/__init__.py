"""Reports: what was found and what was made, on the screen, as pages and for other programs.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.autograd.function import Function as TorchFunction

from pullback.pages import register_page

if TYPE_CHECKING:
    from pullback.check.findings.report import Report
    from pullback.plan.planned import Plan
    from pullback.report.graphs.page import GraphPage


def draw(
    target: type[TorchFunction] | nn.Module | Callable[..., object] | Plan[Any],
    *examples: object,
    save: str | int | None = None,
    is_timed: bool = True,
) -> GraphPage:
    """Forward and backward of a Function, program, module or plan, as a page to explore.

    Arguments:
        target: a Function class, which is shown with its own backward; a program; a module; a plan;
            or what `derive`, `combine` or `hybrid` made.
        examples: arguments to capture it with; may be left out for what was made with some.
        save: what forward keeps for backward, as in `derive`.
        is_timed: whether each op is run by itself to say how long it takes.

    Returns a page: `save(path)` writes it, `html` is its text, and a notebook shows it.

    >>> import torch
    >>> page = draw(lambda x: x.sin() ** 2, torch.ones(3, requires_grad=True))
    >>> [node.op for node in page.graph.nodes if node.kind == "forward"]
    ['sin', 'pow']
    """
    from pullback.report.graphs.page import graph_page  # heavy

    return graph_page(target, *examples, save=save, is_timed=is_timed)


def load_ipython_extension(shell: object) -> None:
    """`%load_ext pullback` in a notebook: derived Functions show themselves as graphs."""
    from pullback.report.notebook import show_classes  # heavy

    show_classes(shell)


# ---- pages of what stands below ----


def _report_page(reports: Sequence[Report], errors: Sequence[str] = (), *, is_framed: bool) -> str:
    from pullback.report.html import framed, render  # heavy

    return framed(reports, errors) if is_framed else render(reports, errors)


def _plan_page(plan: Plan[Any], *examples: object, is_framed: bool) -> str:
    from pullback.report.graphs.page import plan_page  # heavy

    page = plan_page(plan, *examples)
    return page._repr_html_() if is_framed else page.html


register_page("report", _report_page)
register_page("plan", _plan_page)
