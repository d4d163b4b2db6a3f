"""What a node is and what it costs: bytes it holds, operations it takes, whether it may run twice.

Sizes may be symbolic. `bytes_of` and `flops_of` then answer with the sizes of the examples that the
graph was captured on, and add no guard.
"""

from __future__ import annotations

import contextlib
import math
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from pullback.errors import InternalError
from pullback.function.slots import op_schema
from pullback.graph.values import aten, held_value, tensor_of

Size: TypeAlias = Any
"""An `int`, or a `sympy` expression in the symbols of the captured sizes."""

TRANSCENDENTAL = 10
"""Operations that one exp, log, sine, erf or the like counts for."""


# ---- what a node is ----


_Op = type(aten.mul.Tensor)  # torch's OpOverload, under a name that is not private


def op_of(node: fx.Node) -> Any:
    """The registered op that `node` calls, or None."""
    return node.target if isinstance(node.target, _Op) else None


def op_name(node: fx.Node) -> str:
    """The name of the op without namespace and overload: `mul` for `aten.mul.Tensor`."""
    op = op_of(node)
    if op is not None:
        return str(op_schema(op).name).partition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


def is_random(node: fx.Node) -> bool:
    """Whether a second run of `node` gives other numbers."""
    op = op_of(node)
    if op is None or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return bool(argument_of(node, "dropout_p") != 0)  # attention draws for its dropout alone


def argument_of(node: fx.Node, name: str) -> Any:
    """What `node` gives its op for the parameter `name`; None if there is no such."""
    op = op_of(node)
    for position, parameter in enumerate(() if op is None else op_schema(op).arguments):
        if parameter.name == name:
            given = node.args[position] if position < len(node.args) else parameter.default_value
            return node.kwargs.get(name, given)
    return None


def is_mutating(node: fx.Node) -> bool:
    """Whether `node` changes one of its arguments."""
    op = op_of(node)
    return op is not None and bool(op_schema(op).is_mutable)


def is_opaque(node: fx.Node) -> bool:
    """Whether `node` calls what PyTorch does not bring, or a graph: its inside is unknown."""
    if node.op != "call_function":
        return False
    op = op_of(node)
    if op is not None:
        return op.namespace not in ("aten", "prims")
    return getattr(node.target, "__module__", None) not in ("_operator", "math", "torch")


