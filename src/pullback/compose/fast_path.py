"""What runs a call of a composition: the node that its backend made, found in a table of calls.

The table is that of `derive.call_table`, with nodes in it. How often each path was taken is
counted, and what does not run compiled code is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.capture.environment import Environment
from pullback.capture.modes import autocast_off
from pullback.compose.options import ComposeOptions
from pullback.derive.call_table import CallEntry, CallTable, Unlisted
from pullback.derive.recipe import called_with
from pullback.derive.returned import record_of
from pullback.function.slots import has_autocast
from pullback.run import backends_of
from pullback.run.nodes.making import Nodes
from pullback.run.nodes.paths import KEYWORD, SUBCLASS, TRANSFORM, Paths

GENERAL = "run the general way, op by op"

_REASONS = {
    Unlisted.KEYWORD: KEYWORD,
    Unlisted.MOMENT: TRANSFORM,
    Unlisted.VALUE: SUBCLASS,
}


def table_of(
    environment: Environment,
    make: Callable[[tuple[Any, ...]], tuple[Callable[..., Any], str]],
    general: Callable[..., Any],
    paths: Paths,
) -> CallTable:
    """A table of calls whose entries `make` gives with the path that they take, in words.

    `environment` is what the program reads from outside.
    """

    def entry(args: tuple[Any, ...]) -> CallEntry:
        run, path = make(args)
        return CallEntry(run, paths.tally(path))

    def unlisted(why: Unlisted) -> None:
        if paths.warns:
            paths.uncompiled(_REASONS[why])

    return CallTable(environment, entry, general, unlisted)


def with_nodes(
    derived: Any,
    general: Callable[..., Any],
    options: ComposeOptions,
    refused: Callable[[tuple[Any, ...], Exception], bool] = lambda args, error: False,
) -> tuple[Callable[..., Any], Nodes]:
    """A function that makes the calls of a derived Function by nodes, and these.

    A call that no node serves goes the general way, `general`. Where a call cannot be captured,
    `refused` is called, and says whether the program is to run as written from then on. Compiled
    nodes are compared with their recipes where the options say so.
    """
    known = record_of(derived)
    name, module = derived.__name__, derived.__module__
    nodes = Nodes(name, module, known, backends_of(options.backend), verifies=options.verify)

    def make(args: tuple[Any, ...]) -> tuple[Callable[..., Any], str]:
        try:
            recipe, tensors = known.recipes.find(args)
        except Exception as error:
            return (known.program if refused(args, error) else general), GENERAL
        captured = recipe.captured
        row = captured.row(captured.linked(tensors))
        with autocast_off():
            found = nodes.find(recipe, row)
        if found is None:
            return general, GENERAL
        held = [one.tensor for one in captured.inputs if one.tensor is not None]
        run = called_with(found.node, captured, args, held, general)
        return _without_casts(run) if has_autocast() else run, found.path

    table = table_of(known.recipes.environment, make, general, nodes.paths)
    nodes.await_backends(table.forget)
    return table.make_call(), nodes


def _without_casts(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, for calls under autocast: the graph has its casts in it."""

    def call(*args: Any) -> Any:
        with autocast_off():
            return run(*args)

    return call
