"""Values: nodes of a graph that are computed with like tensors.

`-(a * b)` with two values adds a `mul` and a `neg` node to their graph, each with its `meta`. A
formula written with operators and methods works on values and on tensors alike: rewrites are
written so, and tests run the same formula on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

CASTS = (aten._to_copy.default, aten.to.dtype, torch.ops.prims.convert_element_type.default)
"""Ops that give the same numbers in another dtype."""

INHERITED = ("phase", "unit", "place")
"""The entries of `meta` that a new node takes from the node it is made for."""


# ---- what a node will hold when the graph runs ----


def held_value(arg: Any) -> Any:
    """The fake tensor or number that an argument of a node stands for."""
    return arg.meta.get("val") if isinstance(arg, fx.Node) else arg


def tensor_of(arg: Any) -> torch.Tensor | None:
    """The fake tensor that `arg` stands for, or None if it is a number, a list or unknown."""
    value = held_value(arg)
    return value if isinstance(value, torch.Tensor) else None


def is_smooth(arg: Any) -> bool:
    """Whether `arg` is a tensor of a dtype that can carry a gradient."""
    value = tensor_of(arg)
    return value is not None and (value.is_floating_point() or value.is_complex())


def narrowed_to(node: fx.Node) -> torch.dtype | None:
    """The dtype that a node rounds its input to, if it is a cast to a narrower one."""
    before = [tensor_of(one) for one in node.all_input_nodes]
    made = tensor_of(node)
    if len(before) != 1 or made is None or before[0] is None or made.dim() != before[0].dim():
        return None
    if not made.is_floating_point() or not before[0].is_floating_point():
        return None
    is_narrower = torch.finfo(made.dtype).eps > torch.finfo(before[0].dtype).eps
    return made.dtype if is_narrower and node.target in CASTS else None


def is_scalar(arg: Any) -> bool:
    """Whether `arg` is a number: a literal, or a node that holds a symbolic size."""
    value = held_value(arg)
    numbers = (int, float, torch.SymInt, torch.SymFloat)
    return isinstance(value, numbers) and not isinstance(value, bool)


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for every input, decided without adding a guard."""
    return statically_known_true(a == b)


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal for every input."""
    return len(a) == len(b) and all(map(same, a, b))


def same_kind(a: Any, b: Any) -> bool:
    """Whether two fake tensors have one shape, dtype and device."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    kinds = [(x.dtype, x.device, x.layout) for x in (a, b)]
    return kinds[0] == kinds[1] and same_sizes(a.shape, b.shape)


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fake tensors of one shape have the same strides, where a stride matters."""
    dims = range(a.dim())
    return all(same(a.shape[d], 1) or same(a.stride(d), b.stride(d)) for d in dims)


def guardless(arguments: Any) -> AbstractContextManager[Any]:
    """A block in which ops on the fake tensors among `arguments` add no guard to their sizes."""
    for value in flat_leaves(arguments):
        mode = getattr(value, "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            block: AbstractContextManager[Any] = mode.shape_env.suppress_guards()
            return block
    return nullcontext()


def outcome_of(target: Any, args: Any, kwargs: Any, beside: Any = None) -> Any:
    """What a call gives on the fake tensors that its arguments stand for.

    An op of sizes alone (`arange`) is told from `beside` that it is among fake tensors: it would
    make a real one otherwise, and fix its size.
    """
    args, kwargs = fx.map_arg((args, kwargs), held_value)
    modes = (getattr(leaf, "fake_mode", None) for leaf in flat_leaves([args, kwargs, beside]))
    mode = next((one for one in modes if one is not None), nullcontext())
    with guardless((args, kwargs, beside)), torch.no_grad(), mode:
        return target(*args, **kwargs)


def flat_leaves(value: Any) -> list[Any]:
    """What a value holds, however deep in lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat_leaves(item)]
    return [value]


# ---- making nodes ----


