"""aten ops as Triton expressions: one table, from op to text.

Floating-point numbers are computed in float32 (in float64 where the program does), whatever they
are stored in. What Triton's language lacks and can be written in a few lines of it is a *helper*,
which the file gets with its kernels: it then runs in Triton's interpreter as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback.graph.parts import FORWARD, phase_of
from pullback.graph.values import CASTS, aten, held_value, narrowed_to

ATOM, UNARY, PRODUCT, SUM, BITS, COMPARISON = range(6)
"""How tightly an expression holds together, the tightest first."""


@dataclass(frozen=True, slots=True)
class KernelText:
    """An expression of a kernel.

    `rows` and `cols` say along what it varies, `is_zero` that it is zero past the end of a row or
    column, `size` how many ops it has.
    """

    text: str
    level: int = ATOM
    rows: bool = False
    cols: bool = False
    is_zero: bool = False
    size: int = 0

    def within(self, level: int) -> str:
        """The text as part of an expression of a level: with parentheses where it needs them."""
        return self.text if self.level <= level else f"({self.text})"


def number_text(value: Any) -> str:
    """A number of the program.

    >>> number_text(2), number_text(0.1), number_text(float("-inf"))
    ('2', '0.1', '-float("inf")')
    """
    if isinstance(value, bool):
        return repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        sign = "-" if value < 0 else ""
        return 'float("nan")' if math.isnan(value) else f'{sign}float("inf")'
    return repr(value)


def literal_text(value: Any) -> KernelText:
    """A number as an expression."""
    text = number_text(value)
    is_zero = not isinstance(value, bool) and value == 0
    return KernelText(text, UNARY if text.startswith("-") else ATOM, is_zero=is_zero)


def made(text: str, level: int, *parts: KernelText, is_zero: bool = False) -> KernelText:
    """An expression of several others."""
    return KernelText(
        text,
        level,
        any(p.rows for p in parts),
        any(p.cols for p in parts),
        is_zero,
        1 + sum(p.size for p in parts),
    )


# ---- forms ----

Form = Callable[..., KernelText]


def binary(sign: str, level: int, *, keeps_zero: bool = False) -> Form:
    """An operator between two expressions."""

    def form(a: KernelText, b: KernelText) -> KernelText:
        right = b.within(level - 1)  # the program's own order of rounding
        is_zero = keeps_zero and a.is_zero and b.is_zero
        return made(f"{a.within(level)} {sign} {right}", level, a, b, is_zero=is_zero)

    return form


def comparison_text(sign: str) -> Form:
    """A comparison."""

    def form(a: KernelText, b: KernelText) -> KernelText:
        return made(f"{a.within(BITS)} {sign} {b.within(BITS)}", COMPARISON, a, b)

    return form


def call_source(name: str, *, keeps_zero: bool = False) -> Form:
    """A call of a function with the expressions."""

    def form(*parts: KernelText) -> KernelText:
        is_zero = keeps_zero and all(p.is_zero for p in parts)
        return made(f"{name}({', '.join(p.text for p in parts)})", ATOM, *parts, is_zero=is_zero)

    return form


def pattern(text: str, level: int = ATOM) -> Form:
    """A text with {0}, {1}, ... for the expressions, which are atoms there."""

    def form(*parts: KernelText) -> KernelText:
        return made(text.format(*(p.within(ATOM) for p in parts)), level, *parts)

    return form


add, sub = binary("+", SUM, keeps_zero=True), binary("-", SUM, keeps_zero=True)
mul, div = binary("*", PRODUCT, keeps_zero=True), binary("/", PRODUCT)


def both_hold(a: KernelText, b: KernelText) -> KernelText:
    """One mask of two."""
    return made(f"{a.within(ATOM)} & {b.within(ATOM)}", COMPARISON, a, b)


def negated(a: KernelText) -> KernelText:
    """-a."""
    return made(f"-{a.within(UNARY)}", UNARY, a, is_zero=a.is_zero)


def chosen(mask: KernelText, a: KernelText, b: KernelText) -> KernelText:
    """a where the mask holds, else b."""
    is_zero = a.is_zero and b.is_zero
    return made(f"tl.where({mask.text}, {a.text}, {b.text})", ATOM, mask, a, b, is_zero=is_zero)


def _added(a: KernelText, b: KernelText, alpha: KernelText | None = None) -> KernelText:
    return add(a, b if alpha is None else mul(alpha, b))


def _subtracted(a: KernelText, b: KernelText, alpha: KernelText | None = None) -> KernelText:
    return sub(a, b if alpha is None else mul(alpha, b))


def power_text(a: KernelText, exponent: float) -> KernelText:
    """a to a power, by products where it is a small whole number."""
    if exponent == 0.5:
        return call_source("tl.sqrt", keeps_zero=True)(a)
    if exponent == -0.5:
        return call_source("tl.rsqrt")(a)
    if float(exponent).is_integer() and 1 <= abs(exponent) <= 4:
        found = a
        for _ in range(int(abs(exponent)) - 1):
            found = mul(found, a)
        return found if exponent > 0 else div(literal_text(1.0), found)
    return call_source("power")(a, literal_text(float(exponent)))


def clamp_text(
    a: KernelText, min: KernelText | None = None, max: KernelText | None = None
) -> KernelText:
    """a between two bounds; NaN stays NaN."""
    if min is not None:
        a = _largest(a, min)
    return a if max is None else _smallest(a, max)


def _largest(a: KernelText, b: KernelText) -> KernelText:
    return pattern("tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)")(a, b)


def _smallest(a: KernelText, b: KernelText) -> KernelText:
    return pattern("tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)")(a, b)


def gelu(a: KernelText, approximate: str = "none") -> KernelText:
    """x Φ(x): exact with `erf`, or the approximation with `tanh`."""
    return call_source("gelu_tanh" if approximate == "tanh" else "gelu", keeps_zero=True)(a)


_ONE = literal_text(1.0)

TABLE: dict[Any, Form] = {
    aten.add.Tensor: _added,
    aten.add.Scalar: _added,
    aten.sub.Tensor: _subtracted,
    aten.sub.Scalar: _subtracted,
    aten.rsub.Scalar: lambda a, b, alpha=None: sub(b, a),
    aten.rsub.Tensor: lambda a, b, alpha=None: sub(b, a),
    aten.mul.Tensor: mul,
    aten.mul.Scalar: mul,
    aten.div.Tensor: div,
    aten.div.Scalar: div,
    aten.neg.default: negated,
    aten.abs.default: call_source("tl.abs", keeps_zero=True),
    aten.exp.default: call_source("tl.exp"),
    aten.exp2.default: call_source("tl.exp2"),
    aten.log.default: call_source("tl.log"),
    aten.log2.default: call_source("tl.log2"),
    aten.sqrt.default: call_source("tl.sqrt", keeps_zero=True),
    aten.rsqrt.default: call_source("tl.rsqrt"),
    aten.sin.default: call_source("tl.sin", keeps_zero=True),
    aten.cos.default: call_source("tl.cos"),
    aten.erf.default: call_source("tl.erf", keeps_zero=True),
    aten.floor.default: call_source("tl.floor", keeps_zero=True),
    aten.ceil.default: call_source("tl.ceil", keeps_zero=True),
    aten.sigmoid.default: call_source("tl.sigmoid"),
    aten.reciprocal.default: lambda a: div(_ONE, a),
    aten.square.default: lambda a: mul(a, a),
    aten.tanh.default: call_source("tanh", keeps_zero=True),
    aten.log1p.default: call_source("log1p", keeps_zero=True),
    aten.expm1.default: call_source("expm1", keeps_zero=True),
    aten.relu.default: lambda a: _largest(a, literal_text(0.0)),
    aten.silu.default: lambda a: mul(a, call_source("tl.sigmoid")(a)),
    aten.gelu.default: gelu,
    aten.softplus.default: lambda a, beta=None, threshold=None: call_source("softplus")(
        a, beta or _ONE, threshold or literal_text(20.0)
    ),
    aten.maximum.default: _largest,
    aten.minimum.default: _smallest,
    aten.clamp.default: clamp_text,
    aten.clamp.Tensor: clamp_text,
    aten.clamp_min.default: _largest,
    aten.clamp_min.Tensor: _largest,
    aten.clamp_max.default: _smallest,
    aten.clamp_max.Tensor: _smallest,
    aten.where.self: chosen,
    aten.where.ScalarOther: chosen,
    aten.where.ScalarSelf: chosen,
    aten.where.Scalar: chosen,
    aten.masked_fill.Scalar: lambda a, mask, v: chosen(mask, v, a),
    aten.masked_fill.Tensor: lambda a, mask, v: chosen(mask, v, a),
    aten.sign.default: call_source("sign", keeps_zero=True),
    aten.sgn.default: call_source("sign", keeps_zero=True),
    aten.isnan.default: lambda a: comparison_text("!=")(a, a),
    aten.isinf.default: lambda a: comparison_text("==")(
        call_source("tl.abs")(a), literal_text(math.inf)
    ),
    aten.sinh.default: call_source("sinh", keeps_zero=True),
    aten.cosh.default: lambda a: mul(
        literal_text(0.5), add(call_source("tl.exp")(a), call_source("tl.exp")(negated(a)))
    ),
    aten.logical_not.default: lambda a: comparison_text("==")(a, literal_text(0)),
    aten.bitwise_not.default: lambda a: made(f"~{a.within(UNARY)}", UNARY, a),
    aten.special_ndtr.default: call_source("normal_share"),
    aten.xlogy.Tensor: call_source("xlogy"),
    aten.xlogy.Scalar_Other: call_source("xlogy"),
    aten.leaky_relu.default: lambda a, slope=None: chosen(
        comparison_text(">")(a, literal_text(0)), a, mul(a, slope or literal_text(0.01))
    ),
    aten.lerp.Scalar: lambda a, b, w: add(a, mul(w, sub(b, a))),
    aten.lerp.Tensor: lambda a, b, w: add(a, mul(w, sub(b, a))),
    aten.addcmul.default: lambda a, b, c, value=None: add(
        a, mul(b, c) if value is None else mul(mul(value, b), c)
    ),
    aten.addcdiv.default: lambda a, b, c, value=None: add(
        a, div(b, c) if value is None else div(mul(value, b), c)
    ),
}
for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    for _kind in ("Tensor", "Scalar"):
        TABLE[getattr(getattr(aten, _name), _kind)] = comparison_text(_sign)
for _names, _sign in ((("bitwise_and", "logical_and"), "&"), (("bitwise_or", "logical_or"), "|")):
    TABLE[getattr(aten, _names[0]).Tensor] = binary(_sign, BITS)
    TABLE[getattr(aten, _names[1]).default] = binary(_sign, BITS)


@dataclass(frozen=True, slots=True)
class Reduction:
    """How many numbers become one: of a vector, of two, and what none of them give."""

    along: str
    of_two: Callable[[KernelText, KernelText], KernelText]
    empty: str

    def empty_of(self, dtype: torch.dtype) -> str:
        """What none of the numbers of a dtype give."""
        if dtype.is_floating_point:
            return self.empty
        return {'-float("inf")': "-2**31", 'float("inf")': "2**31 - 1"}.get(self.empty, "0")

    def update(self, name: str, text: str) -> str:
        """The line that takes one more number into account."""
        if self is _SUM:
            return f"{name} += {text}"
        return f"{name} = {self.of_two(KernelText(name), KernelText(text)).text}"


_NO_NAN = {
    "max": Reduction("tl.max", pattern("tl.maximum({0}, {1})"), '-float("inf")'),
    "min": Reduction("tl.min", pattern("tl.minimum({0}, {1})"), 'float("inf")'),
}
_WITH_NAN = {
    "max": Reduction("max_or_nan", _largest, '-float("inf")'),
    "min": Reduction("min_or_nan", _smallest, 'float("inf")'),
}
_SUM = Reduction("tl.sum", add, "0.0")


def reduction_of(node: fx.Node, kind: str) -> Reduction:
    """The form of a reduction of a kind; a mean and a norm are sums, which are finished later.

    A largest number that only shifts exponentials need not see NaN, which these carry on.
    """
    has_nan = held_value(node).is_floating_point() and not node.meta.get("is_shift")
    return (_WITH_NAN if has_nan else _NO_NAN).get(kind, _SUM)


POWERS = (aten.pow.Tensor_Scalar,)
"""Ops with an exponent that is a number."""

HELPERS = {
    "max_or_nan": '''\
@triton.jit
def max_or_nan(x, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    """The largest of x along an axis, NaN where one of them is: `tl.max` leaves it out."""
    nan = tl.sum(tl.where(x == x, 0.0, x), axis, keep_dims=keep_dims)
    return tl.max(x, axis, keep_dims=keep_dims) + nan
''',
    "min_or_nan": '''\
@triton.jit
def min_or_nan(x, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    """The smallest of x along an axis, NaN where one of them is: `tl.min` leaves it out."""
    nan = tl.sum(tl.where(x == x, 0.0, x), axis, keep_dims=keep_dims)
    return tl.min(x, axis, keep_dims=keep_dims) + nan
''',
    "normal_share": '''\
@triton.jit
def normal_share(x):
    """The share of the normal distribution below x, to 2e-6 of itself: enough for half types."""
    t = 1 / (1 + 0.3 * tl.abs(x))
    tail = 0.153760563 + t * (-0.0340541596 + t * (0.230599904 + t * -0.0818416942))
    tail = tl.exp(x * x * -0.5) * t * (0.120328002 + t * (0.111207857 + t * tail))
    return tl.where(x < 0, tail, 1 - tail)
''',
    "tanh": '''\
@triton.jit
def tanh(x):
    """tanh, by its series near zero, where a quotient of exponentials loses digits."""
    square = x * x
    series = 2 / 15 + square * (-17 / 315 + square * 62 / 2835)
    series = x * (1 + square * (-1 / 3 + square * series))
    e = tl.exp(-2 * tl.abs(x))
    size = (1 - e) / (1 + e)
    return tl.where(square < 0.0625, series, tl.where(x < 0, -size, size))
''',
    "gelu": '''\
@triton.jit
def gelu(x):
    """x times the share of the normal distribution below x."""
    return 0.5 * x * (1 + tl.erf(0.7071067811865476 * x))
''',
    "gelu_tanh": '''\
@triton.jit
def gelu_tanh(x):
    """gelu, with the approximation by tanh written as a sigmoid."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
