"""Values in C++: literals, and arguments in the form that the type of a parameter needs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pullback.errors import UnsupportedOpError
from pullback.graph.spelling.expressions import ATOM, Expression, TensorsInSight
from pullback.graph.values import held_value, tensor_of

# How tightly an expression holds together, as in the grammar of C++.
LOWEST, BITS, COMPARED, SUM, PRODUCT, UNARY = range(ATOM - 6, ATOM)

DTYPES = {
    torch.float64: "at::kDouble",
    torch.float32: "at::kFloat",
    torch.float16: "at::kHalf",
    torch.bfloat16: "at::kBFloat16",
    torch.complex64: "at::kComplexFloat",
    torch.complex128: "at::kComplexDouble",
    torch.int64: "at::kLong",
    torch.int32: "at::kInt",
    torch.int16: "at::kShort",
    torch.int8: "at::kChar",
    torch.uint8: "at::kByte",
    torch.bool: "at::kBool",
}
FORMATS = {
    torch.contiguous_format: "at::MemoryFormat::Contiguous",
    torch.preserve_format: "at::MemoryFormat::Preserve",
    torch.channels_last: "at::MemoryFormat::ChannelsLast",
    torch.channels_last_3d: "at::MemoryFormat::ChannelsLast3d",
}
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
SMALL = 2**31
LARGEST = torch.finfo(torch.float32).max

_OPTIONAL = re.compile(r"std::optional<(.*)>$")
_ARRAY = re.compile(r"std::array<bool,\d+>$")


class NamedFloat(float):
    """A number of the examples for which an argument of each call stands, or a formula of some."""

    text: str
    names: frozenset[str]


class NamedInt(int):
    """The same for a whole number."""

    text: str
    names: frozenset[str]


Named = NamedFloat | NamedInt


def named_number(value: float, text: str, names: frozenset[str]) -> Named:
    """`value`, which is written as `text`; `names` are the arguments in it."""
    made: Named = NamedInt(value) if isinstance(value, int) else NamedFloat(value)
    made.text, made.names = text, names
    return made


def bare(text: str, level: int = ATOM) -> Expression:
    """An expression in which no op stands."""
    return Expression(text, level, size=0)


@dataclass(slots=True)
class CppWriter(TensorsInSight):
    """Writes arguments: nodes by their names or by the expressions that stand for them.

    `includes` collects the headers that the written calls need, `helpers` the functions of the
    file's own.
    """

    inlined: dict[fx.Node, Expression] = field(default_factory=dict)
    includes: set[str] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)

    def node(self, node: fx.Node) -> Expression:
        """The expression for a node."""
        return self.inlined.get(node) or bare(self.names[node])

    def argument(self, value: Any, kind: str, *, is_exact: bool = False) -> str:
        """`value` for a parameter of type `kind`; `is_exact` names the type of lists and of none.

        That is needed where another function of the same name could be meant.
        """
        if value is None:
            return "at::Tensor()" if kind == "at::Tensor" else f"{kind}()" if is_exact else NONE
        optional = _OPTIONAL.match(kind)
        if optional:
            text = self.argument(value, optional[1], is_exact=True)
            return f"{kind}({text})" if is_exact and not isinstance(value, fx.Node) else text
        if kind in _WRITERS:
            return str(_WRITERS[kind](self, value, is_exact))
        if _ARRAY.match(kind):
            return f"{kind}{{{', '.join(_bool(bool(item)) for item in value)}}}"
        raise no_cpp_form(f"an argument of the type `{kind}`", repr(value))

    def size(self, size: Any) -> str:
        """A size as a `c10::SymInt` or an integer."""
        if isinstance(size, fx.Node):
            return self.node(size).text
        if isinstance(size, torch.SymInt):
            return self.source_of(size)
        return literal(int(size))

    def source_of(self, size: torch.SymInt) -> str:
        """A symbolic size, read from a tensor that has it."""
        if found := self.with_size(size):
            return f"{found[0]}.sym_size({found[1]})"
        raise no_cpp_form("a size that is not the size of an argument", f"`{size}`")

    def number(self, value: Any, other: fx.Node, helper: str = "number") -> str:
        """A number beside the tensor `other`, as a tensor of its dtype; nothing if that is no gain.

        ATen makes a tensor of every such number, of doubles or whole numbers, and converts that to
        the dtype of the other, which takes three times as long as the op itself.
        """
        tensor = tensor_of(other)
        is_real = isinstance(value, int | float) and not isinstance(value, bool)
        if tensor is None or not tensor.is_floating_point() or not is_real:
            return ""
        like = self.name_like(dtype=tensor.dtype)
        if not like or (abs(value) > LARGEST and not math.isinf(value)):
            return ""
        self.helpers.add(helper)
        text = literal(value)
        text = text[1:-1] if text.startswith("(") else text
        return f"{helper}({text}, {like})"

    def dtype(self, dtype: torch.dtype) -> str:
        """A dtype: that of a tensor in sight if it may be another in another call."""
        if dtype.is_floating_point or dtype.is_complex:
            alike = self.name_like(dtype=dtype)
            if alike:
                return f"{alike}.scalar_type()"
        if dtype not in DTYPES:
            raise no_cpp_form("a dtype that C++ knows under no common name", f"{dtype}")
        return DTYPES[dtype]

    def device(self, device: torch.device) -> str:
        """A device: that of a tensor in sight where it is there."""
        alike = self.name_like(device=device)
        return f"{alike}.device()" if alike else f'at::Device("{device}")'


NONE = "std::nullopt"


def no_cpp_form(what: str, got: str, at: str = "") -> UnsupportedOpError:
    """The error for something in a graph that has no form in C++."""
    return UnsupportedOpError(
        f"{what} must be left out to be emitted as C++",
        at=at,
        got=got,
        fix='emit it as Python: pb.emit(..., "python")',
    )


# ---- literals ----


def literal(value: Any) -> str:
    """A Python number as a literal of C++ that has the same bits."""
    if isinstance(value, Named):
        return value.text
    if isinstance(value, bool):
        return _bool(value)
    if isinstance(value, int):
        if value == -(2**63):
            return "INT64_MIN"
        return str(value) if abs(value) < SMALL else f"INT64_C({value})"
    if isinstance(value, float):
        return _double(value)
    if isinstance(value, complex):
        return f"c10::complex<double>({_double(value.real)}, {_double(value.imag)})"
    raise no_cpp_form("a constant that is no number", repr(value))


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _double(value: float) -> str:
    if isinstance(value, Named):
        return value.text
    if math.isfinite(value):
        text = repr(value)
        return text if any(mark in text for mark in ".e") else f"{text}.0"
    limits = "std::numeric_limits<double>"
    if math.isnan(value):
        return f"{limits}::quiet_NaN()"
    return f"{'-' if value < 0 else ''}{limits}::infinity()"


def quoted(text: str) -> str:
    """A string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ---- by the type of the parameter ----


