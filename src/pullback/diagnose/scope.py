"""The values that an edit of a hand-written backward can use, and how each is written.

These are the values of the user's own forward and backward, those of the derived backward, sums and
means of them, sizes and numbers. Each has its value in every trial, so that equal values are known
to be equal, and its expression in the user's variables.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback.diagnose.graph_values import GraphRun
from pullback.diagnose.numerals import simplest
from pullback.errors import UnsupportedOpError
from pullback.graph.cost import op_name
from pullback.graph.names import names_of
from pullback.graph.parts import BACKWARD, JointGraph, calls, phase_of
from pullback.graph.spelling import spell
from pullback.graph.spelling.expressions import ATOM, SIGN, Expression, PythonWriter
from pullback.graph.values import aten, tensor_of
from pullback.judge.tolerances import VALUE, are_near

LONGEST_EXPRESSION = 160
"""The longest expression; a longer one gets a made-up name."""

INPUT, COTANGENT, OUTPUT, SAVED, BACKWARD_VALUE, DERIVED, REDUCED, NUMBER, SIZE = (
    *("input", "cotangent", "output", "saved", "backward", "derived", "reduced", "number", "size"),
)


# ---- known values ----


@dataclass(frozen=True, slots=True, eq=False)
class NamedValue:
    """A value that an edit can use.

    Arguments:
        text: Its expression in the user's variables.
        values: Its value in each trial.
        origin: What kind of thing it is.
        node: Its node, in the user's graph or in the derived one.
        needs: The nodes of the user's backward that it is made from.
        reads: The user's values that its text mentions.
        made: For a reduction or a size, how it is made: the op, of what, and further arguments.
        is_clear: Whether the text is made of the user's variables alone: what is too long to be
            written out has a made-up name.
    """

    text: Expression
    values: tuple[Any, ...]
    origin: str
    node: fx.Node | None = None
    needs: frozenset[fx.Node] = frozenset()
    reads: frozenset[fx.Node] = frozenset()
    made: tuple[Any, NamedValue, tuple[Any, ...]] | None = None
    is_clear: bool = True

    @property
    def size(self) -> int:
        """How many ops stand in its expression."""
        return self.text.size if self.origin in (DERIVED, REDUCED) else min(self.text.size, 6)

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self.values[0], Tensor)


@dataclass(slots=True, eq=False)
class Scope:
    """All values that an edit can use, and the texts of the nodes of the user's graph.

    `named` has the value that each node, of either graph, equals.
    """

    hand: GraphRun
    names: dict[fx.Node, str]
    texts: dict[fx.Node, Expression]
    reads: dict[fx.Node, frozenset[fx.Node]]
    writer: PythonWriter
    known: list[NamedValue] = field(default_factory=list)
    named: dict[fx.Node, NamedValue] = field(default_factory=dict)
    numbers: list[float] = field(default_factory=list)  # to try, beside the common ones
    kept: tuple[Tensor, ...] = ()  # what forward saved in the first trial
    unclear: set[fx.Node] = field(default_factory=set)  # those whose text has a made-up name
    _shelves: dict[Any, list[NamedValue]] = field(default_factory=dict)

    def add(self, known: NamedValue) -> NamedValue:
        """Add a value, unless one is equal to it in every trial; the one that is kept."""
        shelf = self._shelves.setdefault(_label(known), [])
        for other in shelf:
            if all(map(_same, other.values, known.values)):
                return other
        shelf.append(known)
        self.known.append(known)
        return known

    def of(self, node: fx.Node) -> str:
        """The text of a node of the user's graph, in backticks."""
        return f"`{self.texts[node].text}`"

    def written(self, node: fx.Node) -> str:
        """The text of what computes a node, in backticks, also if it has a name."""
        expression = _spelled(self.writer, node)
        return f"`{expression.text if expression else self.writer.names.get(node, node.name)}`"


def _label(known: NamedValue) -> Any:
    """A key that equal values share, but for rounding."""
    first = known.values[0]
    if not isinstance(first, Tensor):
        return type(first).__name__, first
    flat = first.detach().reshape(-1)[:4].resolve_conj()
    head = torch.view_as_real(flat) if flat.is_complex() else flat
    numbers = [float(f"{float(x):.6g}") for x in head.reshape(-1)]
    return tuple(first.shape), str(first.dtype), tuple(numbers)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return bool((a == b).all())
    return are_near(a, b, VALUE)


# ---- the user's side ----


def scope_of(hand: GraphRun, input_names: Sequence[str], backward: Any) -> Scope:
    """What the user's own forward and backward hold."""
    names, own = _names(hand, input_names, backward)
    writer = PythonWriter(tuple(hand.joint.placeholders), names, {})
    reads: dict[fx.Node, frozenset[fx.Node]] = {}
    unclear: set[fx.Node] = set()
    for node in [*hand.joint.placeholders, *calls(hand.joint.graph)]:
        if node in own:
            writer.inlined[node] = Expression(own[node], size=0)
        else:
            _inline(writer, node, unclear, made_up=4)
        reads[node] = _reads(node, own, reads)
    scope = Scope(hand, own, dict(writer.inlined), reads, writer, unclear=unclear)
    for node in _in_order(hand.joint):
        _add_own(scope, node)
    return scope


