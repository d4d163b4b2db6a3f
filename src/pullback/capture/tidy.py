"""From the raw trace to the form of `graph/parts.py`: placeholders first, ops without side effects.

Steps, each from a graph to a new graph: bring the placeholders to the front and turn constants into
inputs; write in-place ops as ops without side effects, where there are any; drop what only autograd
needs (`detach`, `alias`) and what is unused.
"""

from __future__ import annotations

import operator
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, fx

from pullback.capture.fake import Stage
from pullback.capture.marks import NodeMark, NodeMarks
from pullback.capture.names import identifier
from pullback.capture.refuse import changed_late, unwritable
from pullback.capture.tracing import CLOSURE, CONSTANT, Traced, TracedInput, TracedOutput, is_traced
from pullback.function.slots import op_schema
from pullback.graph.cost import base_of, is_mutating, is_random
from pullback.graph.names import unused
from pullback.graph.parts import BACKWARD, FORWARD, JointGraph, calls, phase_of

aten = torch.ops.aten

# Ops that give their argument back: autograd needs them, a graph of values does not.
_SAME = (
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
_MARKS = ("unit", "place", "phase")
_KEPT = ("val", *_MARKS, "local")


def tidy(stage: Stage, traced: Traced) -> JointGraph:
    """The joint graph of a trace. What turns out to be an input is added to `traced.held`."""
    graph = _Forming(stage, traced).run()
    mutable = [node for node in calls(graph) if is_mutating(node)]
    for node in mutable:
        if getattr(node.target, "namespace", "") != "aten":
            raise unwritable(traced.name, node)
    if mutable:
        graph = _functional(stage, graph)
    _report_changes(traced, graph)
    _keep_checks(graph)
    graph = _bare(graph)
    _compute_numbers(graph)
    for node in calls(graph):
        if is_mutating(node) or _is_higher(node):
            raise unwritable(traced.name, node)
        _complete(node)
    joint = JointGraph(graph, len(traced.held), _count(traced))
    _copy_returned_constants(traced, joint)
    _move_forward(traced, joint)
    return joint


def _count(traced: Traced) -> int:
    return sum(is_traced(result.value) for result in traced.results)


def _is_higher(node: fx.Node) -> bool:
    """Whether `node` calls other graphs (`torch.cond` and its like)."""
    return getattr(node.target, "namespace", "") == "higher_order"


# ---- placeholders first ----


class _Forming:
    """The copy of a raw graph with its placeholders in front, under the user's names."""

    def __init__(self, stage: Stage, traced: Traced) -> None:
        self.stage = stage
        self.traced = traced
        self.old = traced.module.graph
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, Any] = {}
        self.taken = {identifier(held.name) for held in traced.held}

    def run(self) -> fx.Graph:
        """The new graph."""
        loose = self._loose_tensors()
        for held in self.traced.held:
            self._place(identifier(held.name), held.node)
        for node, held in loose.items():
            self._place(identifier(held.name), node)
        cotangents = [r.node for r in self.traced.results if r.node is not None]
        for position, cotangent in enumerate(cotangents):
            self._place(f"cotangent_{position}" if cotangents[1:] else "cotangent", cotangent)
        self.traced.held += loose.values()
        for node in self.old.nodes:
            if node.op == "call_function":
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
            elif node.op == "get_attr" and node not in self.copies:
                self.copies[node] = self._attribute(node)
        returned = fx.map_arg(self.old.output_node().args[0], self.copies.__getitem__)
        self.graph.output(tuple(returned))  # type: ignore[arg-type]
        return self.graph

    def _place(self, name: str, node: fx.Node | None) -> None:
        assert node is not None
        placeholder = _placeholder(self.graph, name)
        placeholder.meta = dict(node.meta)
        self.copies[node] = placeholder

    def _loose_tensors(self) -> dict[fx.Node, TracedInput]:
        """New inputs for the tensors that the raw graph holds itself."""
        found: dict[int, TracedInput] = {}
        loose: dict[fx.Node, TracedInput] = {}
        for node in self.old.nodes:
            if node.op != "get_attr" or not isinstance(tensor := self._value(node), Tensor):
                continue
            known = [held for held in self.traced.held if held.is_closure(tensor)]
            if known or id(tensor) in found or _is_number(node, tensor):
                continue
            held = found[id(tensor)] = self._held(node, tensor)
            node.meta["val"] = held.leaf
            loose[node] = held
        return loose

    def _held(self, node: fx.Node, tensor: Tensor) -> TracedInput:
        if _is_fresh(node):
            name, kind = self._unused("constant"), CONSTANT
        else:
            name, kind = self.traced.closure_name(tensor) or self._unused("closure"), CLOSURE
        leaf = self.stage.stand_in(tensor)
        return TracedInput(name, kind, tensor, False, tensor.is_leaf, leaf, leaf)

    def _unused(self, wish: str) -> str:
        """`wish`, with a number if an input is called so."""
        name = unused(wish, self.taken)
        self.taken.add(name)
        return name

    def _attribute(self, node: fx.Node) -> fx.Node:
        """The node for a tensor that the raw graph holds, and that has no node of its own yet."""
        tensor = self._value(node)
        if not isinstance(tensor, Tensor):
            raise unwritable(self.traced.name, node)
        if not _is_number(node, tensor):
            for held, copy in zip(self.traced.held, self.graph.nodes, strict=False):
                if held.is_closure(tensor):
                    return cast(fx.Node, copy)
        kwargs: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
        kwargs["pin_memory"] = False
        args: Any = ([], tensor.item())
        full = self.graph.create_node("call_function", aten.full.default, args, kwargs, "full")
        user = next(iter(node.users))
        full.meta = {key: user.meta[key] for key in _MARKS} | {"val": self.stage.stand_in(tensor)}
        return full

    def _value(self, node: fx.Node) -> Any:
        return attrgetter(str(node.target))(self.traced.module)


