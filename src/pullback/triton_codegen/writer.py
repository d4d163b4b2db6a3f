"""The text of one kernel.

What a program instance computes stands in up to three places: before its rows, for what no row
changes (weights, scalars); in a row; and, where a row is read block by block, in a block. A value
is written in the outermost place that it can stand in, once for every index that it is read at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from pullback.graph.cost import argument_of
from pullback.graph.values import aten, held_value, is_scalar
from pullback.triton_codegen.axes import (
    CREATED,
    REDUCTIONS,
    SCATTERS,
    VIEWS,
    Axis,
    leaves_of,
    refusal,
)
from pullback.triton_codegen.expressions import (
    ATOM,
    COMPARISON,
    HELPERS,
    PRODUCT,
    SUM,
    TABLE,
    KernelText,
    add,
    call_source,
    cast,
    chosen,
    computed_in,
    div,
    exponent_of,
    is_cast,
    literal_text,
    made,
    mul,
    power_text,
)
from pullback.triton_codegen.plan import Group, Kernel, KernelPlan, Store, is_tensor
from pullback.triton_codegen.sizes import Sizes

LONGEST, LARGEST = 56, 5
"""Characters and ops of an expression that stands inside another one."""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel: its name, and what the host passes for it."""

    name: str
    given: str
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as text, and how it is called."""

    kernel: Kernel
    name: str
    params: tuple[Param, ...]
    lines: tuple[str, ...]
    helpers: frozenset[str]
    total_shapes: Mapping[fx.Node, bool]  # whether a total keeps columns

    @property
    def text(self) -> str:
        """The decorated function."""
        given = [p.name + (": tl.constexpr" if p.is_constant else "") for p in self.params]
        return "\n".join([*_wrapped(f"def {self.name}(", given, "):"), *self.lines])


@dataclass(frozen=True, slots=True)
class _Index:
    """Where a kernel stands on an axis."""

    text: KernelText


@dataclass(frozen=True)
class _At:
    """Where values are read: an index for each axis, and a mask besides that of the kernel."""

    index: Mapping[Any, KernelText]
    mask: KernelText | None = None

    def moved(self, axis: Any, text: KernelText, mask: KernelText | None = None) -> _At:
        """The same place, but for one axis."""
        both = self.mask
        if mask is not None:
            both = mask if both is None else _both(both, mask)
        return _At({**self.index, axis: text}, both)


def _both(a: KernelText, b: KernelText) -> KernelText:
    return made(f"{_in_bits(a)} & {_in_bits(b)}", COMPARISON, a, b)


def _in_bits(a: KernelText) -> str:
    return a.text if a.level == ATOM else f"({a.text})"


@dataclass(eq=False)
class _Scope:
    lines: list[str] = field(default_factory=list)
    known: dict[Any, KernelText] = field(default_factory=dict)


class KernelWriter:
    """Writes one kernel of a plan."""

    def __init__(
        self, plan: KernelPlan, kernel: Kernel, name: str, names: Mapping[str, str], sizes: Sizes
    ) -> None:
        self.plan, self.kernel, self.name = plan, kernel, name
        self.names, self.sizes = names, sizes
        self.is_flat = kernel.form != "tile"  # one row at a time: rows are numbers
        self.is_blocked = kernel.form == "blocks"
        self.before, self.row, self.block = _Scope(), _Scope(), _Scope()
        self.taken = {"row", "col", "inside", "in_rows", "in_cols", "tl", "triton", "program"}
        self.taken |= {"n_rows", "n_cols", "programs", "start", "step", *HELPERS}
        self.tensors: dict[fx.Node, str] = {}
        self.strides: list[Param] = []
        self.scalars: dict[str, Param] = {}
        self.pointers: list[Param] = []
        self.helpers: set[str] = set()
        self.masks: set[str] = set()
        self.places: dict[str, list[str]] = {"row": [], "col": []}
        self.uses = self._counted()
        self.root = _At(self._root_index())
        self.accumulators: list[tuple[fx.Node, str, KernelText]] = []

    # ---- indices ----

    def _root_index(self) -> dict[Any, KernelText]:
        """An index for each group of axes: of one group that of the row or column itself."""
        found: dict[Any, KernelText] = {}
        for groups, flat in ((self.kernel.rows, "row"), (self.kernel.cols, "col")):
            is_row = flat == "row"
            for place, group in enumerate(groups):
                inner, name = groups[place + 1 :], flat
                if len(groups) > 1:
                    name = f"{flat}_{place}"
                    self.taken.add(name)
                    text = f"{flat} // {self._product(inner)}" if inner else flat
                    text = f"{text} % {self._size(group)}" if place else text
                    self.places[flat].append(f"{name} = {text}")
                found[group] = KernelText(name, rows=is_row, cols=not is_row)
        return found

    def _product(self, groups: Sequence[Group]) -> str:
        names = [self._size(group) for group in groups]
        return names[0] if len(names) == 1 else f"({' * '.join(names)})"

    def _size(self, group: Group) -> str:
        """The name of the size of a group of axes."""
        if self.kernel.rows == [group]:
            return self._scalar("n_rows", self.sizes.of_group(group))
        if self.kernel.cols == [group]:
            return self._scalar("n_cols", self.sizes.of_group(group))
        where = self.kernel.rows if group in self.kernel.rows else self.kernel.cols
        word = "rows" if group in self.kernel.rows else "cols"
        return self._scalar(f"n_{word}_{where.index(group)}", self.sizes.of_group(group))

    def _scalar(self, name: str, given: str, *, is_constant: bool = False) -> str:
        for known in self.scalars.values():
            if known.given == given and (known.name == name or not name.startswith("n_")):
                return known.name
        if name not in self.scalars:
            self.scalars[name] = Param(name, given, is_constant)
            self.taken.add(name)
        return name

    def _group(self, axis: Axis) -> Any:
        return self.kernel.group_of(axis) or axis

    def _index_of(self, row: Sequence[Axis], at: _At, node: fx.Node) -> KernelText | None:
        """The index of a dimension; None where its size is one."""
        leaves = leaves_of(tuple(row))
        if not leaves:
            return None
        groups = list(dict.fromkeys(self._group(leaf) for leaf in leaves))
        if len(groups) != 1 or groups[0] not in at.index:
            raise refusal(node, "an index over several dimensions")
        return at.index[groups[0]]

    def _set_index(
        self, row: Sequence[Axis], at: _At, node: fx.Node, text: KernelText, mask: Any
    ) -> _At:
        leaves = leaves_of(tuple(row))
        if not leaves:
            return at if mask is None else at.moved("nothing", text, mask)
        groups = list(dict.fromkeys(self._group(leaf) for leaf in leaves))
        if len(groups) != 1:
            raise refusal(node, "an index over several dimensions")
        return at.moved(groups[0], text, mask)

    # ---- values ----

    def value(self, arg: Any, at: _At) -> KernelText:
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

    def _key(self, node: fx.Node, at: _At) -> Any:
        axes = self.plan.axes.all_of(node) if node in self.plan.axes.dims else []
        groups = dict.fromkeys(self._group(axis) for axis in axes)
        places = tuple((id(g), at.index[g].text) for g in groups if g in at.index)
        return node, places, at.mask.text if at.mask else ""

    def _noted(self, node: fx.Node, key: Any, text: KernelText, at: _At) -> KernelText:
        """An expression by its name, where it gets a line."""
        is_named = self._is_given(node) and at is self.root
        is_long = len(text.text) > LONGEST or text.size > LARGEST
        is_line = (self.uses.get(node, 0) > 1 and text.size > 0) or is_named or is_long
        if not is_line or text.text.isidentifier():
            return text
        name = self._fresh(self._name(node) if at is self.root else f"{self._name(node)}_moved")
        return self._bind(key, name, text)

    def _bind(self, key: Any, name: str, text: KernelText) -> KernelText:
        scope = self._scope(text)
        scope.lines.append(f"{name} = {text.text}")
        scope.known[key] = replace(text, text=name, level=ATOM, size=0)
        return scope.known[key]

    def _scope(self, text: KernelText) -> _Scope:
        """The outermost place for an expression."""
        if text.cols and self.is_blocked:
            return self.block
        return self.row if text.rows else self.before

    def _number(self, value: Any) -> KernelText:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            for group in self.kernel.groups:
                if self.sizes.of_group(group) == self.sizes.text(value):
                    return KernelText(self._size(group))
            given = self.sizes.text(value)
            name = next((p.name for p in self.scalars.values() if p.given == given), "")
            return KernelText(name or self._scalar(self._fresh("size"), given))
        if isinstance(value, torch.Tensor):
            return literal_text(value.item())
        return literal_text(value)

    def _computed(self, node: fx.Node, at: _At) -> KernelText:
        target = node.target
        if node.op == "placeholder":
            return self._load(node, at)
        if self.plan.kinds.get(node) == "total":
            return self._total(node, at)
        if target in REDUCTIONS:
            return self._reduced(node, at)
        if target in VIEWS:
            return self.value(node.args[0], at)
        if is_cast(node):
            return cast(node, self.value(node.args[0], at))
        if target in MOVES:
            return MOVES[target](self, node, at)
        if target is getitem:
            return _piece(self, node, at)
        if target in CREATED:
            return self._created(node, at)
        if target is aten.pow.Tensor_Scalar:
            return power_text(self._float(node.args[0], at, node), float(exponent_of(node)))
        if target in TABLE:
            return self._pointwise(node, at)
        raise refusal(node)

    def _pointwise(self, node: fx.Node, at: _At) -> KernelText:
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
        form = TABLE[node.target]
        found = form(*args, *words, **named)
        for helper in HELPERS:
            if re.search(rf"(?<![\w.]){helper}\(", found.text):
                self.helpers.add(helper)
        return found

    def _float(self, arg: Any, at: _At, node: fx.Node) -> KernelText:
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

    def _load(self, node: fx.Node, at: _At) -> KernelText:
        offset = self._offset(node, at)
        pointer = self._pointer(node)
        mask = self._mask(offset, at)
        place = pointer if offset.text == "" else f"{pointer} + {offset.text}"
        text = f"tl.load({place}{self._masked(mask, '0.0', node)})"
        dtype = held_value(node).dtype
        if dtype in (torch.bfloat16, torch.float16):
            text += ".to(tl.float32)"
        elif dtype is torch.bool:
            text += " != 0"
        found = KernelText(
            text, ATOM if dtype is not torch.bool else COMPARISON, offset.rows, offset.cols, True, 1
        )
        key = self._key(node, at)
        suffix = "" if at is self.root or not self._moved(node, at) else "_there"
        return self._bind(key, self._fresh(self._name(node) + suffix), found)

    def _moved(self, node: fx.Node, at: _At) -> bool:
        groups = [self._group(axis) for axis in self.plan.axes.all_of(node)]
        return any(
            g not in self.root.index or at.index.get(g) != self.root.index[g] for g in groups
        )

    def _masked(self, mask: str, other: str, node: fx.Node) -> str:
        if not mask:
            return ""
        other = other if held_value(node).is_floating_point() else "0"
        return f", mask={mask}, other={other}"

    def _mask(self, place: KernelText, at: _At) -> str:
        """What must hold for a place to be read."""
        mask = self.inside(place.rows, place.cols)
        if at.mask is not None and (at.mask.cols or at.mask.rows):
            return f"{mask} & {_in_bits(at.mask)}" if mask else at.mask.text
        return mask

    def inside(self, rows: bool, cols: bool) -> str:
        """The name of the mask for what varies along rows, columns, or both; "" for none."""
        if self.is_flat:
            name = "inside" if cols else ""
        else:
            has_rows, has_cols = rows and bool(self.kernel.rows), cols and bool(self.kernel.cols)
            name = {(True, True): "inside", (True, False): "in_rows", (False, True): "in_cols"}.get(
                (has_rows, has_cols), ""
            )
        if name:
            self.masks.add(name)
        return name

    def _pointer(self, node: fx.Node, name: str = "") -> str:
        if node not in self.tensors:
            given = name or self._name(node)
            self.tensors[node] = self._fresh(f"{given}_ptr")
            self.pointers.append(Param(self.tensors[node], given))
        return self.tensors[node]

    def _offset(self, node: fx.Node, at: _At, store: Store | None = None) -> KernelText:
        """Where an element of a tensor lies: an index and a stride for each of its axes."""
        terms: list[KernelText] = []
        if self.sizes.is_plain(node, self.kernel) and not self._moved(node, at) and store is None:
            return self._plain_offset(node)
        groups = dict.fromkeys(self._group(axis) for axis in self.plan.axes.all_of(node))
        for group in groups:
            if group not in at.index:
                raise refusal(node, "an index that the kernel does not have")
            index = at.index[group]
            stride = self._stride(node, group)
            terms.append(mul(index, KernelText(stride)))
        return _summed(terms)

    def _plain_offset(self, node: fx.Node) -> KernelText:
        axes = set(self.plan.axes.all_of(node))
        rows = any(axis in g.leaves for g in self.kernel.rows for axis in axes)
        cols = any(axis in g.leaves for g in self.kernel.cols for axis in axes)
        if rows and cols:
            return KernelText(
                f"row * {self._count(self.kernel.cols, 'n_cols')} + col", SUM, True, True
            )
        if rows or cols:
            return KernelText("row" if rows else "col", ATOM, rows, cols)
        return KernelText("")

    def _count(self, groups: Sequence[Group], name: str) -> str:
        if len(groups) == 1:
            return self._size(groups[0])
        return self._scalar(name, self.sizes.of_groups(groups))

    def _stride(self, node: fx.Node, group: Any) -> str:
        base = self._name(node)
        word = (
            "row" if self.kernel.rows == [group] else "col" if self.kernel.cols == [group] else ""
        )
        if not word:
            axes = dict.fromkeys(self._group(axis) for axis in self.plan.axes.all_of(node))
            word = f"stride_{list(axes).index(group)}"
        given = self.sizes.stride(node, group)
        name = f"{base}_{word}"
        for known in self.strides:
            if known.given == given:
                return known.name
        self.taken.add(name)
        self.strides.append(Param(name, given))
        return name

    # ---- constants and indices ----

    def _created(self, node: fx.Node, at: _At) -> KernelText:
        name = str(node.target)
        if "arange" in name or "iota" in name:
            return _arange(self, node, at)
        if "eye" in name:
            raise refusal(node)
        if "zeros" in name:
            return literal_text(0.0)
        if "ones" in name:
            return literal_text(1.0)
        value = argument_of(node, "fill_value")
        value = argument_of(node, "s") if value is None else value
        found = self.value(value, at)
        dtype = held_value(node).dtype
        return (
            found
            if not dtype.is_floating_point or "." in found.text or "(" in found.text
            else literal_text(float(value))
            if not isinstance(value, fx.Node)
            else found
        )

    # ---- reductions ----

    def _reduced(self, node: fx.Node, at: _At) -> KernelText:
        """A reduction along the columns of the kernel."""
        reduced = self.plan.axes.reduced(node)
        cols = {axis for g in self.kernel.cols for axis in g.leaves}
        source = self._source_of(node, at)
        kind = REDUCTIONS[node.target]
        if kind in ("any", "all"):
            raise refusal(node)
        if reduced and not reduced <= cols | {a for g in self.kernel.groups for a in g.leaves}:
            raise refusal(node, "a sum along a dimension that is no column of the kernel")
        count = self._count(self.kernel.cols, "n_cols")
        if not reduced or not source.cols:
            scale = KernelText(count) if kind == "sum" and reduced else None
            return source if scale is None else mul(source, scale)
        total = self._along(source, kind)
        return self._finished(node, kind, total, KernelText(count))

    def _source_of(self, node: fx.Node, at: _At) -> KernelText:
        """What a reduction adds up: numbers, of which a norm takes the squares."""
        source = self._float(node.args[0], at, node)
        if REDUCTIONS[node.target] != "norm":
            return source
        order = argument_of(node, "ord")
        if order not in (2, 2.0, None):
            raise refusal(node, f"a norm of order {order}")
        if not source.text.isidentifier():
            source = self._bind(object(), self._fresh("x"), source)
        return mul(source, source)

    def _along(self, source: KernelText, kind: str) -> KernelText:
        empty = {"max": '-float("inf")', "min": 'float("inf")'}.get(kind, "0.0")
        text = source.text
        if not (source.is_zero and empty == "0.0"):
            text = f"tl.where({self.inside(source.rows, True)}, {text}, {empty})"
        along = "0" if self.is_flat else "1, keep_dims=True"
        name = {"max": "tl.max", "min": "tl.min"}.get(kind, "tl.sum")
        return KernelText(f"{name}({text}, {along})", ATOM, rows=source.rows or True, size=1)

    def _finished(
        self, node: fx.Node, kind: str, total: KernelText, count: KernelText
    ) -> KernelText:
        if kind == "mean":
            return div(total, count)
        return call_source("tl.sqrt")(total) if kind == "norm" else total

    def _total(self, node: fx.Node, at: _At) -> KernelText:
        """What the programs of an earlier kernel added up."""
        return self._load(node, at)

    # ---- names ----

    def _name(self, node: fx.Node) -> str:
        return self.names.get(node.name, node.name)

    def _is_given(self, node: fx.Node) -> bool:
        return node.name in getattr(self.names, "given", ())

    def _fresh(self, wish: str) -> str:
        name, number = wish, 1
        while name in self.taken:
            name, number = f"{wish}_{number}", number + 1
        self.taken.add(name)
        return name

    def _counted(self) -> dict[fx.Node, int]:
        """How often each value is used by this kernel."""
        goals = [s.node for s in self.kernel.stores]
        if not self.kernel.is_final:
            goals += [t.args[0] for t in self.kernel.totals]  # type: ignore[misc]
        found: dict[fx.Node, int] = {}
        left, seen = list(goals), set()
        for goal in goals:
            found[goal] = found.get(goal, 0) + 1
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op == "placeholder" or (self.plan.kinds.get(node) == "total"):
                continue
            for arg in node.all_input_nodes:
                found[arg] = found.get(arg, 0) + (
                    2 if node.target is aten.pow.Tensor_Scalar or node.target in _TWICE else 1
                )
            left += node.all_input_nodes
        for node in list(found):  # a view is used as often as what it is a view of
            source: Any = node.args[0] if node.args else None
            if node.target in VIEWS and is_tensor(source):
                found[source] = found.get(source, 0) + found[node] - 1
        return found


_TWICE = (
    aten.silu.default,
    aten.square.default,
    aten.linalg_vector_norm.default,
    aten.leaky_relu.default,
)


def _summed(terms: Sequence[KernelText]) -> KernelText:
    if not terms:
        return KernelText("")
    found = terms[0]
    for term in terms[1:]:
        found = add(found, term)
    return found


# ---- ops that read elsewhere ----


def _arange(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    rows = writer.plan.axes.of(node)
    index = writer._index_of(rows[0], at, node)
    start = argument_of(node, "start") or 0
    step = argument_of(node, "step")
    found = index if index is not None else literal_text(0)
    if step not in (None, 1):
        found = mul(found, writer.value(step, at))
    return found if start == 0 else add(found, writer.value(start, at))


def _slice(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    source: Any = node.args[0]
    dim = int(argument_of(node, "dim") or 0) % held_value(source).dim()
    start, step = argument_of(node, "start") or 0, argument_of(node, "step") or 1
    return _shifted(writer, node, source, at, dim, start, step)


def _shifted(
    writer: KernelWriter, node: fx.Node, source: Any, at: _At, dim: int, start: Any, step: Any = 1
) -> KernelText:
    """A part of a tensor: read from `start` on."""
    index = writer._index_of(writer.plan.axes.of(node)[dim], at, node) or literal_text(0)
    start = _from_end(start, held_value(source).shape[dim])
    if step != 1:
        index = mul(index, writer.value(step, at))
    moved = index if start == 0 and isinstance(start, int) else add(index, writer.value(start, at))
    return writer.value(
        source, writer._set_index(writer.plan.axes.of(source)[dim], at, node, moved, None)
    )


def _from_end(start: Any, size: Any) -> Any:
    number = held_value(start)
    if isinstance(number, int) and number < 0:
        return size + number
    return start if not isinstance(number, torch.SymInt) else number


def _select(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    source: Any = node.args[0]
    value = held_value(source)
    dim = int(node.args[1]) % value.dim()  # type: ignore[arg-type]
    start = writer.value(_from_end(node.args[2], value.shape[dim]), at)
    rows = writer.plan.axes.of(source)
    return writer.value(source, writer._set_index(rows[dim], at, node, start, None))


def _piece(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    """One of the parts of `split`, `chunk` or `unbind`."""
    whole: Any = node.args[0]
    place = int(node.args[1])  # type: ignore[arg-type]
    source = whole.args[0]
    value = held_value(source)
    dim = int(argument_of(whole, "dim") or 0) % value.dim()
    if whole.target is aten.unbind.int:
        at = writer._set_index(
            writer.plan.axes.of(source)[dim], at, node, writer.value(place, at), None
        )
        return writer.value(source, at)
    start = 0
    for part in held_value(whole)[:place]:
        start = start + part.shape[dim]
    return _shifted(writer, node, source, at, dim, start)


def _cat(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    """Each of the parts where it stands."""
    parts: Any = node.args[0]
    dim = int(argument_of(node, "dim") or 0) % held_value(node).dim()
    index = writer._index_of(writer.plan.axes.of(node)[dim], at, node)
    if index is None:
        return writer.value(parts[0], at)
    start: Any = 0
    found: list[tuple[KernelText, KernelText]] = []
    for place, part in enumerate(parts):
        size = held_value(part).shape[dim]
        end = start + size
        below = _compare(index, "<", writer.value(end, at))
        above = _compare(index, ">=", writer.value(start, at))
        is_first, is_last = place == 0, place == len(parts) - 1
        mask = below if is_first else above if is_last else _both(above, below)
        moved = index if is_first else _less(index, writer.value(start, at))
        there = writer._set_index(writer.plan.axes.of(part)[dim], at, node, moved, mask)
        found.append((mask, writer.value(part, there)))
        start = end
    text = found[-1][1]
    for mask, value in reversed(found[:-1]):
        text = chosen(mask, value, text)
    return text


def _compare(a: KernelText, sign: str, b: KernelText) -> KernelText:
    return made(f"{a.within(SUM)} {sign} {b.within(SUM)}", COMPARISON, a, b)


def _less(a: KernelText, b: KernelText) -> KernelText:
    return made(f"{a.within(SUM)} - {b.within(PRODUCT)}", SUM, a, b)


def _slice_backward(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    """Zeros, with a tensor from `start` on."""
    part, _, dim, start, _, step = node.args
    value = held_value(node)
    dim = int(dim) % value.dim()  # type: ignore[arg-type]
    if step != 1:
        raise refusal(node, "a step that is not one")
    start = _from_end(start, value.shape[dim])
    size = held_value(part).shape[dim]
    return _put(writer, node, at, part, dim, start, start + size)


def _put(
    writer: KernelWriter, node: fx.Node, at: _At, part: Any, dim: int, start: Any, end: Any
) -> KernelText:
    index = writer._index_of(writer.plan.axes.of(node)[dim], at, node)
    if index is None:
        return writer.value(part, at)
    is_start = isinstance(start, int) and start == 0
    is_end = bool(_same(end, held_value(node).shape[dim]))
    below = None if is_end else _compare(index, "<", writer.value(end, at))
    above = None if is_start else _compare(index, ">=", writer.value(start, at))
    masks = [m for m in (above, below) if m is not None]
    mask = masks[0] if len(masks) == 1 else _both(*masks) if masks else None
    moved = index if is_start else _less(index, writer.value(start, at))
    there = writer._set_index(writer.plan.axes.of(part)[dim], at, node, moved, mask)
    text = writer.value(part, there)
    return text if mask is None else chosen(mask, text, literal_text(0.0))


def _same(a: Any, b: Any) -> bool:
    from pullback.graph.values import same

    return same(a, b)


def _select_backward(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    part, _, dim, place = node.args
    value = held_value(node)
    dim = int(dim) % value.dim()  # type: ignore[arg-type]
    index = writer._index_of(writer.plan.axes.of(node)[dim], at, node)
    text = writer.value(part, at)
    if index is None:
        return text
    where = writer.value(_from_end(place, value.shape[dim]), at)
    return chosen(_compare(index, "==", where), text, literal_text(0.0))


def _padded(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    """Zeros around a tensor, along one dimension."""
    source, pads = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    fill = node.args[2] if len(node.args) > 2 else 0
    rank = held_value(node).dim()
    dims = [(rank - 1 - i // 2, pads[i]) for i in range(0, len(pads), 2) if pads[i] or pads[i + 1]]
    if len(dims) != 1 or fill not in (0, 0.0):
        raise refusal(node)
    (dim, start), size = dims[0], held_value(source).shape
    return _put(writer, node, at, source, dim, start, start + size[dim])


def _flip(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    source: Any = node.args[0]
    dims: Any = node.args[1]
    value = held_value(source)
    for dim in dims:
        dim %= value.dim()
        index = writer._index_of(writer.plan.axes.of(node)[dim], at, node)
        if index is not None:
            moved = _less(writer.value(value.shape[dim] - 1, at), index)
            at = writer._set_index(writer.plan.axes.of(source)[dim], at, node, moved, None)
    return writer.value(source, at)


def _gather(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    """One element of each row, at an index that is read or computed."""
    source: Any = node.args[0]
    index = node.args[2]
    value = held_value(source)
    dim = int(node.args[1]) % value.dim()  # type: ignore[arg-type]
    rows = writer.plan.axes.of(source)
    there = writer.value(index, at)
    if not there.text.isidentifier():
        there = writer._bind(object(), writer._fresh("place"), there)
    size = writer.value(value.shape[dim], at)
    mask = _both(_compare(there, ">=", literal_text(0)), _compare(there, "<", size))
    return writer.value(source, writer._set_index(rows[dim], at, node, there, mask))


def _scattered(writer: KernelWriter, node: fx.Node, at: _At) -> KernelText:
    """A value where its place is the index of its row, else another."""
    into, dim, index, source = node.args
    rows = writer.plan.axes.of(node)
    here = writer._index_of(rows[int(dim) % len(rows)], at, node)  # type: ignore[arg-type]
    rest, put = writer.value(into, at), writer.value(source, at)
    if node.target is aten.scatter_add.default:
        put = put if rest.is_zero and rest.text == "0.0" else add(rest, put)
    if here is None:
        return put
    return chosen(_compare(here, "==", writer.value(index, at)), put, rest)


MOVES = {
    **dict.fromkeys(SCATTERS, _scattered),
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.cat.default: _cat,
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten.constant_pad_nd.default: _padded,
    aten.flip.default: _flip,
    aten.gather.default: _gather,
    aten.index_select.default: _gather,
}
"""Ops that read their argument at another index."""


def wrapped_line(line: str, width: int = 92) -> list[str]:
    """A line of a kernel, its outermost call over several lines where it is long."""
    if len(line) <= width or "(" not in line:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    for begin in (i for i, c in enumerate(line) if c == "("):
        end = _closing(line, begin)
        inner = line[begin + 1 : end]
        is_outer = len(line) - (end - begin) < width - 8 and len(inner) > 30
        if is_outer and line[begin - 1] not in " (":
            items = _items(inner)
            whole = f"{indent}    {inner}"
            rows = [whole] if len(whole) <= width else [f"{indent}    {item}," for item in items]
            return [line[: begin + 1], *rows, f"{indent}){line[end + 1 :]}"]
    return [line]


def _closing(line: str, begin: int) -> int:
    depth = 0
    for place in range(begin, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place
    return len(line) - 1


def _items(inner: str) -> list[str]:
    """The arguments of a call."""
    items, depth, current = [], 0, ""
    for letter in inner:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append(current.strip())
            current = ""
        else:
            current += letter
    return [*items, current.strip()]


def _wrapped(head: str, items: Sequence[str], end: str, width: int = 96) -> list[str]:
    whole = f"{head}{', '.join(items)}{end}"
    if len(whole) <= width:
        return [whole]
    lines, current = [head], ""
    for item in items:
        if current and len(current) + len(item) + 7 > width:
            lines.append(f"    {current.rstrip()}")
            current = ""
        current += f"{item}, "
    return [*lines, f"    {current.rstrip()}", end]
