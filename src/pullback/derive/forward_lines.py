"""What a printed forward says besides its ops: checks of layouts, outputs without a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from pullback.capture.joint import Capture
from pullback.derive.recipe import Parts
from pullback.graph.cost import base_of, is_view, op_name
from pullback.graph.parts import calls
from pullback.graph.values import is_smooth
from pullback.judge.comparison import Comparison


def idle_among(captured: Capture, parameters: Sequence[str]) -> frozenset[str]:
    """The arguments that no gradient reaches: saved with their history, a second one would."""
    rows = zip(parameters, captured.inputs, captured.joint.inputs, strict=True)
    return frozenset(
        name
        for name, one, node in rows
        if one.kind == "argument" and not one.needs and is_smooth(node)
    )


def offset_checks(captured: Capture, parameters: Sequence[str]) -> list[str]:
    """What refuses inputs that do not begin where their memory does, if that can be seen."""
    pairs = zip(parameters, captured.inputs, strict=True)
    return [
        f"if {name}.storage_offset() != 0:\n"
        f'    raise ValueError("`{name}` must begin where its memory does: pass a clone")'
        for name, one in pairs
        if one.offset is not None
    ]


def reads_memory(captured: Capture) -> bool:
    """Whether an op takes the numbers of an input by their places in memory (`as_strided`)."""
    inputs = set(captured.joint.inputs)
    raw = (node for node in calls(captured.joint.graph) if op_name(node).startswith("as_strided"))
    sources = (node.args[0] for node in raw)
    return any(isinstance(one, fx.Node) and base_of(one) in inputs for one in sources)


def layout_checks(captured: Capture, parameters: Sequence[str], name: str) -> list[str]:
    """What refuses inputs in another layout than the plain one, if that decides what is computed.

    What is a view of a tensor and what is a copy, and so what a change in place changes, does.
    """
    given = [
        node
        for one, node in zip(captured.inputs, captured.joint.inputs, strict=True)
        if one.is_given
    ]
    return [
        f"if not {parameter}.is_contiguous():\n"
        f'    raise ValueError("`{name}`: {parameter} must be contiguous: pass a copy")'
        for parameter, node in zip(parameters, given, strict=True)
        if is_smooth(node) and node.meta["val"].dim() > 0
    ]


def history_marks(comparison: Comparison, returned: Sequence[str]) -> list[str]:
    """What marks the outputs that have no gradient, at all or in a call whose inputs need none."""
    captured, links = comparison.captured, iter(comparison.links)
    silent, some = list[str](), dict[frozenset[int], list[str]]()
    given = [place for place, one in enumerate(captured.inputs) if one.is_given]
    smooth = frozenset(place for place in given if is_smooth(captured.joint.inputs[place]))
    for o in captured.outputs:
        linked = next(links, smooth) if o.is_written else smooth
        if o.index is None or o.kind != "tensor":
            continue
        if not o.differentiable:
            silent.append(returned[o.index])
        elif linked and linked != smooth:
            some.setdefault(linked, []).append(returned[o.index])
    if not some:
        return [f"ctx.mark_non_differentiable({', '.join(silent)})"] if silent else []
    rows = [f"{name}," for name in silent]
    for linked, names in some.items():
        flags = [f"ctx.needs_input_grad[{given.index(place)}]" for place in sorted(linked)]
        rows.append(f"*([] if {' or '.join(flags)} else [{', '.join(names)}]),")
    return ["ctx.mark_non_differentiable(", *(f"    {row}" for row in rows), ")"]


def taken_apart(captured: Capture, parts: Parts, returned: list[str]) -> Iterator[str]:
    """Let an output without a gradient be a tensor of its own, as after `detach`.

    It may be returned with a gradient as well, or be a view of what has one.
    """
    tensors = [o for o in captured.outputs if o.index is not None and o.kind == "tensor"]
    live = {returned[o.index] for o in tensors if o.differentiable and o.index is not None}
    taken = {*parts.names.values(), *returned}
    for o in tensors:
        if o.index is None or o.differentiable:
            continue
        if returned[o.index] in live or is_view(parts.joint.outputs[o.index]):
            old, number = returned[o.index], 0
            while (new := f"{old}_detached{number or ''}") in taken:
                number += 1
            taken.add(new)
            returned[o.index] = new
            yield f"{new} = {old}.detach()"