def _placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """A placeholder of that name, or of the nearest one that is free."""
    node = graph.create_node("placeholder", name, name=name)
    node.target = node.name
    return node


def _is_fresh(node: fx.Node) -> bool:
    """Whether the program itself makes this tensor, from numbers."""
    return all(user.target is aten.lift_fresh_copy.default for user in node.users)


def _is_number(node: fx.Node, tensor: Tensor) -> bool:
    return tensor.dim() == 0 and _is_fresh(node)


# ---- no side effects ----


class _Carrying(fx.Interpreter):
    """Runs a graph so that what it adds to a growing graph carries the marks of what it came of."""

    def __init__(self, module: fx.GraphModule, stage: Stage) -> None:
        fx.Interpreter.__init__(self, module, garbage_collect_values=False)
        self.marks = NodeMarks(lambda: stage.graph, stage.node_of)

    def run_node(self, n: fx.Node) -> Any:
        """The value of `n`; the nodes that it took are marked."""
        self.marks.mark_added(NodeMark())
        value = fx.Interpreter.run_node(self, n)
        self.marks.phase = phase_of(n)
        added = self.marks.mark_added(NodeMark(n.meta.get("unit"), n.meta.get("place", "")))
        for node in added[:1]:
            node.meta.update({key: n.meta[key] for key in ("local", "given") if key in n.meta})
        return value


def _functional(stage: Stage, graph: fx.Graph) -> fx.Graph:
    """`graph` with each in-place op written as one that gives a new tensor.

    The last value of a placeholder that is changed is written back to it at the end (`copy_`).
    """
    module = fx.GraphModule({}, graph)
    placeholders = graph.find_nodes(op="placeholder")

    def run(*values: Any) -> Any:
        with torch.no_grad():
            return _Carrying(module, stage).run(*values)

    inputs = [node.meta["val"] for node in placeholders]
    result = stage.trace(torch.func.functionalize(run), inputs).graph
    for old, new in zip(placeholders, result.find_nodes(op="placeholder"), strict=True):
        new.target = old.target
        new.meta = dict(old.meta)
    return result


def _report_changes(traced: Traced, graph: fx.Graph) -> None:
    """Make outputs of the new values that autograd did not see (`x.data.add_(1)`, batch norm).

    Those that it saw are outputs already.
    """
    placeholders = graph.find_nodes(op="placeholder")[: len(traced.held)]
    known = {result.changes for result in traced.results}
    end = graph.output_node()
    for node in [node for node in calls(graph) if _is_written_back(node)]:
        position = placeholders.index(node.args[0]) if node.args[0] in placeholders else None
        if position is None or position in known:
            continue
        returned, new = list(end.args[0]), node.args[1]  # type: ignore[arg-type]
        returned.insert(_count(traced), new)
        end.args = (tuple(returned),)
        traced.results.append(TracedOutput(new.meta["val"], changes=position))  # type: ignore[union-attr]


def _keep_checks(graph: fx.Graph) -> None:
    """Let the ops of `torch.linalg` check what they give, where an op beside them does it.

    That one gives no value (it raises for a singular matrix), so it has no place in the graph.
    """
    for check in graph.find_nodes(op="call_function", target=aten._linalg_check_errors.default):
        node: Any = check.args[0]
        while node.target in (*_SAME, operator.getitem):
            node = node.args[0]
        schema = op_schema(node.target)
        if schema is not None and any(a.name == "check_errors" for a in schema.arguments):
            node.kwargs = {**node.kwargs, "check_errors": True}