''',
    "log1p": '''\
@triton.jit
def log1p(x):
    """log(1 + x), with the digits that 1 + x loses put back."""
    one = 1 + x
    return tl.where(one == 1, x, tl.log(one) * (x / (one - 1)))
''',
    "expm1": '''\
@triton.jit
def expm1(x):
    """exp(x) - 1, by its series near zero."""
    series = x * (1 + x * (0.5 + x * (1 / 6 + x * (1 / 24 + x / 120))))
    return tl.where(tl.abs(x) < 0.05, series, tl.exp(x) - 1)
''',
    "sinh": '''\
@triton.jit
def sinh(x):
    """sinh, by its series near zero, where a difference of exponentials loses digits."""
    series = x * (1 + x * x * (1 / 6 + x * x / 120))
    return tl.where(tl.abs(x) < 0.1, series, 0.5 * (tl.exp(x) - tl.exp(-x)))
''',
    "softplus": '''\
@triton.jit
def softplus(x, beta, threshold):
    """log(1 + exp(beta x)) / beta, linear past the threshold."""
    scaled = beta * x
    one = 1 + tl.exp(-tl.abs(scaled))
    rest = tl.where(one == 1, tl.exp(-tl.abs(scaled)), tl.log(one))
    return tl.where(scaled > threshold, x, (tl.maximum(scaled, 0.0) + rest) / beta)
