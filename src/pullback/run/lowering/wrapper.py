"""What Inductor's Python does between its kernels, read as steps that C++ can take.

Inductor compiles a graph into kernels and a short Python function that makes buffers, calls the
kernels with them, and returns some. For graphs of fixed sizes it consists of a handful of forms.
Where it is made of these alone, it is read here, and run without Python (`cpp/`); compiling the
same graph ahead of time would take a compiler ten seconds more.

A kernel on a CPU is a function of a library; how one is launched on a GPU, `launches` says.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.run.lowering.launches import Place, Unread, launch_of

Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WrapperSteps:
    """A function as steps on numbered registers; its arguments are in the first of them.

    `device` is the number of the GPU that it runs on, or -1 for a CPU; `reused` are the places of
    those arguments whose memory holds something else later.
    """

    device: int
    reused: tuple[int, ...]
    register_count: int
    taken: tuple[int, ...]
    steps: tuple[Step, ...]
    constants: tuple[tuple[int, Tensor], ...]
    made: tuple[int, ...]


def reading_of(call: Callable[..., Any], row: Sequence[Any]) -> WrapperSteps | None:
    """The function `call` of a module of Inductor's, for arguments like `row`; None if unread."""
    code = getattr(call, "__code__", None)
    if not isinstance(call, types.FunctionType) or code is None or call.__name__ != "call":
        return None
    devices = {v.device for v in row if isinstance(v, Tensor)} or {torch.device("cpu")}
    if len(devices) > 1:
        return None
    try:
        tree = ast.parse(Path(code.co_filename).read_text(encoding="utf-8"))
        (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "call"]
        reader = _Reader(call.__globals__, row, _number(devices.pop()))
        for statement in function.body:
            reader.read(statement)
        return reader.reading()
    except (Unread, OSError, SyntaxError, ValueError):
        return None


def _number(device: torch.device) -> int:
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
        raise Unread(str(device))
    return -1 if device.type == "cpu" else device.index or 0


