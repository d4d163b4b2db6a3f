"""Names for the nodes of a joint graph: the user's own where they are known, else descriptive ones.

An input and a local variable keep the name they have in the user's function, a gradient is
`grad_<name>`, and the rest is called after what it computes: `exp_x`, `mean_x`, `mask`.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import getitem
from typing import Any

from torch import fx

from pullback.function.slots import op_schema
from pullback.graph.cost import op_name, op_of
from pullback.graph.parts import BACKWARD, FORWARD, JointGraph, calls, phase_of
from pullback.graph.values import is_scalar, tensor_of

RESERVED = frozenset({"torch", "ctx", "self", "cls", "_", *dir(builtins)})
"""Names that a printed function must not take: it uses some of them."""

LocalNames = Mapping[Any, str]
"""The variable that held a node's value: keys are nodes, or names of nodes."""


class Local(str):
    """What the user calls a value, and the number of the value: its gradient has the same one."""

    value: int

    def __new__(cls, name: str, value: int) -> Local:
        """`name`, for the value of that number."""
        local = super().__new__(cls, name)
        local.value = value
        return local


class Names(dict[fx.Node, str]):
    """The name of each node, and which of them were given, not made up."""

    given: frozenset[fx.Node] = frozenset()
    """The user's names, and hints of rules: they deserve a line in a text."""

    def __init__(self) -> None:
        super().__init__()
        self.stems: dict[fx.Node, str] = {}  # names without the numbers that make them distinct

    def renumbered(self, order: Iterable[str]) -> Names:
        """These names with new numbers for those that were made up.

        Arguments:
            order: Names as they appear in a text. Those in it are numbered as they come, without
                gaps, and all others after them.
        """
        places = {name: place for place, name in reversed(list(enumerate(order)))}
        book = _Book()
        for node, name in self.items():
            if node in self.given:
                book.names[node], book.names.stems[node] = name, self.stems[node]
                book.taken.add(name)
        book.given = set(self.given)
        rest = [node for node in self if node not in self.given]
        for node in sorted(rest, key=lambda node: places.get(self[node], math.inf)):
            book.invent(node, self.stems[node])
        return book.finish()


def names_of(
    joint: JointGraph,
    local_names: LocalNames,
    input_names: Sequence[str],
    *,
    differentiated: Sequence[int] | None = None,
) -> Names:
    """A name for each node of `joint`: no two alike, no keyword, the same from run to run.

    Arguments:
        joint: The graph, captured or rewritten: a node that stands for others takes their names.
        local_names: What the user called the values of nodes, by node or by name of node.
        input_names: What the user called the inputs, one name for each.
        differentiated: The positions of the inputs that need a gradient, one per gradient. Without
            it, they are all inputs if there are as many, else those of the rank and dtype of the
            gradients, in order.
    """
    book = _Book()
    for node, name in zip(joint.inputs, input_names, strict=False):
        book.give(node, name)
    _name_gradients(joint, book, _differentiated(joint, differentiated))
    locals_ = {getattr(key, "name", key): name for key, name in local_names.items()}
    _name_locals(joint, book, locals_, FORWARD)
    _name_outputs(joint, book)
    _name_cotangents(joint, book)
    _name_locals(joint, book, _numbered(joint, book, locals_), BACKWARD)
    _invent_rest(joint, book)
    return book.finish()


class _Book:
    """Names given so far."""

    def __init__(self) -> None:
        self.names = Names()
        self.taken: set[str] = set()
        self.given: set[fx.Node] = set()

    def give(self, node: Any, wish: str) -> None:
        """Name a node by what the user calls it, unless it has a name."""
        if isinstance(node, fx.Node) and node not in self.names:
            self.invent(node, wish)
            self.given.add(node)

    def invent(self, node: fx.Node, wish: str) -> None:
        """Name a node by `wish`, with a number if it is taken."""
        name = identifier_for(wish)
        free = unused(name, self.taken)
        self.names[node] = free
        self.names.stems[node] = name
        self.taken.add(free)

    def finish(self) -> Names:
        """The names."""
        self.names.given = frozenset(self.given)
        return self.names


def unused(wish: str, taken: Collection[str]) -> str:
    """`wish`, with a number if it is taken.

    >>> unused("constant", {"constant", "constant_1"})
    'constant_2'
    """
    name, number = wish, 1
    while name in taken:
        name, number = f"{wish}_{number}", number + 1
    return name