def _names(
    hand: GraphRun, input_names: Sequence[str], backward: Any
) -> tuple[dict[fx.Node, str], dict[fx.Node, str]]:
    """A name for each node, and those of them that the user gave."""
    joint, captured = hand.joint, hand.captured
    rest = [one.name for one in captured.inputs[len(input_names) :]]
    needing = [i for i, one in enumerate(captured.inputs) if one.needs]
    names = names_of(joint, captured.local_names, [*input_names, *rest], differentiated=needing)
    own = dict(zip(joint.inputs, [*input_names, *rest], strict=True))
    taken = set(own.values())
    used = [place for place, output in enumerate(captured.outputs) if output.used]
    for node, name in zip(joint.cotangents, cotangent_names(backward, used), strict=True):
        own[node] = name if name not in taken else names[node]
        taken.add(own[node])
    for node in calls(joint.graph):
        local = _local_name(node, captured.local_names)
        if local == names[node] and local not in taken and node not in joint.gradients:
            own[node] = local
            taken.add(local)
    return {**names, **own}, own


def _local_name(node: fx.Node, names: Mapping[str, str]) -> str:
    known = (node.name, *node.meta.get("stands_for", ()))
    return next((names[name] for name in known if name in names), "")


def cotangent_names(backward: Any, outputs: Sequence[int]) -> list[str]:
    """What the user's backward calls the cotangents of these outputs."""
    parameters = list(inspect.signature(backward).parameters.values())[1:]
    return [_parameter_name(parameters, position) for position in outputs]


def _parameter_name(parameters: Sequence[inspect.Parameter], position: int) -> str:
    for place, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{position - place}]"
        if place == position:
            return parameter.name
    return f"grad_out{position}"


def _spelled(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """The expression of a node, or None if it has no short one."""
    if node.target is torch.sym_float:  # Python converts by itself
        return writer.expression(node.args[0])
    try:
        expression = spell(writer, node)
    except UnsupportedOpError:
        return None
    return expression if len(expression.text) <= LONGEST_EXPRESSION else None


def _inline(writer: PythonWriter, node: fx.Node, unclear: set[fx.Node], *, made_up: int) -> None:
    """Write a node in the user's variables, or by a made-up name, which counts as so many ops."""
    spelled = _spelled(writer, node)
    writer.inlined[node] = spelled or Expression(writer.names[node], size=made_up)
    if spelled is None or not unclear.isdisjoint(node.all_input_nodes):
        unclear.add(node)


def _reads(
    node: fx.Node, own: Mapping[fx.Node, str], reads: Mapping[fx.Node, frozenset[fx.Node]]
) -> frozenset[fx.Node]:
    if node in own:
        return frozenset({node})
    return frozenset().union(*(reads[arg] for arg in node.all_input_nodes))


def _in_order(joint: JointGraph) -> Iterator[fx.Node]:
    """The nodes: inputs, cotangents, what forward computes, what backward computes."""
    yield from joint.placeholders
    for is_backward in (False, True):
        for node in calls(joint.graph):
            if (phase_of(node) == BACKWARD) == is_backward and tensor_of(node) is not None:
                yield node


def _add_own(scope: Scope, node: fx.Node) -> None:
    values = tuple(values[node] for values in scope.hand.values)
    origin = _origin(scope.hand.joint, node)
    needs = frozenset({node}) if origin == BACKWARD_VALUE else frozenset()
    known = NamedValue(
        *(scope.texts[node], values, origin, node, needs, scope.reads[node]),
        is_clear=node not in scope.unclear,
    )
    scope.named[node] = scope.add(known)


def _origin(joint: JointGraph, node: fx.Node) -> str:
    if node.op == "placeholder":
        return INPUT if node in joint.inputs else COTANGENT
    if phase_of(node) == BACKWARD:
        return BACKWARD_VALUE
    return OUTPUT if node in joint.outputs else SAVED


# ---- the derived side ----


def add_derived(scope: Scope, derived: GraphRun, cotangents: Sequence[int]) -> None:
    """Add what the derived backward computes, written in the user's variables.

    `cotangents` gives for each cotangent of the derived graph its place among the user's.
    """
    user = scope.hand.joint
    named: dict[fx.Node, NamedValue] = {}
    for node, own in zip(derived.joint.inputs, user.inputs, strict=False):
        named[node] = scope.named[own]
    for node, place in zip(derived.joint.cotangents, cotangents, strict=True):
        named[node] = scope.named[user.cotangents[place]]
    names = {node: node.name for node in derived.joint.graph.nodes}
    names |= {node: known.text.text for node, known in named.items()}
    inlined = {node: known.text for node, known in named.items()}
    writer = PythonWriter(tuple(derived.joint.placeholders), names, inlined)
    unclear: set[fx.Node] = set()
    for node in calls(derived.joint.graph):
        _inline(writer, node, unclear, made_up=9)
        if tensor_of(node) is not None:
            inputs = [named[arg] for arg in node.all_input_nodes if arg in named]
            made = _derived(derived, node, writer.inlined[node], inputs)
            named[node] = scope.add(replace(made, is_clear=node not in unclear))
            writer.inlined[node] = named[node].text
            (unclear.discard if named[node].is_clear else unclear.add)(node)
    scope.named.update(named)
    scope.numbers += literals_in(derived.joint.graph)


def _derived(
    side: GraphRun, node: fx.Node, text: Expression, inputs: Sequence[NamedValue]
) -> NamedValue:
    values = tuple(values[node] for values in side.values)
    needs = frozenset().union(*(one.needs for one in inputs))
    reads = frozenset().union(*(one.reads for one in inputs))
    return NamedValue(text, values, DERIVED, node, needs, reads)


ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "pow", "gt", "ge", "lt", "le", "clamp", "full")
"""Ops whose integer arguments are numbers, not dimensions or sizes."""


