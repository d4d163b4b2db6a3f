"""Notebooks: `%load_ext pullback` lets derived Functions show themselves as graphs.

IPython never asks a class how it is to be shown, and `derive` and `combine` return classes.
"""

from __future__ import annotations

from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.derive.returned import record_of
from pullback.function.plain import is_derived
from pullback.report.graphs.page import graph_page


def show_classes(shell: Any) -> None:
    """Let the notebook of an IPython shell show what pullback made as graphs."""
    shell.display_formatter.formatters["text/html"].for_type(type(TorchFunction), shown_class)


def shown_class(cls: Any) -> str | None:
    """The graph of a derived Function, for a notebook; None for any other class."""
    if not is_derived(cls) or record_of(cls) is True:
        return None
    return graph_page(cls)._repr_html_()
