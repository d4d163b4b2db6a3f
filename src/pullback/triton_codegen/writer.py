"""The text of one kernel.

What a program instance computes stands in up to three places: before its rows, for what no row
changes (weights, scalars); in a row; and, where a row is read block by block, in a block. A value
is written in the outermost place that it can stand in, once for every index that it is read at.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from pullback.graph.cost import argument_of
from pullback.graph.cut_problem import ancestors
from pullback.graph.values import aten, held_value, is_scalar
from pullback.triton_codegen.axes import CREATED, REDUCTIONS, VIEWS, leaves_of, refusal
from pullback.triton_codegen.expressions import (
    ATOM,
    COMPARISON,
    SUM,
    TABLE,
    KernelText,
    add,
    both_hold,
    call_source,
    cast,
    computed_in,
    div,
    is_cast,
    literal_text,
    made,
    mul,
    power_text,
    reduction_of,
)
from pullback.triton_codegen.moves import MOVES, arange_text, part_text
from pullback.triton_codegen.params import KernelParams, Param
from pullback.triton_codegen.plan import Kernel, KernelPlan, Store, goals_of
from pullback.triton_codegen.sizes import Sizes
from pullback.triton_codegen.wrapping import wrapped_signature

LONGEST, LARGEST = 56, 5
"""Characters and ops of an expression that stands inside another one."""

WIDE = ".to(tl.int64)"
"""Makes an index one of 64 bits: an element may lie 2**31 or more elements from the first."""

_TWICE = (
    *(aten.silu.default, aten.square.default, aten.pow.Tensor_Scalar),
    *(aten.linalg_vector_norm.default, aten.leaky_relu.default),
)
"""Ops whose text has their argument more than once."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as text, and how it is called."""

    kernel: Kernel
    name: str
    params: tuple[Param, ...]
    lines: tuple[str, ...]
    helpers: frozenset[str]

    @property
    def text(self) -> str:
        """The function, without decorators."""
        given = [p.name + (": tl.constexpr" if p.is_constant else "") for p in self.params]
        return "\n".join([*wrapped_signature(f"def {self.name}(", given, "):"), *self.lines])


@dataclass(frozen=True)
class ReadAt:
    """Where values are read: an index for each axis, and a mask besides that of the kernel."""

    index: Mapping[Any, KernelText]
    mask: KernelText | None = None

    def moved(self, axis: Any, text: KernelText, mask: KernelText | None = None) -> ReadAt:
        """The same place, but for one axis."""
        masks = [one for one in (self.mask, mask) if one is not None]
        both = both_hold(*masks) if len(masks) == 2 else masks[0] if masks else None
        return ReadAt({**self.index, axis: text}, both)


@dataclass(eq=False)
class KernelScope:
    """Lines that stand in one place of a kernel, and the values that have a name there."""

    lines: list[str] = field(default_factory=list)
    known: dict[Any, KernelText] = field(default_factory=dict)