def named_value(name: str, value: Any) -> Any:
    """`value`, which goes by `name` in a text unless its user has a better one."""
    if isinstance(value, Value):
        value.node.meta["hint"] = name
    return value


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes nodes before `here`, in its phase, unit and place."""

    here: fx.Node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Value:
        """A new node that calls `target`."""
        args, kwargs = unwrapped_values(args), unwrapped_values(kwargs)
        outcome = outcome_of(target, args, kwargs, held_value(self.here))
        graph = self.here.graph
        with graph.inserting_before(self.here):
            node = graph.call_function(target, args, kwargs)
        node.meta = {key: self.here.meta[key] for key in INHERITED if key in self.here.meta}
        node.meta["val"] = outcome
        return Value(node, self)

    def wrap(self, arg: Any) -> Any:
        """`arg` with a value in the place of each node in it."""
        if isinstance(arg, fx.Node):
            return Value(arg, self)
        if isinstance(arg, list | tuple):
            return type(arg)(map(self.wrap, arg))
        return arg


def unwrapped_values(arg: Any) -> Any:
    """`arg` with a node in the place of each value in it."""
    if isinstance(arg, Value):
        return arg.node
    if isinstance(arg, list | tuple):
        return type(arg)(map(unwrapped_values, arg))
    if isinstance(arg, dict):
        return {key: unwrapped_values(item) for key, item in arg.items()}
    return arg


def _calls(op: Any) -> Callable[..., Value]:
    """A method of a value that calls `op` with it and with the arguments of the method."""

    def method(self: Value, *args: Any, **kwargs: Any) -> Value:
        return self.made(op, *args, **kwargs)

    return method


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A node that is computed with like a tensor, and the maker of what is computed."""

    node: fx.Node
    maker: Maker

    @property
    def target(self) -> Any:
        """The op that the node calls."""
        return self.node.target

    @property
    def args(self) -> Any:
        """The positional arguments of the node, with values for nodes."""
        return self.maker.wrap(self.node.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the node."""
        return dict(self.node.kwargs)

    @property
    def is_used_once(self) -> bool:
        """Whether one node only uses this one."""
        return len(self.node.users) == 1

    @property
    def val(self) -> Any:
        """The fake tensor or symbolic size that the node holds."""
        return self.node.meta.get("val")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        dtype: torch.dtype = self.val.dtype
        return dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: numbers, and values where a size is symbolic."""
        return tuple(self._size(dim) for dim in range(self.val.dim()))

    def _size(self, dim: int) -> Any:
        size = self.val.shape[dim]
        return size if isinstance(size, int) else self.made(aten.sym_size.int, dim)

    def dim(self) -> int:
        """The number of dimensions."""
        dim: int = self.val.dim()
        return dim

    def made(self, target: Any, *args: Any, **kwargs: Any) -> Value:
        """`target(self, *args, **kwargs)` as a new node."""
        return self.maker.call(target, self, *args, **kwargs)

    # ---- operators and methods, named and called as those of a tensor ----

    __neg__ = _calls(aten.neg.default)
    __add__ = __radd__ = _calls(aten.add.Tensor)
    __sub__ = _calls(aten.sub.Tensor)
    __rsub__ = _calls(aten.rsub.Scalar)
    __mul__ = __rmul__ = _calls(aten.mul.Tensor)
    __truediv__ = _calls(aten.div.Tensor)
    __pow__ = _calls(aten.pow.Tensor_Scalar)
    __or__ = _calls(aten.bitwise_or.Tensor)
    __gt__, __ge__ = _calls(aten.gt.Scalar), _calls(aten.ge.Scalar)
    __lt__, __le__ = _calls(aten.lt.Scalar), _calls(aten.le.Scalar)
    eq, ne = _calls(aten.eq.Scalar), _calls(aten.ne.Scalar)
    exp, erf, rsqrt = map(_calls, (aten.exp.default, aten.erf.default, aten.rsqrt.default))
    tanh, sigmoid = _calls(aten.tanh.default), _calls(aten.sigmoid.default)
    masked_fill = _calls(aten.masked_fill.Scalar)
    gather, scatter_add = _calls(aten.gather.default), _calls(aten.scatter_add.default)
    t, transpose = _calls(aten.t.default), _calls(aten.transpose.int)
    unsqueeze, squeeze = _calls(aten.unsqueeze.default), _calls(aten.squeeze.dim)

    def __matmul__(self, other: Value) -> Value:
        return self.made({2: aten.mm.default, 3: aten.bmm.default}[self.dim()], other)

    def clamp(self, min: Any = None, max: Any = None) -> Value:
        """x between two bounds."""
        return self.made(aten.clamp.default, min, max)

    def numel(self) -> Any:
        """The number of elements: a number, or a value if a size is symbolic."""
        if all(isinstance(size, int) for size in self.val.shape):
            return self.val.numel()
        return self.made(aten.sym_numel.default)

    def where(self, mask: Value, other: Value) -> Value:
        """x where `mask` holds, else `other`."""
        return self.maker.call(aten.where.self, mask, self, other)

    def sum(self, dim: Any = None, keepdim: bool = False) -> Value:
        """The sum over `dim`, or over everything."""
        return self._reduced(aten.sum.default, aten.sum.dim_IntList, dim, keepdim)

    def mean(self, dim: Any = None, keepdim: bool = False) -> Value:
        """The mean over `dim`, or over everything."""
        return self._reduced(aten.mean.default, aten.mean.dim, dim, keepdim)

    def _reduced(self, whole: Any, some: Any, dim: Any, keepdim: bool) -> Value:
        if dim is None:
            return self.made(whole)
        dims = [dim] if isinstance(dim, int) else list(dim)
        return self.made(some, dims, True) if keepdim else self.made(some, dims)

    def var(self, dim: Any, correction: int = 1, keepdim: bool = False) -> Value:
        """The variance over `dim`."""
        return self.made(aten.var.correction, list(dim), correction=correction, keepdim=keepdim)

    def reshape(self, shape: Sequence[Any]) -> Value:
        """The same numbers in another shape, which is known where it is given in full."""
        view = self.made(aten.view.default, list(shape))
        is_full = all(isinstance(size, Value) or size >= 0 for size in shape)
        return view.of_shape(shape) if is_full and view.val.is_contiguous() else view

    def of_shape(self, shape: Sequence[Any]) -> Value:
        """This contiguous tensor itself, known to have these sizes where symbols hide it."""
        sizes = [held_value(unwrapped_values(size)) for size in shape]
        self.node.meta["val"] = outcome_of(aten.new_empty.default, (self.val, sizes), {})
        return self

    def expand(self, shape: Sequence[Any]) -> Value:
        """The same numbers, repeated along dimensions of size one."""
        return self.made(aten.expand.default, list(shape))

    def to(self, dtype: torch.dtype) -> Value:
        """Another dtype; the value itself if it has that dtype."""
        return self if dtype == self.dtype else self.made(aten._to_copy.default, dtype=dtype)

    def scatter(self, dim: int, index: Value, source: Any) -> Value:
        """x with the elements at `index` along `dim` replaced."""
        target = aten.scatter.src if isinstance(source, Value) else aten.scatter.value
        return self.made(target, dim, index, source)

    def index_put(self, indices: Sequence[Any], source: Value, accumulate: bool) -> Value:
        """x with `source` put, or added, at `indices`."""
        return self.made(aten.index_put.default, list(indices), source, accumulate)

    def new_zeros(self, shape: Sequence[Any]) -> Value:
        """Zeros of the dtype and device of x."""
        return self.made(aten.new_zeros.default, list(shape), pin_memory=False)