@dataclass(eq=False)
class _Reader:
    space: Mapping[str, Any]
    row: Sequence[Any]
    device: int
    streams: set[str] = field(default_factory=set)
    renamed: set[int] = field(default_factory=set)
    places: dict[str, int] = field(default_factory=dict)
    count: int = 0
    steps: list[Step] = field(default_factory=list)
    constants: list[tuple[int, Tensor]] = field(default_factory=list)
    made: list[int] | None = None

    def reading(self) -> WrapperSteps:
        if self.made is None:
            raise Unread("no result")
        taken = tuple(i for i, value in enumerate(self.row) if isinstance(value, Tensor))
        reused = tuple(place for i, place in enumerate(taken) if i in self.renamed)
        rows = tuple(self.steps), tuple(self.constants), tuple(self.made)
        return WrapperSteps(self.device, reused, self.count, taken, *rows)

    # ---- statements ----

    def read(self, statement: ast.stmt) -> None:
        """Read one statement of the function."""
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name(id="args")):
                self._take(names)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name("args"), "clear"))):
                pass
            case ast.With(items=[ast.withitem(context_expr=guard, optional_vars=None)], body=body):
                self._require_device(guard, "torch.cuda._DeviceGuard")
                for one in body:
                    self.read(one)
            case ast.Expr(value=ast.Call(func=func) as call) if _is_setting(func):
                self._require_device(call, "torch.cuda.set_device")
            case ast.Expr(value=ast.Call() as call):
                self._run(call)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._drop(target)
            case ast.Return(value=ast.Tuple(elts=values)):
                self.made = [-1 if _is_none(v) else self._operand(v)[0] for v in values]
            case _:
                raise Unread(ast.unparse(statement))

    def _take(self, names: Sequence[ast.expr]) -> None:
        """The arguments; a number among them has no register: static code does not read it."""
        if len(names) != len(self.row) or self.count:
            raise Unread("other arguments")
        for name, value in zip(names, self.row, strict=True):
            if isinstance(value, Tensor):
                self._new(_name(name))

    def _assign(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Name():
                source = self._operand(value)[0]
                self.renamed.add(source)
                self._step("same", self._new(name), [source])
            case ast.Call(func=ast.Name(id="get_raw_stream")):
                self._require_device(value, "get_raw_stream")
                self.streams.add(name)
            case ast.Call(func=ast.Name(id=maker), args=[sizes, strides, dtype]):
                if maker != ("empty_strided_cpu" if self.device < 0 else "empty_strided_cuda"):
                    raise Unread(ast.unparse(value))
                facts = {"sizes": _numbers(sizes), "strides": _numbers(strides)}
                self._step("empty", self._new(name), [], dtype=_dtype(dtype), **facts)
            case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[of, *_]):
                source = self._view(value)
                self.renamed.add(self._operand(of)[0] if isinstance(of, ast.Name) else -1)
                self._step("same", self._new(name), [source])
                self._step("drop", source, [])
            case ast.Call(func=ast.Attribute(value=inner, attr="to"), args=[dtype], keywords=[]):
                wide = self._new()
                self._reduce(wide, inner)
                self._step("cast", self._new(name), [wide], dtype=_dtype(dtype))
                self._step("drop", wide, [])
            case _:
                self._reduce(self._new(name), value)

    def _reduce(self, to: int, value: ast.expr) -> None:
        """The last round of a reduction: `workspace[start:end].view(rows, columns).sum(dim=0)`."""
        match value:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(
                        func=ast.Attribute(
                            value=ast.Subscript(value=of, slice=ast.Slice(lower=start, step=None)),
                            attr="view",
                        ),
                        args=[rows, columns],
                        keywords=[],
                    ),
                    attr="sum" | "amin" | "amax" as kind,
                ),
                args=[],
                keywords=[ast.keyword(arg="dim", value=ast.Constant(value=0))],
            ) if start is not None:
                source, is_own = self._operand(of)
                offset, sizes = _computed(start), [_computed(rows), _computed(columns)]
                if is_own:
                    raise Unread(ast.unparse(value))
                part = self._new()
                self._step(
                    "view", part, [source], sizes=sizes, strides=[sizes[1], 1], offset=offset
                )
                self._step(kind, to, [part])
                self._step("drop", part, [])
            case _:
                raise Unread(ast.unparse(value))

    def _run(self, call: ast.Call) -> None:
        match call.func:
            case ast.Name(id=name):
                self._kernel(name, call)
            case ast.Attribute(value=ast.Name(id="extern_kernels"), attr=name):
                self._product(name, call)
            case ast.Attribute(value=ast.Name(id=name), attr="run"):
                self._launch(name, call)
            case ast.Attribute(value=ast.Name(id=name), attr="zero_") if not call.args:
                self._step("zero", self._operand(call.func.value)[0], [])
            case _:
                raise Unread(ast.unparse(call))

    def _kernel(self, name: str, call: ast.Call) -> None:
        kernel = self.space.get(name)
        path = getattr(getattr(kernel, "__self__", None), "__file__", None)
        if not isinstance(kernel, types.BuiltinFunctionType) or not path or call.keywords:
            raise Unread(name)
        with _Operands(self, call.args) as sources:
            self._step("kernel", 0, sources, path=str(path), name=kernel.__name__)

    def _launch(self, name: str, call: ast.Call) -> None:
        match call.keywords:
            case [ast.keyword(arg="stream", value=ast.Name(id=stream))] if stream in self.streams:
                pass
            case _:
                raise Unread(ast.unparse(call))
        values = [one for one in call.args if not isinstance(one, ast.Constant)]
        with _Operands(self, values) as sources:
            places = iter(sources)
            given = [
                one.value if isinstance(one, ast.Constant) else Place(next(places))
                for one in call.args
            ]
            launch = launch_of(self.space.get(name), given)
            pointers = [one.register for one in launch.arguments if isinstance(one, Place)]
            facts = {"function": launch.function, "grid": launch.grid, "threads": launch.threads}
            facts |= {"shared": launch.shared, "numbers": launch.numbers(), "owner": launch.owner}
            self._step("launch", 0, pointers, **facts)

    def _require_device(self, call: ast.expr, name: str) -> None:
        """Raise unless `call` calls the function `name` with the number of the device."""
        match call:
            case ast.Call(func=func, args=[ast.Constant(value=number)], keywords=[]):
                if ast.unparse(func) == name and number == self.device:
                    return
        raise Unread(ast.unparse(call))

    def _product(self, name: str, call: ast.Call) -> None:
        named = {one.arg: one.value for one in call.keywords}
        out = named.pop("out", None)
        scales = {k: _scale(v) for k, v in named.items() if k in ("alpha", "beta")}
        count = {"mm": 2, "bmm": 2, "addmm": 3}.get(name)
        if out is None or len(call.args) != count or len(scales) != len(named):
            raise Unread(ast.unparse(call))
        if scales and name != "addmm":
            raise Unread(ast.unparse(call))
        with _Operands(self, [out, *call.args]) as (to, *sources):
            self._step(name, to, sources, **scales)

    def _drop(self, target: ast.expr) -> None:
        name = _name(target)
        if name in self.places:  # not a number among the arguments
            self._step("drop", self.places.pop(name), [])

    # ---- values ----

    def _new(self, name: str = "") -> int:
        place, self.count = self.count, self.count + 1
        if name:
            self.places[name] = place
        return place

    def _step(self, kind: str, to: int, sources: Sequence[int], **facts: Any) -> None:
        self.steps.append({"kind": kind, "to": to, "from": list(sources), **facts})

    def _operand(self, value: ast.expr) -> tuple[int, bool]:
        """The register of a value, and whether it was made for it."""
        match value:
            case ast.Name(id=name) if name in self.places:
                return self.places[name], False
            case ast.Name(id=name) if isinstance(self.space.get(name), Tensor):
                place = self._new(name)
                self.constants.append((place, self.space[name]))
                return place, False
            case ast.Call(func=ast.Name(id="reinterpret_tensor")):
                return self._view(value), True
            case _:
                raise Unread(ast.unparse(value))

    def _view(self, call: ast.Call) -> int:
        if len(call.args) != 4 or call.keywords:
            raise Unread(ast.unparse(call))
        source, is_own = self._operand(call.args[0])
        facts = {"sizes": _numbers(call.args[1]), "strides": _numbers(call.args[2])}
        (offset,) = _numbers(ast.Tuple([call.args[3]]))
        place = self._new()
        self._step("view", place, [source], offset=offset, **facts)
        if is_own:
            self._step("drop", source, [])
        return place


