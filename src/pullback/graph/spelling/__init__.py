"""Spellings: how each op is written in Python, one table per kind of op."""

from __future__ import annotations

import torch
from torch import fx

from pullback.errors import UnsupportedOpError
from pullback.graph.cost import op_of
from pullback.graph.spelling import calls, convolutions, operators, results, views
from pullback.graph.spelling.expressions import Expression, PythonWriter, Spellings

TABLE: Spellings = {
    **operators.TABLE,
    **views.TABLE,
    **calls.TABLE,
    **convolutions.TABLE,
    **results.TABLE,
}


def spell(writer: PythonWriter, node: fx.Node) -> Expression:
    """The expression that computes `node`: its own form, a call by name, or `torch.ops`."""
    own = TABLE.get(node.target)
    expression = (own and own(writer, node)) or calls.called(writer, node)
    return expression or _by_op(writer, node)


def _by_op(writer: PythonWriter, node: fx.Node) -> Expression:
    """`torch.ops.aten.name.overload(...)`, which runs for every registered op."""
    op = op_of(node)
    if op is not None:
        return writer.call(f"torch.ops.{op}", *node.args, **node.kwargs)
    name = getattr(node.target, "__name__", str(node.target))
    if getattr(torch, name, None) is node.target:
        return writer.call(f"torch.{name}", *node.args, **node.kwargs)
    raise UnsupportedOpError(
        f"`{name}` must be an op of PyTorch or a registered one to be printed",
        at=str(node.meta.get("place", "")),
        got=f"node `{node.name}` ({node.op})",
        fix="register it with `torch.library.custom_op`",
    )