''',
    "power": '''\
@triton.jit
def power(x, exponent):
    """x to a power that is no whole number."""
    return tl.exp(exponent * tl.log(x))
''',
    "sign": '''\
@triton.jit
def sign(x):
    """-1, 0 or 1; 0 where x is NaN, as in PyTorch."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))
''',
    "xlogy": '''\
@triton.jit
def xlogy(x, y):
    """x log(y), which is zero where x is."""
    return tl.where(x == 0, tl.where(y != y, y, 0.0), x * tl.log(y))
''',
}
"""Functions that kernels call, by name."""


# ---- one node ----

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
"""The dtypes that a kernel can load and store."""


def computed_in(dtype: torch.dtype) -> str:
    """The Triton type in which numbers of a dtype are computed."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    return "tl.float32" if is_half else TYPES[dtype]


def is_cast(node: fx.Node) -> bool:
    """Whether a node gives the same numbers in another dtype."""
    return node.target in CASTS


def cast(node: fx.Node, a: KernelText) -> KernelText:
    """A cast: a change of the type that is computed in, or an explicit rounding."""
    before, after = held_value(node.args[0]).dtype, held_value(node).dtype
    if after.is_floating_point and before.is_floating_point:
        is_own = phase_of(node) == FORWARD and not node.meta.get("is_implicit")
        rounds = narrowed_to(node) and is_own  # what autograd rounds is kept in full
        text = a.within(ATOM)
        if rounds and after not in (torch.float32, torch.float64):
            text = f"{text}.to({TYPES[after]}).to(tl.float32)"
        elif computed_in(before) != computed_in(after):
            text = f"{text}.to({computed_in(after)})"
        else:
            return a
    elif computed_in(before) == computed_in(after):
        return a
    elif after is torch.bool:
        return comparison_text("!=")(a, literal_text(0))
    else:
        text = f"{a.within(ATOM)}.to({computed_in(after)})"
    return made(text, ATOM, a, is_zero=a.is_zero)