def identifier_for(wish: str) -> str:
    """`wish` as an identifier that shadows nothing."""
    name = re.sub(r"\W", "_", wish.rstrip("]")) or "_"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or name in RESERVED else name


# ---- what the user named ----


def _name_locals(joint: JointGraph, book: _Book, names: dict[Any, str], phase: str) -> None:
    for node, name in _locals(joint, names):
        if phase_of(node) == phase:
            book.give(node, name)


def _locals(joint: JointGraph, names: dict[Any, str]) -> Iterator[tuple[fx.Node, str]]:
    """Each node that the user named, also by the name of a node whose place it took."""
    for node in calls(joint.graph):
        for known in (node.name, *node.meta.get("stands_for", ())):
            if known in names:
                yield node, names[known]


def _numbered(joint: JointGraph, book: _Book, names: dict[Any, str]) -> dict[Any, str]:
    """`names`, with each gradient named after the very value it belongs to.

    A variable that is assigned again holds several values, whose names got numbers. The gradient
    of a value that was simplified away has no name to follow.
    """
    heads = {
        name.value: node
        for node, name in _locals(joint, names)
        if isinstance(name, Local) and phase_of(node) == FORWARD
    }
    shared = Counter(name for name in names.values())
    exact: dict[Any, str] = {}
    for known, name in names.items():
        if not isinstance(name, Local) or not name.startswith("grad_"):
            exact[known] = name
        elif name.value in heads:
            wish = f"grad_{book.names[heads[name.value]]}"
            # The cotangent of an output is only a part of the gradient of what it was made from.
            exact[known] = f"{wish}_total" if wish in book.taken else wish
        elif shared[name] == 1 and name not in book.taken:
            exact[known] = name
    return exact


def _name_outputs(joint: JointGraph, book: _Book) -> None:
    several = len(joint.outputs) > 1
    for position, node in enumerate(joint.outputs):
        book.give(node, f"out{position}" if several else "out")


def _name_gradients(joint: JointGraph, book: _Book, inputs: list[fx.Node]) -> None:
    for gradient, source in zip(joint.gradients, inputs, strict=False):
        if isinstance(gradient, fx.Node) and gradient.op == "call_function":
            book.give(gradient, f"grad_{book.names[source]}")


def _name_cotangents(joint: JointGraph, book: _Book) -> None:
    outputs = [node for node in joint.outputs if isinstance(node, fx.Node)]
    differentiable = _matching(joint.cotangents, outputs)
    for cotangent, output in zip(joint.cotangents, differentiable, strict=False):
        book.give(cotangent, f"grad_{book.names[output]}")
    for cotangent in joint.cotangents:
        book.give(cotangent, "grad_out")


def _differentiated(joint: JointGraph, positions: Sequence[int] | None) -> list[fx.Node]:
    """The input of each gradient."""
    if positions is not None:
        return [joint.inputs[position] for position in positions]
    if len(joint.gradients) == len(joint.inputs):
        return joint.inputs
    return _matching(joint.gradients, joint.inputs)


def _matching(values: Iterable[Any], sources: list[fx.Node]) -> list[fx.Node]:
    """For each value the next source with its rank and dtype; in order, as both are."""
    found: list[fx.Node] = []
    rest = iter(sources)
    for value in values:
        match = next((source for source in rest if _fits(value, source)), None)
        if match is None:
            break
        found.append(match)
    return found


def _fits(value: Any, source: fx.Node) -> bool:
    one, two = tensor_of(value), tensor_of(source)
    if two is None or not (two.is_floating_point() or two.is_complex()):
        return False
    return one is None or (one.dim(), one.dtype) == (two.dim(), two.dtype)


# ---- the rest ----

