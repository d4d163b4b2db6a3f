"""A Function, program or module as a graph to draw: captured, cut, and each node with its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import Function as TorchFunction

from pullback.capture.trees import tensor_leaves
from pullback.compose.functional import ModuleLayout, module_program
from pullback.compose.modules import plain_of
from pullback.derive.backward import make_derived
from pullback.derive.recipe import Parts, Recipe, parts_of
from pullback.derive.returned import record_of
from pullback.errors import CaptureError
from pullback.function.plain import is_derived, signature_of_apply
from pullback.graph.cost import bytes_of, bytes_text, flops_of, is_matmul_like, op_name
from pullback.graph.parts import BACKWARD as IN_BACKWARD
from pullback.graph.parts import phase_of
from pullback.graph.values import tensor_of
from pullback.judge.example import dtype_name
from pullback.plan.planned import Plan
from pullback.report.graphs.picture import (
    BACKWARD,
    COTANGENT,
    FORWARD,
    INPUT,
    DrawnGraph,
    DrawnNode,
)
from pullback.report.graphs.timing import seconds_of

READERS = 3  # that are named of what reads a saved value


def drawn_graph(
    target: Any,
    *examples: Any,
    save: str | int | None = None,
    is_timed: bool = True,
) -> DrawnGraph:
    """The graph of what pullback made, of a Function as it is written, a program, module or plan.

    Examples may be left out for what was made with some. `save` is what is kept for backward, as in
    `derive`; by default that of what was made or planned, and "auto" for others.
    """
    groups: tuple[tuple[int, ...], ...] = ()
    if isinstance(target, Plan):
        chosen = target.evidence.sized[-1].chosen
        groups = tuple(tuple(group) for group in chosen.groups)
        save = chosen.save or None if save is None else save
        target = target.program
    name = getattr(target, "__name__", type(target).__name__)
    if is_derived(target):
        groups = groups or tuple(tuple(group) for group in getattr(target, "groups", ()))
        record = record_of(target)
        if record is not True:
            recipe = record.recipes.fresh(examples) if examples else record.general
            policy = record.recipes.save if save is None else save
            return _drawn(name, recipe, policy, groups, tensor_leaves(examples), is_timed)
        target = target.program
    if not examples:
        raise CaptureError(
            f"`{name}` must come with examples of its arguments to be drawn",
            expected="pb.draw(target, *examples)",
            got="no example",
            fix="pass tensors like those it will be called with",
        )
    program, args = _program(target, examples)
    made = make_derived(program, args, "auto" if save is None else save)
    recipe = record_of(made).recipes.fresh(args)
    policy = "auto" if save is None else save
    drawn = _drawn(name, recipe, policy, groups, tensor_leaves(args), is_timed)
    return _with_paths(drawn, target) if isinstance(target, nn.Module) else drawn


def _with_paths(drawn: DrawnGraph, module: nn.Module) -> DrawnGraph:
    """The graph of a module, its parameters and buffers called as the module calls them."""
    names = ModuleLayout(plain_of(module)).names
    written = [node.name for node in drawn.nodes if node.kind == INPUT][: len(names)]
    of = dict(zip(written, names, strict=True))
    of |= {f"gradient of {old}": f"gradient of {new}" for old, new in of.items()}
    nodes = [
        replace(
            node,
            name=of.get(node.name, node.name),
            returns=tuple(of.get(word, word) for word in node.returns),
        )
        for node in drawn.nodes
    ]
    return replace(drawn, nodes=tuple(nodes))


def _program(target: Any, examples: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What is captured: a Function by its own backward, a module with its tensors as inputs."""
    if isinstance(target, nn.Module):
        layout = ModuleLayout(plain_of(target))
        if layout.reason:
            raise CaptureError(
                f"`{type(target).__name__}` must run on tensors that are given to it to be drawn",
                got=layout.reason,
            )
        with torch.enable_grad():
            return module_program(layout, frozenset()), (*layout.row(), *examples)
    if isinstance(target, type) and issubclass(target, TorchFunction):
        function: Any = target

        def program(*args: Any) -> Any:
            return function.apply(*args)

        program.__name__ = target.__name__
        named: Any = program
        named.__signature__ = signature_of_apply(target)
        return program, tuple(examples)
    return target, tuple(examples)