class KernelWriter:
    """Writes one kernel of a plan."""

    def __init__(
        self, plan: KernelPlan, kernel: Kernel, name: str, names: Mapping[str, str], sizes: Sizes
    ) -> None:
        self.plan, self.kernel, self.name, self.sizes = plan, kernel, name, sizes
        self.params = KernelParams(plan, kernel, names, sizes)
        self.is_flat = kernel.form != "tile"  # one row at a time: rows are numbers
        self.is_blocked = kernel.form == "blocks"
        # A quotient of 64 bits takes far longer: where columns are divided, their parts are wide.
        self.wide = WIDE if len(kernel.cols) == 1 else ""
        self.before, self.row, self.block = KernelScope(), KernelScope(), KernelScope()
        self.masks: set[str] = set()
        self.places: dict[str, list[str]] = {"row": [], "col": []}
        self.given: frozenset[str] = getattr(names, "given", frozenset())  # the user's names
        self.uses = self._counted()
        self.root = ReadAt(self._root_index())
        self.accumulators: list[tuple[fx.Node, str, KernelText]] = []

    # ---- indices ----

    def _root_index(self) -> dict[Any, KernelText]:
        """An index for each group of axes: of one group that of the row or column itself."""
        found: dict[Any, KernelText] = {}
        for groups, flat in ((self.kernel.rows, "row"), (self.kernel.cols, "col")):
            for place, group in enumerate(groups):
                name = flat
                if len(groups) > 1:
                    name = f"{flat}_{place}"
                    self.params.taken.add(name)
                    sizes = [self.params.size(one) for one in groups[place + 1 :]]
                    inner = sizes[0] if len(sizes) == 1 else f"({' * '.join(sizes)})"
                    text = f"{flat} // {inner}" if sizes else flat
                    text = f"{text} % {self.params.size(group)}" if place else text
                    text = f"({text}){WIDE}" if flat == "col" else text
                    self.places[flat].append(f"{name} = {text}")
                found[group] = KernelText(name, rows=flat == "row", cols=flat == "col")
        return found

    def _group_along(self, node: fx.Node, dim: int, by: fx.Node) -> Any:
        """The group of axes along a dimension; None where its size is one."""
        leaves = leaves_of(self.plan.axes.of(node)[dim])
        groups = list(dict.fromkeys(self.params.group(leaf) for leaf in leaves))
        if len(groups) > 1:
            raise refusal(by, "an index over several dimensions")
        return groups[0] if groups else None

    def index(self, node: fx.Node, dim: int, at: ReadAt) -> KernelText | None:
        """Where a value is read along one of its dimensions; None where its size is one."""
        group = self._group_along(node, dim, node)
        if group is None:
            return None
        if group not in at.index:
            raise refusal(node, "an index over several dimensions")
        return at.index[group]

    def moved_to(
        self,
        source: fx.Node,
        dim: int,
        index: KernelText,
        at: ReadAt,
        by: fx.Node,
        mask: KernelText | None = None,
    ) -> ReadAt:
        """Where `by` reads a source: at another index along one dimension."""
        group = self._group_along(source, dim, by)
        if group is not None:
            return at.moved(group, index, mask)
        return at if mask is None else at.moved("nothing", index, mask)

    def value_at(
        self,
        source: fx.Node,
        dim: int,
        index: KernelText,
        at: ReadAt,
        by: fx.Node,
        mask: KernelText | None = None,
    ) -> KernelText:
        """A source as `by` reads it, at another index along one dimension."""
        return self.value(source, self.moved_to(source, dim, index, at, by, mask))

    # ---- values ----

    def value(self, arg: Any, at: ReadAt) -> KernelText:
        """An argument of a node as an expression."""
        if isinstance(arg, torch.Tensor) or not isinstance(arg, fx.Node):
            return self._number(arg)
        if is_scalar(arg):
            return self._number(held_value(arg))
        if at is not self.root and arg in self.plan.axes.dims and not self._moved(arg, at):
            at = self.root  # it does not vary along what is read elsewhere
        key = self._key(arg, at)
        for scope in (self.before, self.row, self.block):
            if key in scope.known:
                return scope.known[key]
        text = self._computed(arg, at)
        return self._noted(arg, key, text, at)

    def _key(self, node: fx.Node, at: ReadAt) -> Any:
        groups = self.params.groups(node) if node in self.plan.axes.dims else []
        places = tuple((id(g), at.index[g].text) for g in groups if g in at.index)
        return node, places, at.mask.text if at.mask else ""

    def _noted(self, node: fx.Node, key: Any, text: KernelText, at: ReadAt) -> KernelText:
        """An expression by its name, where it gets a line."""
        is_named = node.name in self.given and at is self.root
        is_long = len(text.text) > LONGEST or text.size > LARGEST
        is_line = (self.uses.get(node, 0) > 1 and text.size > 0) or is_named or is_long
        if not is_line or text.text.isidentifier():
            return text
        suffix = "" if at is self.root else "_moved"
        return self.bind(key, self.params.fresh(self.params.name(node) + suffix), text)

    def bind(self, key: Any, name: str, text: KernelText) -> KernelText:
        """An expression in a line of its own, under a name."""
        scope = self._scope(text)
        scope.lines.append(f"{name} = {text.text}")
        scope.known[key] = replace(text, text=name, level=ATOM, size=0)
        return scope.known[key]

    def _scope(self, text: KernelText) -> KernelScope:
        """The outermost place for an expression."""
        if text.cols and self.is_blocked:
            return self.block
        return self.row if text.rows else self.before

    def _number(self, value: Any) -> KernelText:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            for group in self.kernel.groups:
                if self.sizes.of_group(group) == self.sizes.text(value):
                    return KernelText(self.params.size(group))
            given = self.sizes.text(value)
            scalars = self.params.scalars.values()
            name = next((p.name for p in scalars if p.given == given), "")
            return KernelText(name or self.params.scalar(self.params.fresh("size"), given))
        return literal_text(value.item() if isinstance(value, torch.Tensor) else value)

    def _computed(self, node: fx.Node, at: ReadAt) -> KernelText:
        target = node.target
        if node.op == "placeholder" or node in self.plan.totals:
            return self._load(node, at)
        if target in REDUCTIONS:
            return self._reduced(node, at)
        if target in VIEWS:
            return self.value(node.args[0], at)
        if is_cast(node):
            return cast(node, self.value(node.args[0], at))
        if target in MOVES:
            return MOVES[target](self, node, at)
        if target is getitem:
            return part_text(self, node, at)
        if target in CREATED:
            return self._created(node, at)
        if target is aten.pow.Tensor_Scalar:
            exponent = float(argument_of(node, "exponent"))
            return power_text(self._float(node.args[0], at, node), exponent)
        if target in TABLE:
            return self._pointwise(node, at)
        raise refusal(node)

    def _pointwise(self, node: fx.Node, at: ReadAt) -> KernelText:
        words = [v for v in (*node.args, *node.kwargs.values()) if isinstance(v, str)]
        kwargs = {k: v for k, v in node.kwargs.items() if not isinstance(v, str)}
        rounding = kwargs.pop("rounding_mode", None)
        if rounding is not None:
            raise refusal(node, f"rounding_mode={rounding!r}")
        args = [
            None if a is None else self._float(a, at, node)
            for a in node.args
            if not isinstance(a, str)
        ]
        named = {k: self._float(v, at, node) for k, v in kwargs.items() if v is not None}
        return TABLE[node.target](*args, *words, **named)

    def _float(self, arg: Any, at: ReadAt, node: fx.Node) -> KernelText:
        """An argument, in the type that an op computes in: comparisons are made numbers."""
        text = self.value(arg, at)
        made_of, value = held_value(arg), held_value(node)
        is_bool = isinstance(made_of, torch.Tensor) and made_of.dtype is torch.bool
        if is_bool and isinstance(value, torch.Tensor) and value.is_floating_point():
            if "where" in str(node.target) or "masked" in str(node.target):
                return text
            return made(f"{text.within(ATOM)}.to({computed_in(value.dtype)})", ATOM, text)
        return text

    # ---- memory ----

    def _load(self, node: fx.Node, at: ReadAt) -> KernelText:
        offset, dtype = self._offset(node, at), held_value(node).dtype
        pointer, mask = self.params.pointer(node), self._mask(offset, at)
        place = f"{pointer} + {offset.text}" if offset.text else pointer
        other = "0.0" if dtype.is_floating_point else "0"
        text = f"tl.load({place}{f', mask={mask}, other={other}' if mask else ''})"
        if dtype in (torch.bfloat16, torch.float16):
            text += ".to(tl.float32)"
        elif dtype is torch.bool:
            text += " != 0"
        found = KernelText(
            text, ATOM if dtype is not torch.bool else COMPARISON, offset.rows, offset.cols, True, 1
        )
        key = self._key(node, at)
        suffix = "" if at is self.root or not self._moved(node, at) else "_there"
        return self.bind(key, self.params.fresh(self.params.name(node) + suffix), found)

    def _moved(self, node: fx.Node, at: ReadAt) -> bool:
        """Whether a value is read at another place than where the kernel stands."""
        root = self.root.index
        return any(g not in root or at.index.get(g) != root[g] for g in self.params.groups(node))

    def _mask(self, place: KernelText, at: ReadAt) -> str:
        """What must hold for a place to be read."""
        mask = self.inside(place.rows, place.cols)
        if at.mask is not None and (at.mask.cols or at.mask.rows):
            return f"{mask} & {at.mask.within(ATOM)}" if mask else at.mask.text
        return mask

    def inside(self, rows: bool, cols: bool) -> str:
        """The name of the mask for what varies along rows, columns, or both; "" for none."""
        if self.is_flat:
            name = "inside" if cols else ""
        else:
            has_rows, has_cols = rows and bool(self.kernel.rows), cols and bool(self.kernel.cols)
            names = {(True, True): "inside", (True, False): "in_rows", (False, True): "in_cols"}
            name = names.get((has_rows, has_cols), "")
        if name:
            self.masks.add(name)
        return name

    def _offset(self, node: fx.Node, at: ReadAt, store: Store | None = None) -> KernelText:
        """Where an element of a tensor lies: an index and a stride for each of its axes."""
        if self.sizes.is_plain(node, self.kernel) and not self._moved(node, at) and store is None:
            return self._plain_offset(node)
        terms = []
        for group in self.params.groups(node):
            if group not in at.index:
                raise refusal(node, "an index that the kernel does not have")
            terms.append(mul(at.index[group], KernelText(self.params.stride(node, group))))
        return functools.reduce(add, terms) if terms else KernelText("")

    def _plain_offset(self, node: fx.Node) -> KernelText:
        axes = set(self.plan.axes.all_of(node))
        rows = any(axis in g.leaves for g in self.kernel.rows for axis in axes)
        cols = any(axis in g.leaves for g in self.kernel.cols for axis in axes)
        if rows and cols:
            n_cols = self.params.count(self.kernel.cols, "n_cols")
            return KernelText(f"row * {n_cols} + col", SUM, True, True)
        if rows or cols:
            return KernelText("row" if rows else "col", ATOM, rows, cols)
        return KernelText("")

    # ---- constants and indices ----

    def _created(self, node: fx.Node, at: ReadAt) -> KernelText:
        name = str(node.target)
        if "arange" in name or "iota" in name:
            return arange_text(self, node, at)
        if "eye" in name:
            raise refusal(node)
        if "zeros" in name:
            return literal_text(0.0)
        if "ones" in name:
            return literal_text(1.0)
        value = argument_of(node, "fill_value")
        value = argument_of(node, "s") if value is None else value
        if held_value(node).is_floating_point() and isinstance(value, int):
            value = float(value)
        return self.value(value, at)

    # ---- reductions ----

    def _reduced(self, node: fx.Node, at: ReadAt) -> KernelText:
        """A reduction along the columns of the kernel."""
        reduced, kind = self.plan.axes.reduced(node), REDUCTIONS[node.target]
        source = self._source_of(node, at)
        if not reduced <= {leaf for group in self.kernel.groups for leaf in group.leaves}:
            raise refusal(node, "a sum along a dimension that is no column of the kernel")
        count = KernelText(self.params.count(self.kernel.cols, "n_cols"))
        if reduced and source.cols:
            return self._finished(kind, self._along(source, node), count)
        if reduced and kind in ("sum", "norm"):  # of equal numbers
            source = mul(source, count)
        return call_source("tl.sqrt")(source) if kind == "norm" else source

    def _source_of(self, node: fx.Node, at: ReadAt) -> KernelText:
        """What a reduction adds up: numbers, of which a norm takes the squares."""
        source = self._float(node.args[0], at, node)
        if REDUCTIONS[node.target] != "norm":
            return source
        order = argument_of(node, "ord")
        if order not in (2, 2.0, None):
            raise refusal(node, f"a norm of order {order}")
        if not source.text.isidentifier():
            source = self.bind(object(), self.params.fresh("x"), source)
        return mul(source, source)

    def _along(self, source: KernelText, node: fx.Node) -> KernelText:
        form, text = reduction_of(node, REDUCTIONS[node.target]), source.text
        if not (source.is_zero and form.empty == "0.0"):
            empty = form.empty_of(held_value(node).dtype)
            text = f"tl.where({self.inside(source.rows, True)}, {text}, {empty})"
        along = "0" if self.is_flat else "1, keep_dims=True"
        return KernelText(f"{form.along}({text}, {along})", ATOM, rows=True, size=1)

    def _finished(self, kind: str, total: KernelText, count: KernelText) -> KernelText:
        if kind == "mean":
            return div(total, count)
        return call_source("tl.sqrt")(total) if kind == "norm" else total

    # ---- uses ----

    def _counted(self) -> Counter[fx.Node]:
        """How often each value is used by this kernel."""
        goals, totals = goals_of(self.kernel), self.plan.totals
        found, needed = Counter(goals), ancestors(goals, totals)
        for node in reversed(self.plan.graph.nodes):
            if node in needed and node not in totals:
                is_view = node.target in VIEWS  # it is used as often as what it is a view of
                times = found[node] if is_view else 2 if node.target in _TWICE else 1
                for arg in node.all_input_nodes:
                    found[arg] += times
        return found
