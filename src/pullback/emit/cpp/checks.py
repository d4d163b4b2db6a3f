"""The checks of inputs at the start of an emitted op: what its graphs assume of them.

Dtypes, numbers of dimensions, sizes that are fixed or tied to each other, and whatever the user's
own code decided by sizes. Each check raises an error that says what it wants.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch import Tensor

from pullback.capture.decided import decided
from pullback.emit.cpp.reach import FLOATS, Reach
from pullback.emit.cpp.values import DTYPES, no_cpp_form, quoted
from pullback.emit.subject import EmitSubject
from pullback.graph.cost import expression_of


def checks_of(
    subject: EmitSubject, reach: Reach, names: Sequence[str], helpers: set[str]
) -> Iterator[str]:
    """The lines that check the inputs of a subject, whose names are `names`.

    The functions of the file's own that they need are added to `helpers`.
    """
    op = subject.name
    values = [node.meta["val"] for node in subject.captured.joint.inputs]
    given = [
        (name, value)
        for name, value, one in zip(names, values, subject.captured.inputs, strict=True)
        if one.kind != "constant"
    ]
    yield from _dtypes(op, reach, given)
    for name, one in zip(names, subject.captured.inputs, strict=True):
        if one.offset is not None:
            yield _check(
                f"{name}.storage_offset() == 0",
                f"{op}: {name} must begin where its memory does, got an offset of ",
                f"{name}.storage_offset()",
            )
    if reach.rank is not None:
        yield from _same_shapes(op, reach.rank, [name for name, _ in given])
        return
    for name, value in given:
        yield _check(
            f"{name}.dim() == {value.dim()}",
            f"{op}: {name} must have {_count(value.dim(), 'dimension')}, got ",
            f"{name}.dim()",
        )
    sizes = _Sizes(op, reach, helpers)
    for name, value in given:
        for dim, size in enumerate(value.shape):
            yield from sizes.check(name, dim, size)
    for condition in decided(subject.captured):
        text = sizes.condition(condition)
        yield _check(text, f"{op}: emitted for sizes with {text.replace('.sym_size(', '.size(')}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _check(condition: str, said: str, *rest: str) -> str:
    return f"TORCH_CHECK({', '.join([condition, quoted(said), *rest])});"


def _same_shapes(op: str, rank: int, names: Sequence[str]) -> Iterator[str]:
    """The checks of inputs that are all of one shape, whichever it is."""
    if rank > 0:
        said = f"{op}: {names[0]} must have at least {_count(rank, 'dimension')}, got "
        yield _check(f"{names[0]}.dim() >= {rank}", said, f"{names[0]}.dim()")
    for name in names[1:]:
        said = f"{op}: {name} must have the shape of {names[0]}"
        yield _check(f"{name}.sym_sizes() == {names[0]}.sym_sizes()", said)


def _dtypes(op: str, reach: Reach, given: Sequence[tuple[str, Tensor]]) -> Iterator[str]:
    smooth = [name for name, value in given if value.is_floating_point()]
    for name, value in given:
        if reach.dtypes and name in smooth:
            continue
        if value.dtype not in DTYPES:
            raise no_cpp_form("an input of this dtype", f"`{name}`: {value.dtype}")
        wanted = str(value.dtype).removeprefix("torch.")
        yield _check(
            f"{name}.scalar_type() == {DTYPES[value.dtype]}",
            f"{op}: {name} must be {wanted}, got ",
            f"{name}.scalar_type()",
        )
    if not reach.dtypes or not smooth:
        return
    first = smooth[0]
    if len(reach.dtypes) == len(FLOATS):
        said = f"{op}: {first} must be of a floating-point dtype, got "
        yield _check(f"{first}.is_floating_point()", said, f"{first}.scalar_type()")
    else:
        yield from _listed(op, reach, first)
    for name in smooth[1:]:
        yield _check(
            f"{name}.scalar_type() == {first}.scalar_type()",
            f"{op}: {name} must have the dtype of {first}",
        )


def _listed(op: str, reach: Reach, first: str) -> Iterator[str]:
    allowed = " || ".join(f"{first}.scalar_type() == {DTYPES[d]}" for d in reach.dtypes)
    words = [str(dtype).removeprefix("torch.") for dtype in reach.dtypes]
    said = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    yield _check(allowed, f"{op}: {first} must be {said}, got ", f"{first}.scalar_type()")


class _Sizes:
    """The sizes that were seen, by the expression that they are known as."""

    def __init__(self, op: str, reach: Reach, helpers: set[str]) -> None:
        self.op = op
        self.reach = reach
        self.known: dict[Any, str] = {}
        self.words: dict[Any, str] = {}
        self.helpers = helpers

    def check(self, name: str, dim: int, size: Any) -> Iterator[str]:
        """The checks of one size of one input."""
        text, words = f"{name}.sym_size({dim})", f"size {dim} of {name}"
        expression = sympy.sympify(expression_of(size))
        if expression in self.known:
            yield _check(
                f"{text} == {self.known[expression]}",
                f"{self.op}: {words} must be that of {self.words[expression]}",
            )
        elif expression.is_Symbol:
            self.known[expression], self.words[expression] = text, words
            least = self.reach.least.get(str(expression), 2)
            if least > 0:
                said = f"{self.op}: {words} must be at least {least}, got "
                yield _check(f"{text} >= {least}", said, text)
        else:
            said = f"{self.op}: {words} must be {self.say(expression)}, got "
            yield _check(f"{text} == {self.write(expression)}", said, text)

    def write(self, expression: Any) -> str:
        """An expression of sizes in C++."""
        if expression in self.known:
            return self.known[expression]
        if expression.is_Integer:
            return str(expression)
        name = type(expression).__name__
        parts = [self.write(part) for part in _ordered(expression)]
        if name in ("Add", "Mul"):
            return f"({(' + ' if name == 'Add' else ' * ').join(parts)})"
        if name in _HELPERS:
            self.helpers.add(_HELPERS[name])
            return f"{_HELPERS[name]}({', '.join(map(self.write, expression.args))})"
        if name in ("Max", "Min"):
            return functools.reduce(lambda a, b: f"c10::SymInt({a}).{name.lower()}({b})", parts)
        if name == "Pow" and expression.args[1].is_Integer and expression.args[1] > 0:
            return f"({' * '.join([self.write(expression.args[0])] * int(expression.args[1]))})"
        raise no_cpp_form("a size that is tied to others in this way", f"`{expression}`")

    def say(self, expression: Any) -> str:
        """An expression of sizes for a message."""
        return str(expression) if expression.is_Integer else f"as in the examples, {expression}"

    def condition(self, condition: Any) -> str:
        """A decision on sizes in C++."""
        if isinstance(condition, sympy.And | sympy.Or):
            sign = " && " if isinstance(condition, sympy.And) else " || "
            return f"({sign.join(self.condition(part) for part in _ordered(condition))})"
        if isinstance(condition, sympy.Rel):
            left, right = (self.write(part) for part in condition.args)
            right = f"c10::SymInt({right})" if left.isdigit() else right
            return f"{left} {condition.rel_op} {right}"
        raise no_cpp_form("a decision on sizes of this kind", f"`{condition}`")


_HELPERS = {"FloorDiv": "floor_div", "CleanDiv": "floor_div", "Mod": "floor_mod"}
_HELPERS |= {"PythonMod": "floor_mod"}


def _ordered(expression: Any) -> list[Any]:
    return sorted(expression.args, key=str)