def is_view(node: fx.Node) -> bool:
    """Whether the value of `node` shares the memory of its first argument."""
    if node.op == "call_function" and node.target is getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    op = op_of(node)
    if op is None or op is aten._unsafe_view.default:  # its schema hides that it is one
        return op is not None
    aliases = [returned.alias_info for returned in op_schema(op).returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def base_of(node: fx.Node) -> fx.Node:
    """The node whose memory `node` shares: itself, unless it is a view."""
    while is_view(node):
        source = node.args[0]
        if not isinstance(source, fx.Node):  # a list of tensors: no one base
            return node
        node = source
    return node


_PRODUCTS = (
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul"),
    *("linear", "linear_backward", "convolution", "convolution_backward", "_scaled_mm", "_int_mm"),
    *("_trilinear", "_cdist_forward", "_cdist_backward"),
)
_FAMILIES = ("_scaled_dot_product_", "linalg_", "_linalg_")


def is_matmul_like(node: fx.Node) -> bool:
    """Whether `node` takes many operations per byte it reads, so that running it twice is dear.

    Products, convolutions, attention and factorisations.
    """
    name = op_name(node)
    return name in _PRODUCTS or name.startswith(_FAMILIES)


# ---- sizes ----


def hint_of(size: int | torch.SymInt) -> int:
    """A size as it was in the examples. Unlike `int(size)`, this adds no guard."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise InternalError(f"the size `{size}` must have been known when the graph was captured")
    return int(hint)


def expression_of(size: int | torch.SymInt) -> Size:
    """A size for all inputs: a number, or a `sympy` expression."""
    return size if isinstance(size, int) else size.node.expr


def bytes_of(node: fx.Node) -> int:
    """The bytes of the value of `node`; 0 for sizes and numbers."""
    return _bytes(held_value(node))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return _numel(value) * value.element_size()
    if isinstance(value, list | tuple):
        return sum(_bytes(item) for item in value)
    return 0


def _numel(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return math.prod(map(hint_of, value.shape))
    if isinstance(value, list | tuple):
        return sum(_numel(item) for item in value)
    return 0


# ---- operations ----


def flops_of(node: fx.Node) -> int:
    """The operations on numbers that `node` takes; 0 for views and for what moves no numbers."""
    if node.op != "call_function" or op_of(node) is None or is_view(node):
        return 0
    name = op_name(node)
    if name.startswith("_scaled_dot_product_"):
        return _attention(node)
    if name in ("linear", "matmul"):  # PyTorch counts what they are made of
        return 2 * int(_shape_of(node.args[0])[-1]) * _numel(held_value(node))
    formula = flop_registry.get(op_of(node).overloadpacket)
    if formula is not None:  # a product, a convolution
        args, kwargs, made = fx.map_arg((node.args, node.kwargs, node), _shape_of)
        with contextlib.suppress(ValueError, AssertionError):  # shapes that PyTorch cannot count
            return int(formula(*args, **kwargs, out_val=made))
    weight = _WEIGHTS.get(name.removesuffix("_backward").removesuffix("_forward"), 1)
    inputs = [_numel(tensor_of(arg)) for arg in node.all_input_nodes]
    return weight * max(_numel(held_value(node)), *inputs, 0)


_WEIGHTS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), TRANSCENDENTAL),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "atan2"), TRANSCENDENTAL),
    **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), TRANSCENDENTAL),
    **dict.fromkeys(("erf", "erfc", "erfinv", "lgamma", "digamma", "pow"), TRANSCENDENTAL),
    **dict.fromkeys(("sigmoid", "log_sigmoid", "logit", "logaddexp"), TRANSCENDENTAL),
    **dict.fromkeys(("softplus", "gelu", "silu", "mish", "elu"), TRANSCENDENTAL),
    **dict.fromkeys(("_softmax", "_log_softmax", "logsumexp", "_safe_softmax"), 13),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), 4),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_batch_norm"), 8),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), 4),
    **dict.fromkeys(("mv", "addmv", "dot", "vdot"), 2),
    # These move numbers.
    **dict.fromkeys(("clone", "_to_copy", "copy", "cat", "stack", "flip", "roll", "repeat"), 0),
    **dict.fromkeys(("index", "gather", "scatter", "embedding", "constant_pad_nd"), 0),
    **dict.fromkeys(("slice_scatter", "select_scatter", "slice", "select"), 0),
    **dict.fromkeys(("full", "zeros", "ones", "empty", "arange", "scalar_tensor"), 0),
    **dict.fromkeys(("full_like", "zeros_like", "ones_like", "empty_like"), 0),
    **dict.fromkeys(("new_full", "new_zeros", "new_ones", "new_empty"), 0),
    **dict.fromkeys(("sym_size", "sym_numel", "sym_stride", "sym_storage_offset"), 0),
}


def _shape_of(node: Any) -> Any:
    """The sizes of a value, as PyTorch's formulas of operations take them."""
    value = held_value(node)
    if isinstance(value, torch.Tensor):
        return [hint_of(size) for size in value.shape]
    return hint_of(value) if isinstance(value, torch.SymInt) else value


def _attention(node: fx.Node) -> int:
    """Two products forward, five backward, which computes the weights again.

    PyTorch's own formula refuses grouped heads in some of its versions.
    """
    q, k, v = (_shape_of(argument_of(node, name)) for name in ("query", "key", "value"))
    times = 5 if op_name(node).endswith("_backward") else 2
    return int(times * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1]))  # a product is 2nmk


def bytes_text(count: int | None) -> str:
    """A number of bytes: `7.81 KiB`."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