WORDS = {
    **dict.fromkeys(("sum", "mean", "var", "std", "prod", "neg"), ""),
    **dict.fromkeys(("amax", "max"), "max"),
    **dict.fromkeys(("amin", "min"), "min"),
    **dict.fromkeys(("_softmax", "softmax"), "probs"),
    **dict.fromkeys(("_log_softmax", "log_softmax"), "log_probs"),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "bitwise_not", "logical_not"), "mask"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "logical_and", "logical_or"), "mask"),
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "addmm", "linear"), "product"),
    **dict.fromkeys(("mul", "mul_"), "scaled"),
    **dict.fromkeys(("add", "cumsum"), "total"),
    **dict.fromkeys(("sub", "rsub"), "diff"),
    **dict.fromkeys(("div",), "ratio"),
    **dict.fromkeys(("pow",), "power"),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "expand", "permute"), "reshaped"),
    **dict.fromkeys(("t", "transpose"), "transposed"),
    **dict.fromkeys(("slice", "select", "index", "gather", "embedding"), "part"),
    **dict.fromkeys(("split", "split_with_sizes", "unbind"), "part"),
    **dict.fromkeys(("scatter", "scatter_add", "index_put", "index_add"), "placed"),
    **dict.fromkeys(("select_scatter", "slice_scatter", "_unsafe_index_put"), "placed"),
    **dict.fromkeys(("unsqueeze", "squeeze", "flip", "roll"), "moved"),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), "clamped"),
    **dict.fromkeys(("linalg_lu_solve", "linalg_solve_triangular", "linalg_solve"), "solved"),
    **dict.fromkeys(("_unsafe_index", "index_select"), "part"),
    **dict.fromkeys(("view_as_complex", "complex"), "joined"),
    **dict.fromkeys(("sqrt",), "root"),
    **dict.fromkeys(("cat", "stack"), "joined"),
    **dict.fromkeys(("masked_fill", "where"), "masked"),
    **dict.fromkeys(("constant_pad_nd",), "padded"),
    **dict.fromkeys(("convolution",), "conv"),
    **dict.fromkeys(("_to_copy",), "cast"),
    **dict.fromkeys(("sym_size",), "size"),
    **dict.fromkeys(("reciprocal",), "inverse"),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full"), "base"),
}
"""What a node is called after; an empty word is the name of the op, with its argument."""

RENAMED = {"linalg_vector_norm": "norm", "sgn": "sign", "max_pool2d_with_indices": "pooled"}
"""What an op is called in a name, if not by its own."""

NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm")

SHORT = 8
"""The longest name that becomes part of another one."""


def _invent_rest(joint: JointGraph, book: _Book) -> None:
    for node in joint.graph.nodes:
        if "hint" in node.meta:
            book.give(node, str(node.meta["hint"]))
    linear = _linear(joint)
    # A node with one user is most often written inside that: the others choose first.
    for is_shared in (True, False):
        for node in joint.graph.nodes:
            if node.op != "output" and (len(node.users) > 1) == is_shared:
                wish = _wish(node, book, node in linear)
                if node not in book.names:
                    book.invent(node, wish)


def _linear(joint: JointGraph) -> set[fx.Node]:
    """The nodes that depend on a cotangent."""
    linear = set(joint.cotangents)
    for node in calls(joint.graph):
        if not is_scalar(node) and not linear.isdisjoint(node.all_input_nodes):
            linear.add(node)
    return linear


def _wish(node: fx.Node, book: _Book, is_linear: bool) -> str:
    """A descriptive name: what the node computes, and from what if that has a short name."""
    if node.op == "placeholder":
        return node.name
    op, prefix = op_name(node), "g_" if is_linear else ""
    if node.target is getitem:
        return prefix + _result_name(node)
    word = WORDS.get(op)
    if word:
        several = "s" * isinstance(node.meta.get("val"), list | tuple)
        return f"{prefix}{word}{several}"
    plain = RENAMED.get(op, op.strip("_").removesuffix("_backward"))
    operands = [book.names[arg] for arg in node.all_input_nodes if arg in book.given]
    if len(operands) == len(node.all_input_nodes) == 1 and len(operands[0]) <= SHORT:
        return f"{plain}_{operands[0]}"
    return f"{prefix}{plain}"


def _result_name(node: fx.Node) -> str:
    """The name of one of several results, by the schema of the op, or by its number."""
    source: Any = node.args[0]
    index: Any = node.args[1]
    name = op_name(source) if isinstance(source, fx.Node) else "result"
    if name in NORMS:
        return ("normed", "mean", "rstd")[index]
    if name == "max_pool2d_with_indices":
        return ("pooled", "indices")[index]
    op = op_of(source) if isinstance(source, fx.Node) else None
    returns = op_schema(op).returns if op is not None else ()
    known = returns[index].name if len(returns) > 1 else ""
    if not known and WORDS.get(name):
        return WORDS[name]
    return known or f"{name.strip('_').removesuffix('_backward')}_{index}"
