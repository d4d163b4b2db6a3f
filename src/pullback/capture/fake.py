"""PyTorch's tracing machinery, in this one place: fake tensors, symbolic sizes, `make_fx`.

A *stage* is one trace: fake tensors that stand in for real ones, symbols for their sizes, and the
graph that grows while functions run on them. All of it is private or experimental in PyTorch and
the same on 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx, overrides
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import LocalSource
from torch._functorch import config as functorch_config
from torch._subclasses import fake_tensor
from torch.autograd.graph import _engine_run_backward
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.printers import PythonPrinter

from pullback.capture.places import place_at
from pullback.function.modes import DispatchMode
from pullback.function.slots import no_torch_function, without_modes

HIDDEN = "is_hidden_from_captures"
"""The attribute of a mode that sees nothing of what happens `apart`."""

# What a fake tensor raises where a real one would have given a value.
ValueNeeded = fake_tensor.DataDependentOutputException
SizeNeeded = fake_tensor.DynamicOutputShapeException
NoFakeKernel = fake_tensor.UnsupportedOperatorException


class Stage:
    """The fake tensors, the sizes and the growing graph of one trace.

    Sizes are symbols of their own, also where two are equal by chance (`DimDynamic.DYNAMIC`); those
    that are 0 or 1 are numbers, as everywhere in PyTorch. Fake tensors begin where their memory
    does, unless `keeps_offsets`.
    """

    def __init__(self, *, dynamic: bool, keeps_offsets: bool = False) -> None:
        self.dynamic = dynamic
        self.keeps_offsets = keeps_offsets
        self.sizes: Any = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        # Real tensors may still arrive through compiled code. No kernel is run to see what it does.
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            self.mode: Any = fake_tensor.FakeTensorMode(
                allow_non_fake_inputs=True, allow_fallback_kernels=False, shape_env=self.sizes
            )
            # PyTorch's own caches keep some hundred `ShapeEnv`s alive, each with its cache of ops:
            # half of what a capture leaves behind, and it makes no capture faster.
            self.mode.cache_enabled = False
        self._tracer: Any = None
        self._made = 0

    # ---- fake tensors ----

    def stand_in(self, tensor: Tensor) -> Tensor:
        """A fake tensor of the same kind as `tensor`, that shares memory with nothing."""
        shape, stride = numbers_of(tensor.shape), numbers_of(tensor.stride())
        if self.dynamic:
            shape, stride = self._symbols(shape, stride)
        self._made += 1
        with untraced(), self.mode, torch.no_grad(), no_torch_function():
            made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
            if self.keeps_offsets and (offset := int(tensor.storage_offset())):
                memory = made.new_empty(offset + _extent(shape, stride)).untyped_storage()
                made.set_(memory, offset, made.size(), made.stride())
            return made

    def _symbols(self, shape: Sequence[int], stride: Sequence[int]) -> tuple[Any, Any]:
        with without_modes():
            like = torch.empty_strided(shape, stride, device="meta")
        source = LocalSource(f"t{self._made}")
        every: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(shape))
        make = self.sizes.create_symbolic_sizes_strides_storage_offset
        sizes, strides, _ = make(like, source, symbolic_context=every)
        return sizes, strides

    def number(self, value: int) -> Any:
        """A symbol for `value`, which like a size of 0 or 1 is a number if it is one of these."""
        self._made += 1
        source = LocalSource(f"t{self._made}")
        symbol = self.sizes.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
        return self.sizes.create_symintnode(symbol, hint=value, source=source)

    def like(self, tensor: Tensor) -> Tensor:
        """A fake tensor of the shape, dtype and device of the fake tensor `tensor`."""
        with untraced(), self.mode, torch.no_grad(), no_torch_function():
            return torch.empty_like(tensor)

    def is_foreign(self, tensor: Tensor) -> bool:
        """Whether `tensor` is not one of this stage's, and no wrapper that `torch.func` made."""
        if isinstance(tensor, fake_tensor.FakeTensor) and tensor.fake_mode is self.mode:
            return False
        return not is_functorch_wrapped_tensor(tensor)

    # ---- the graph ----

    def trace(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    ) -> fx.GraphModule:
        """The graph of `function(*inputs)`, whose inputs are fake tensors of this stage.

        Ops that have one of the `decompositions` are recorded as what it does.
        """

        def run(*values: Any) -> Any:
            self._tracer = getattr(proxy_tensor.get_proxy_mode(), "tracer", None)
            return function(*values)

        traced = proxy_tensor.make_fx(
            run, decompositions, tracing_mode="real", _allow_non_fake_inputs=True
        )
        with self.mode, enable_python_dispatcher(), _quiet():
            return traced(*inputs)

    @property
    def graph(self) -> fx.Graph:
        """The graph that is growing."""
        graph: fx.Graph = self._tracer.graph
        return graph

    @property
    def is_recording(self) -> bool:
        """Whether an op would be recorded now; PyTorch's own work on one op is not."""
        mode = proxy_tensor.get_proxy_mode()
        return mode is not None and mode.tracer is self._tracer

    def add_placeholder(self, tensor: Tensor) -> fx.Node:
        """Make the fake tensor `tensor` an input of the growing graph."""
        count = len(self.graph.find_nodes(op="placeholder"))
        proxy = self._tracer.create_proxy("placeholder", f"added_{count}", (), {})
        with untraced():
            proxy_tensor.track_tensor_tree(tensor, proxy, constant=None, tracer=self._tracer)
        node: fx.Node = proxy.node
        return node

    def node_of(self, tensor: Tensor) -> fx.Node | None:
        """The node that computes `tensor` in the growing graph."""
        found = proxy_tensor.get_proxy_slot(tensor, self._tracer, None)
        return None if found is None else found.proxy.node

    # ---- sizes ----

    def clauses(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """What was assumed of the sizes and strides of `inputs`, each an expression in Python.

        Where they begin in their memory is left out: see `capture/offsets.py`.
        """
        sources = [LocalSource(f"t{i}") for i in range(len(inputs))]
        clauses = self.sizes.produce_guards(list(inputs), sources, ignore_static=False)
        return tuple(clause for clause in clauses if "storage_offset" not in clause)

    def conditions(self, inputs: Sequence[Any]) -> str:
        """The clauses of `inputs` as one expression, for `meets`."""
        return joined_clauses(self.clauses(inputs))

    def meets(self, conditions: str, tensors: Sequence[Any]) -> bool:
        """Whether real tensors meet what `conditions` gave."""
        return bool(self.sizes.evaluate_guards_expression(conditions, list(tensors)))


def _extent(shape: Sequence[Any], stride: Sequence[Any]) -> Any:
    """How many elements lie between the first and the last one of a tensor, both included."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def joined_clauses(clauses: Sequence[str]) -> str:
    """Clauses as one expression."""
    return " and ".join(f"({clause})" for clause in clauses) or "True"


_SIZE = re.compile(r"L\['t(\d+)'\]\.size\(\)\[(\d+)\]")


def clause_in_words(clause: str, names: Sequence[str]) -> str | None:
    """A clause on sizes with these names for the inputs: `x.shape[0] == 6`; None if on strides."""
    text = _SIZE.sub(lambda found: f"{names[int(found[1])]}.shape[{found[2]}]", clause)
    return None if "L['" in text else _tidy(text)


def in_words(condition: Any, names: Mapping[Any, str]) -> str:
    """A condition on symbols as Python, with these names for the symbols."""
    named = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    return _tidy(str(PythonPrinter().doprint(condition.xreplace(named))))


_BUILTIN = {
    "math.trunc": "int({})",
    "math.floor": "int({} // 1)",
    "math.ceil": "-int(-{} // 1)",
    "torch.sym_float": "{}",
    "torch._sym_sqrt": "{} ** 0.5",
}
"""What PyTorch writes of sizes with `math`, in builtins: a text imports nothing but torch."""


class _InBuiltins(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        form = _BUILTIN.get(ast.unparse(node.func))
        if form is None:
            return node
        return ast.parse(form.format(f"({ast.unparse(node.args[0])})"), mode="eval").body

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """`a + -1 * b`, as sympy writes a difference, becomes `a - b`."""
        self.generic_visit(node)
        match node:
            case ast.BinOp(
                left,
                ast.Add(),
                ast.BinOp(ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.Mult(), right),
            ):
                return ast.BinOp(left, ast.Sub(), right)
        return node


def _tidy(expression: str) -> str:
    """An expression without needless brackets, in builtins, with differences as such."""
    return ast.unparse(_InBuiltins().visit(ast.parse(expression, mode="eval")))


def is_dense(tensor: Tensor) -> bool:
    """Whether `tensor` fills its memory without gaps or overlaps: then a clone has its strides."""
    pairs = zip(numbers_of(tensor.stride()), numbers_of(tensor.shape), strict=True)
    expected = 1
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def is_odd(tensor: Tensor) -> bool:
    """Whether a tensor has no strided memory of its own: fake, meta, sparse or nested ones."""
    is_strided = tensor.layout is torch.strided and not tensor.is_nested
    return not is_strided or tensor.is_meta or is_fake(tensor)


def is_fake(tensor: Tensor) -> bool:
    """Whether `tensor` is a fake one, of any trace."""
    return isinstance(tensor, fake_tensor.FakeTensor)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let no error be printed that is raised as well."""
    log = fake_tensor.log
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class Overhearing(DispatchMode):
    """Tell `listener` of each op that is run, with the user's place."""

    def __init__(self, listener: Callable[[Any, str], None]) -> None:
        DispatchMode.__init__(self)
        self.listener = listener

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.listener(func, place_at(sys._getframe(1)))
        return func(*args, **(kwargs or {}))


def numbers_of(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes as plain numbers: symbols of another trace by the number they stand for there."""
    return tuple(s.node.hint if isinstance(s, torch.SymInt) else int(s) for s in sizes)


def with_other_sizes(
    shapes: Sequence[Sequence[Any]],
    fixed: Sequence[Sequence[Any]],
    grow: Callable[[int], int],
) -> list[tuple[int, ...]]:
    """`shapes` with other sizes: each symbol stands for `grow(size)` instead of `size`.

    Sizes that are equal stay so, also those that nothing ties to each other: some kernels go by
    that without looking (keys and values of attention), and write where they must not. Symbols that
    occur in `fixed` keep their numbers.
    """
    hints = {
        size.node.expr: size.node.hint
        for shape in (*shapes, *fixed)
        for size in shape
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    }
    # What is not a symbol cannot grow, and neither may what equals it.
    plain = [size_with(size, {}) for shape in shapes for size in shape if not is_open(size)]
    kept = {*plain, *(number for shape in fixed for number in numbers_of(shape))}
    values = {symbol: size if size in kept else grow(size) for symbol, size in hints.items()}
    return [tuple(size_with(size, values) for size in shape) for shape in shapes]


def symbol_of(size: Any) -> Any:
    """What a size was before anything was found out about it: a symbol, also of a fixed one."""
    return size.node._expr if isinstance(size, torch.SymInt) else size


def is_open(size: Any) -> bool:
    """Whether a size stands for more than one number."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def size_with(size: Any, values: dict[Any, int]) -> int:
    """A size for these values of the symbols in it; that of the example if one is missing."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    found = sympy.sympify(size.node.expr.xreplace(values))
    return int(size.node.hint if found.free_symbols else found)


def run_backward(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The gradients of `inputs`, as `torch.autograd.grad` gives them.

    That one is a torch function itself: a mode that watches torch functions sees the call,
    and is then off until it ends. Here the modes stay on for what backward does.
    """
    if not outputs or not inputs:
        return [None] * len(inputs)
    return _engine_run_backward(
        tuple(outputs), tuple(cotangents), False, False, tuple(inputs), True, accumulate_grad=False
    )


def untraced() -> Any:
    """Record nothing in the growing graph; fake tensors stay fake."""
    return proxy_tensor.disable_proxy_modes_tracing()


@contextmanager
def apart() -> Iterator[None]:
    """Out of sight of every trace around: a capture may happen inside another.

    Of the modes that act on torch functions, those that are `HIDDEN` are off; the others stay,
    among them the default device. Hooks of saved tensors (those of `checkpoint` too) are off.
    """
    stack: Any = overrides
    modes = [stack._pop_mode() for _ in range(stack._len_torch_function_stack())][::-1]
    kept = [mode for mode in modes if not getattr(mode, HIDDEN, False)]
    for mode in kept:
        stack._push_mode(mode)
    try:
        with without_modes(), _hooks_off():
            yield
    finally:
        for _ in kept:
            stack._pop_mode()
        for mode in modes:
            stack._push_mode(mode)


@contextmanager
def _hooks_off() -> Iterator[None]:
    """No hook of saved tensors from outside is called inside."""
    hooks: Any = torch._C._autograd
    outer = []
    while (top := hooks._top_saved_tensors_default_hooks(True)) is not None:
        outer.append(top)
        hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(outer):
            hooks._push_saved_tensors_default_hooks(pack, unpack)


def keeps_graph() -> bool:
    """Whether the backward under way leaves what was saved for another one (`retain_graph`)."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())