def is_number_argument(value: Any) -> bool:
    """Whether an argument is a number: a literal, or a node that holds one."""
    return isinstance(held_value(value), (*SYMBOLIC, complex))


def symbolic_type(value: Any) -> str:
    """The type in C++ of a number that is made of sizes."""
    if isinstance(value, torch.SymFloat | float):
        return "c10::SymFloat"
    return "c10::SymBool" if isinstance(value, torch.SymBool | bool) else "c10::SymInt"


_NUMBER_DTYPES = {
    **dict.fromkeys((bool, torch.SymBool), "at::kBool"),
    **dict.fromkeys((float, torch.SymFloat), "at::kDouble"),
    complex: "at::kComplexDouble",
}


def _tensor(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if isinstance(value, fx.Node) and tensor_of(value) is not None:
        return writer.node(value).text
    writer.helpers.add("number")
    kind = _NUMBER_DTYPES.get(type(held_value(value)), "at::kLong")
    return f"number({_scalar(writer, value, True)}, {kind})"


def _scalar(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if isinstance(value, fx.Node):
        return f"at::Scalar({writer.node(value).text})"
    if isinstance(value, torch.SymInt):
        return f"at::Scalar({writer.source_of(value)})"
    return literal(value)


def _int(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if isinstance(value, fx.Node | torch.SymInt):
        text = writer.node(value).within(ATOM) if isinstance(value, fx.Node) else writer.size(value)
        return f"{text}.guard_int(__FILE__, __LINE__)"
    return literal(int(value))


def _symint(writer: CppWriter, value: Any, is_exact: bool) -> str:
    text = writer.size(value)
    return f"c10::SymInt({text})" if is_exact and not isinstance(value, fx.Node) else text


def _real(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if isinstance(value, fx.Node):
        text = writer.node(value).within(ATOM)
        is_whole = isinstance(value.meta.get("val"), torch.SymInt | int)
        text = f"c10::SymFloat({text})" if is_whole else text
        return f"{text}.guard_float(__FILE__, __LINE__)"
    if isinstance(value, torch.SymInt):
        return f"double({_int(writer, value, is_exact)})"
    return _double(value if isinstance(value, Named) else float(value))


def _truth(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if isinstance(value, fx.Node):
        return f"{writer.node(value).within(ATOM)}.guard_bool(__FILE__, __LINE__)"
    return _bool(bool(value))


def _listed(name: str, item: Any) -> Any:
    """A list: in braces, with its type in front where another type could be meant."""

    def write(writer: CppWriter, value: Any, is_exact: bool) -> str:
        items = ", ".join(item(writer, each, False) for each in value)
        return f"{name if is_exact else ''}{{{items}}}"

    return write


def _tensors(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if isinstance(value, fx.Node):
        return writer.node(value).text
    items = ", ".join(_tensor(writer, each, False) for each in value)
    return f"std::vector<at::Tensor>{{{items}}}"


def _indices(writer: CppWriter, value: Any, is_exact: bool) -> str:
    kind = "std::optional<at::Tensor>"
    items = ", ".join(
        f"{kind}()" if each is None else f"{kind}({_tensor(writer, each, False)})" for each in value
    )
    return f"c10::List<{kind}>({{{items}}})"


def _scalars(writer: CppWriter, value: Any, is_exact: bool) -> str:
    items = ", ".join(f"at::Scalar({literal(each)})" for each in value)
    return f"std::vector<at::Scalar>{{{items}}}"


def _layout(writer: CppWriter, value: Any, is_exact: bool) -> str:
    if value is not torch.strided:
        raise no_cpp_form("a tensor that is not dense", f"{value}")
    return "at::kStrided"


_WRITERS: dict[str, Any] = {
    "at::Tensor": _tensor,
    "at::Scalar": _scalar,
    "int64_t": _int,
    "c10::SymInt": _symint,
    "double": _real,
    "bool": _truth,
    "at::IntArrayRef": _listed("at::IntArrayRef", _int),
    "at::OptionalIntArrayRef": _listed("at::IntArrayRef", _int),
    "c10::SymIntArrayRef": _listed("c10::SymIntArrayRef", _symint),
    "at::OptionalSymIntArrayRef": _listed("c10::SymIntArrayRef", _symint),
    "at::ArrayRef<double>": _listed("at::ArrayRef<double>", _real),
    "at::ArrayRef<bool>": _listed("at::ArrayRef<bool>", _truth),
    "at::ArrayRef<at::Scalar>": _scalars,
    "at::TensorList": _tensors,
    "at::ITensorListRef": _tensors,
    "c10::List<std::optional<at::Tensor>>": _indices,
    "at::ScalarType": lambda writer, value, is_exact: writer.dtype(value),
    "at::Device": lambda writer, value, is_exact: writer.device(torch.device(value)),
    "at::Layout": _layout,
    "at::MemoryFormat": lambda writer, value, is_exact: FORMATS[value],
    "c10::string_view": lambda writer, value, is_exact: quoted(value),
}
