"""A printed backward that is differentiated again: what it saved on the way is recomputed.

PyTorch keeps the history of inputs and outputs that are saved, and loses that of everything between
them. `once_differentiable` refuses only where the cotangent itself has a history, and elsewhere
gives second derivatives with parts missing. So the text computes again, from the inputs, what lies
between, when backward runs with recording on; where it cannot, because a random or unknown op is
among it, it raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pullback.derive.recipe import Parts
from pullback.graph.copies import graph_returning
from pullback.graph.cost import is_opaque, is_random
from pullback.graph.cut_problem import ancestors
from pullback.graph.text import graph_text


@dataclass(frozen=True, slots=True)
class Again:
    """Inputs to save besides, by name, and the lines of backward before its first.

    `is_refusing` says that these raise.
    """

    extra: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    is_refusing: bool = False


def again_of(parts: Parts, name: str, dtypes: Mapping[torch.dtype, str]) -> Again:
    """What the Function `name` needs to be differentiated again; `dtypes` as in `graph_text`."""
    places = parts.between
    if not places:
        return Again()
    count = parts.joint.output_count
    graph = graph_returning(parts.forward, lambda row: [row[count + place] for place in places])
    wanted: Any = graph.output_node().args[0]
    taken = ancestors(wanted)
    if any(is_random(node) or is_opaque(node) for node in taken if node.op == "call_function"):
        return refused_again(name, "it keeps what it drew or what others computed")
    text = graph_text(graph, parts.names, dtypes)
    inputs = zip(graph.find_nodes(op="placeholder"), text.parameters, strict=True)
    needed = [parameter for node, parameter in inputs if node in taken]
    saved = {parts.names[node] for node in parts.cut.saved}
    names = [parts.names[parts.cut.saved[place]] for place in places]
    pairs = zip(names, text.returned, strict=True)
    made = [*text.statements, *(f"{a} = {b}" for a, b in pairs if a != b)]
    body = [f"    {line}" for statement in made for line in statement.splitlines()]
    why = "# to be differentiated again: with their history"
    return Again(
        extra=tuple(parameter for parameter in needed if parameter not in saved),
        lines=(f"if torch.is_grad_enabled():  {why}", *body),
    )


def refused_again(name: str, why: str) -> Again:
    """The lines with which the Function `name` refuses to be differentiated again."""
    said = f"`{name}` is differentiable once: {why}"
    raised = f'    raise RuntimeError("{said}")'
    long = ("    raise RuntimeError(", f'        "{said}"', "    )")
    lines = ("if torch.is_grad_enabled():", *([raised] if len(raised) <= 80 else long))
    return Again(lines=lines, is_refusing=True)