def literals_in(graph: fx.Graph) -> list[float]:
    """The numbers that the arithmetic of a graph is written with."""
    found: list[float] = []
    for node in calls(graph):
        if op_name(node) in ARITHMETIC:
            plain = [arg for arg in node.args if isinstance(arg, (int, float))]
            found += [arg for arg in plain if not isinstance(arg, bool)]
    return list(dict.fromkeys(found))


# ---- what can be made of these ----


def add_reductions(scope: Scope) -> None:
    """Add the sum and the mean of each float value along each dimension, and over everything."""
    for known in list(scope.known):
        first = known.values[0]
        is_float = known.is_tensor and first.is_floating_point()
        if known.size > 2 or not known.is_clear or not is_float:
            continue
        for dims in [(), *((d,) for d in range(first.dim()))] if first.dim() else []:
            for name, whole, some in _REDUCTIONS:
                op, args = (some, (list(dims), True)) if dims else (whole, ())
                _add_reduced(scope, known, name, (op, args))


_REDUCTIONS: tuple[tuple[str, Any, Any], ...] = (
    ("sum", aten.sum.default, aten.sum.dim_IntList),
    ("mean", aten.mean.default, aten.mean.dim),
)


def _add_reduced(scope: Scope, known: NamedValue, name: str, call: tuple[Any, Any]) -> None:
    op, args = call
    values = tuple(op(value, *args) for value in known.values)
    inner = known.text.within(ATOM)
    listed = f"{args[0][0]}, keepdim=True" if args else ""
    text = Expression(f"{inner}.{name}({listed})", size=known.text.size + 1)
    made = (op, known, args)
    scope.add(NamedValue(text, values, REDUCED, None, known.needs, known.reads, made))


def numbers_in(scope: Scope, numbers: Sequence[float]) -> list[NamedValue]:
    """Plain numbers, and the sizes of the inputs, which may differ from trial to trial."""
    count = len(scope.hand.values)
    found = [NamedValue(written_number(n), (n,) * count, NUMBER) for n in dict.fromkeys(numbers)]
    for node in scope.hand.joint.inputs:
        found += _sizes(scope, node)
    return found + _scalars(scope)


def _scalars(scope: Scope) -> list[NamedValue]:
    """The numbers that the user's forward computes from sizes."""
    found = []
    for node in calls(scope.hand.joint.graph):
        values = tuple(values[node] for values in scope.hand.values)
        if all(isinstance(value, float) for value in values):
            found.append(NamedValue(scope.texts[node], values, SIZE, node))
    return found


def _sizes(scope: Scope, node: fx.Node) -> list[NamedValue]:
    tensors = [values[node] for values in scope.hand.values]
    name = scope.names[node]
    found = []
    made: tuple[Any, NamedValue, tuple[Any, ...]]
    for dim in range(tensors[0].dim()):
        sizes = tuple(int(tensor.shape[dim]) for tensor in tensors)
        made = (aten.sym_size.int, scope.named[node], (dim,))
        found.append(NamedValue(Expression(f"{name}.shape[{dim}]"), sizes, SIZE, made=made))
    if tensors[0].dim() > 1:
        counts = tuple(tensor.numel() for tensor in tensors)
        made = (aten.sym_numel.default, scope.named[node], ())
        found.append(NamedValue(Expression(f"{name}.numel()"), counts, SIZE, made=made))
    return [known for known in found if max(known.values) > 1]


def written_number(number: float) -> Expression:
    """A number as it is written: `2` for 2.0, `0.5`, `sqrt(2)`."""
    is_whole = float(number).is_integer() and abs(number) < 1e6
    short = str(int(number)) if is_whole else repr(number)
    text = short if len(short) <= 6 else simplest(number)
    return Expression(text, SIGN if number < 0 else ATOM, 0)
