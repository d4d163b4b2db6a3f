"""Common subexpressions: what is computed twice from the same things is computed once.

Within a phase by default: a backward that reuses a value of the forward must save it, so merging
across phases is a choice, for before a cut. Random, mutating and opaque ops are never merged, nor
are two outputs of the program: they would share their memory.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from pullback.graph.copies import Source, copied_graph, graph_of, output_count_of, with_graph
from pullback.graph.cost import base_of, is_mutating, is_opaque, is_random, op_name
from pullback.graph.parts import calls, phase_of

UNDEFINED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
"""Ops that give memory as it is: two calls need not agree."""


def cse(source: Source, *, across_phases: bool = False) -> Source:
    """`source` with equal computations merged, by default only within one phase."""
    graph, _ = copied_graph(graph_of(source))
    returned: Any = graph.output_node().args[0]
    outputs = [node for node in returned[: output_count_of(source)] if isinstance(node, fx.Node)]
    first: dict[Any, fx.Node] = {}
    for node in list(calls(graph)):
        if not _is_pure(node):
            continue
        phase = None if across_phases else phase_of(node)
        key = phase, node.target, _frozen(node.args), _frozen(node.kwargs)
        earlier = first.setdefault(key, node)
        if earlier is not node and not _both_escape(earlier, node, outputs):
            _merge(node, earlier)
            outputs = [earlier if output is node else output for output in outputs]
    return with_graph(source, graph)


def _is_pure(node: fx.Node) -> bool:
    if node.op != "call_function" or op_name(node) in UNDEFINED:
        return False
    return not (is_random(node) or is_mutating(node) or is_opaque(node))


def _frozen(arg: Any) -> Any:
    """`arg` as a key. Numbers go with their type: 1, 1.0 and True are three arguments."""
    if isinstance(arg, list | tuple):
        return type(arg).__name__, *map(_frozen, arg)
    if isinstance(arg, dict):
        return tuple(sorted((key, _frozen(value)) for key, value in arg.items()))
    if isinstance(arg, slice):
        return "slice", _frozen(arg.start), _frozen(arg.stop), _frozen(arg.step)
    if isinstance(arg, fx.Node):
        return arg.name
    # repr distinguishes 0.0 from -0.0, which compare equal
    return type(arg).__name__, repr(arg)


def _both_escape(a: fx.Node, b: fx.Node, outputs: list[fx.Node]) -> bool:
    """Whether the memory of `a` and of `b` is returned by outputs, and not the same already."""
    bases = [base_of(output) for output in outputs]
    return base_of(a) is not base_of(b) and base_of(a) in bases and base_of(b) in bases


def _merge(node: fx.Node, earlier: fx.Node) -> None:
    node.replace_all_uses_with(earlier, propagate_meta=False)
    names = (*node.meta.get("stands_for", ()), node.name)
    if "hint" in node.meta:
        earlier.meta.setdefault("hint", node.meta["hint"])
    earlier.meta["stands_for"] = (*earlier.meta.get("stands_for", ()), *names)
    node.graph.erase_node(node)