# ---- nothing but values ----


def _bare(graph: fx.Graph) -> fx.Graph:
    """`graph` without what has no influence on values, or whose value is unused."""
    new = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            copies[node] = _placeholder(new, str(node.target))
        elif node.target in _SAME or node.meta.get("given"):
            copies[node] = copies[node.args[0]]
            continue
        elif node.op == "call_function" and not _is_written_back(node):
            copies[node] = new.node_copy(node, copies.__getitem__)
        if node in copies:
            copies[node].meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
    new.output(fx.map_arg(tuple(graph.output_node().args[0]), copies.__getitem__))  # type: ignore
    for node in reversed(list(calls(new))):
        # An unused draw of random numbers still moves the stream for the next one.
        if not node.users and not is_random(node):
            new.erase_node(node)
    return new


def _copy_returned_constants(traced: Traced, joint: JointGraph) -> None:
    """Return copies of the tensors made from numbers: a program makes new ones at each call.

    A caller may change what is returned, and the next call must not see that.
    """
    made = {
        node
        for node, held in zip(joint.inputs, traced.held, strict=True)
        if held.kind == CONSTANT and isinstance(node, fx.Node)
    }
    outputs = [node for node in joint.outputs if isinstance(node, fx.Node)]
    for constant in dict.fromkeys(base_of(node) for node in outputs):
        if constant not in made:
            continue
        first = next(node for node in joint.graph.nodes if node.op != "placeholder")
        with joint.graph.inserting_before(first):
            copy = joint.graph.call_function(aten.clone.default, (constant,))
        copy.meta = {
            "val": constant.meta["val"].clone(),
            "phase": FORWARD,
            "unit": None,
            "place": "",
        }
        for user in [user for user in constant.users if user is not copy]:
            user.replace_input_with(constant, copy)


def _compute_numbers(graph: fx.Graph) -> None:
    """Put the result in the place of each op on numbers alone.

    A trace writes a number for the tensor that PyTorch wraps around it: the backward of `x * 1j`
    takes the conjugate of one.
    """
    for node in [node for node in calls(graph) if _is_of_numbers(node)]:
        args = [torch.as_tensor(arg, dtype=_WRAPPED.get(type(arg))) for arg in node.args]
        number = node.target(*args).item()  # type: ignore[operator]
        node.replace_all_uses_with(number)
        graph.erase_node(node)


_WRAPPED = {float: torch.float64, complex: torch.complex128}


def _is_of_numbers(node: fx.Node) -> bool:
    """Whether `node` calls an op on numbers in the place of tensors, for one number."""
    schema, val = op_schema(node.target), node.meta.get("val")
    if schema is None or node.kwargs or not isinstance(val, Tensor) or val.dim():
        return False
    kinds = [str(argument.type) for argument in schema.arguments[: len(node.args)]]
    is_number = [isinstance(arg, (int, float, complex)) for arg in node.args]
    return bool(kinds) and all(is_number) and set(kinds) == {"Tensor"}


def _is_written_back(node: fx.Node) -> bool:
    target = node.args[0] if node.args else None
    is_input = isinstance(target, fx.Node) and target.op == "placeholder"
    return is_input and node.target is aten.copy_.default and not node.users


def _complete(node: fx.Node) -> None:
    """Give `node` the marks of its arguments, where it has none of its own."""
    if "phase" in node.meta:
        return
    before = [n for n in node.all_input_nodes if n.op == "call_function"]
    late = [n for n in before if phase_of(n) == BACKWARD]
    like = (late or before or [node])[-1]
    node.meta["unit"], node.meta["place"] = like.meta.get("unit"), like.meta.get("place", "")
    node.meta["phase"] = BACKWARD if late else FORWARD


def _move_forward(traced: Traced, joint: JointGraph) -> None:
    """Call forward what the outputs are made of, whenever it was added to the graph.

    A size that the program returns, and a view of a changed tensor, come up at the very end. What
    backward itself computes is no part of an output, unless it changes an input in place.
    """
    left = [node for node in joint.outputs if isinstance(node, fx.Node)]
    cotangents, seen = set(joint.cotangents), set[fx.Node]()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in cotangents or _is_late(node):
            raise changed_late(traced.name, str(node.meta.get("place", "")))
        if node.op == "call_function":
            node.meta["phase"] = FORWARD
            left += node.all_input_nodes


def _is_late(node: fx.Node) -> bool:
    """Whether backward computed `node`. Sizes are written down when they are first needed."""
    is_size = isinstance(node.meta.get("val"), torch.SymInt)
    return node.op == "call_function" and phase_of(node) == BACKWARD and not is_size