def _drawn(
    name: str,
    recipe: Recipe,
    policy: str | int,
    groups: tuple[tuple[int, ...], ...],
    tensors: Sequence[Tensor],
    is_timed: bool,
) -> DrawnGraph:
    parts = parts_of(recipe.captured, policy, readable=True)
    seconds = seconds_of(recipe, parts.joint, tensors) if is_timed and tensors else {}
    nodes = [node for node in parts.joint.graph.nodes if node.op != "output"]
    numbers = {node: number for number, node in enumerate(nodes)}
    returned = _returned(recipe, parts)
    drawn = [_node(node, parts, seconds, returned.get(node, ())) for node in nodes]
    edges = [(numbers[arg], numbers[n]) for n in nodes for arg in n.all_input_nodes]
    return DrawnGraph(
        name,
        tuple(drawn),
        tuple(edges),
        tuple(recipe.captured.units),
        groups,
        dict(_facts(parts, policy, recipe, drawn)),
    )


def _returned(recipe: Recipe, parts: Parts) -> dict[Any, tuple[str, ...]]:
    """What each node is of the results: an output, or the gradient of an input."""
    found: dict[Any, list[str]] = {}
    for place, node in enumerate(parts.joint.outputs):
        found.setdefault(node, []).append(f"output {place}" if place else "output")
    needed = [one.name for one in recipe.captured.inputs if one.needs]
    for name, node in zip(needed, parts.joint.gradients, strict=True):
        found.setdefault(node, []).append(f"gradient of {name}")
    return {node: tuple(words) for node, words in found.items() if isinstance(node, fx.Node)}


def _node(
    node: fx.Node, parts: Parts, seconds: dict[str, float], returns: tuple[str, ...]
) -> DrawnNode:
    joint = parts.joint
    if node.op == "placeholder":
        kind = INPUT if node in joint.inputs else COTANGENT
    else:
        kind = BACKWARD if phase_of(node) == IN_BACKWARD else FORWARD
    value = tensor_of(node)
    shape = f"{dtype_name(value.dtype)}{[int(s) for s in value.shape]}" if value is not None else ""
    is_call = node.op == "call_function"
    return DrawnNode(
        parts.names.get(node, node.name),
        kind,
        op_name(node) if is_call else "",
        node.meta.get("unit"),
        str(node.meta.get("place", "")),
        shape,
        bytes_of(node) if value is not None else 0,
        flops_of(node) if is_call else 0,
        seconds.get(node.name),
        _why_saved(node, parts) if node in parts.cut.saved else "",
        node in parts.cut.recomputed,
        returns,
    )


def _why_saved(node: fx.Node, parts: Parts) -> str:
    """Why a value is kept: who reads it in backward, and what it costs."""
    readers = _readers(node, parts)
    names = [f"{parts.names.get(r, r.name)} ({op_name(r)})" for r in readers[:READERS]]
    more = f" and {len(readers) - READERS} more" if len(readers) > READERS else ""
    read = f"backward reads it for {', '.join(names)}{more}" if names else "backward reads it"
    if node in parts.joint.inputs:
        return f"{read}; it is an input, which is there anyway"
    if node in parts.joint.outputs:
        return f"{read}; it is an output, which is there anyway"
    again = f"to compute it again takes {flops_of(node):,} operations"
    if is_matmul_like(node):
        again += ", of a kind that is never done twice"
    return f"{read}; it takes {bytes_text(bytes_of(node))}, and {again}"


def _readers(node: fx.Node, parts: Parts) -> list[fx.Node]:
    """The nodes that read a value in backward, also through what is computed again."""
    found: list[fx.Node] = []
    waiting = list(node.users)
    seen: set[fx.Node] = set()
    while waiting:
        user = waiting.pop(0)
        if user in seen or user.op == "output":
            continue
        seen.add(user)
        if phase_of(user) == IN_BACKWARD:
            found.append(user)
        elif user in parts.cut.recomputed:
            waiting += [u for u in user.users if u not in seen]
    return found


def _facts(
    parts: Parts, policy: str | int, recipe: Recipe, drawn: Sequence[DrawnNode]
) -> list[tuple[str, str]]:
    """What is said of the whole."""
    cut = parts.cut
    kinds = [node.kind for node in drawn]
    return [
        ("ops", f"{kinds.count(FORWARD)} forward, {kinds.count(BACKWARD)} backward"),
        ("calls", str(len(recipe.captured.units))),
        ("save", str(policy)),
        ("values kept", str(len(cut.saved))),
        ("held by nothing else", bytes_text(cut.charged_bytes)),
        (
            "computed again",
            f"{len(cut.recomputed)} op{'s' * (len(cut.recomputed) != 1)}, {cut.flops:,} operations",
        ),
    ]