class _Operands:
    """The registers of some values, of which those that were made for them are dropped after."""

    def __init__(self, reader: _Reader, values: Sequence[ast.expr]) -> None:
        self.reader = reader
        self.found = [reader._operand(value) for value in values]

    def __enter__(self) -> list[int]:
        return [place for place, _ in self.found]

    def __exit__(self, *_: object) -> None:
        for place, is_own in self.found:
            if is_own:
                self.reader._step("drop", place, [])


def _is_setting(func: ast.expr) -> bool:
    return ast.unparse(func) == "torch.cuda.set_device"


def _name(value: ast.expr) -> str:
    if not isinstance(value, ast.Name):
        raise Unread(ast.unparse(value))
    return value.id


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _numbers(value: ast.expr) -> list[int]:
    numbers = ast.literal_eval(value)  # a ValueError where sizes are left open
    if not isinstance(numbers, tuple) or not all(type(number) is int for number in numbers):
        raise Unread(ast.unparse(value))
    return list(numbers)


def _computed(value: ast.expr) -> int:
    """A number that is written as sums and products of others."""
    match value:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _computed(left) * _computed(right)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _computed(left) + _computed(right)
    raise Unread(ast.unparse(value))


def _scale(value: ast.expr) -> float:
    return float(ast.literal_eval(value))


def _dtype(value: ast.expr) -> torch.dtype:
    match value:
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            dtype = getattr(torch, name, None)
            if isinstance(dtype, torch.dtype):
                return dtype
    raise Unread(ast.unparse(value))
