"""What the installed torch offers to C++: the functions and methods of each op, by its headers.

Every op has a struct `at::_ops::<op>` with a static `call` that takes all arguments. Most have a
function `at::<name>` or a method of `at::Tensor` besides, which read better. All of them are
declared in `ATen/ops` and `ATen/core/TensorBody.h`, and each names the struct that it calls.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from pullback.run.disk.toolchain import include_folder

_STRUCT = re.compile(r"struct TORCH_API (\w+) \{\s*using schema = (.*?);", re.DOTALL)
_FUNCTION = re.compile(
    r"^inline (?P<gives>[^\n]*?) (?P<name>\w+)\((?P<takes>[^\n]*)\) \{\n"
    r"\s*return at::_ops::(?P<op>\w+)::call\((?P<gets>[^\n]*)\);",
    re.MULTILINE,
)
_METHOD = re.compile(
    r"^inline (?P<gives>[^\n]*?) Tensor::(?P<name>\w+)\((?P<takes>[^\n]*)\) const \{\n"
    r"\s*return at::_ops::(?P<op>\w+)::call\((?P<gets>[^\n]*)\);",
    re.MULTILINE,
)
_THIS = "const_cast<Tensor&>(*this)"


@dataclass(frozen=True, slots=True)
class Callee:
    """Something to call from C++: the types of what it takes, in the order of the op's schema.

    `needless` says from which place on arguments may be left out if they have their defaults.
    """

    name: str
    gives: str
    takes: tuple[str, ...]
    needless: int


@dataclass(frozen=True, slots=True)
class CallForms:
    """All forms of a call of one op: by its struct, as a method, as a function."""

    struct: Callee
    method: Callee | None
    function: Callee | None


def call_forms(base: str, overload: str) -> CallForms | None:
    """The forms of a call of `aten::base.overload`, or None where the headers do not know it."""
    op = f"{base}_{overload}" if overload else base
    schema = _structs(base).get(op)
    if schema is None:
        return None
    gives, takes = schema
    struct = Callee(f"at::_ops::{op}::call", gives, takes, len(takes))
    return CallForms(struct, _preferred(_methods().get(op)), _preferred(_functions(base).get(op)))


def rivals(callee: Callee, base: str, *, is_method: bool) -> list[tuple[str, ...]]:
    """What the other functions or methods of the same name take."""
    known = (
        each for row in (_methods() if is_method else _functions(base)).values() for each in row
    )
    same = [each.takes for each in known if each.name == callee.name and each != callee]
    return [takes[1:] for takes in same] if is_method else same


# ---- reading ----


def split_types(text: str) -> list[str]:
    """The parts of a list in C++ or in a schema: commas inside of brackets are no ends."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found if part.strip()]


def _text(path: str) -> str:
    file = include_folder() / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@functools.cache
def _structs(base: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for op, schema in _STRUCT.findall(_text(f"ATen/ops/{base}_ops.h")):
        gives, _, takes = schema.partition(" (")
        found[op] = plain_type(gives), tuple(map(plain_type, split_types(takes.removesuffix(")"))))
    return found


@functools.cache
def _functions(base: str) -> dict[str, list[Callee]]:
    return _read(_FUNCTION, _text(f"ATen/ops/{base}.h"), is_method=False)


@functools.cache
def _methods() -> dict[str, list[Callee]]:
    text = _text("ATen/core/TensorBody.h")
    return _read(_METHOD, text, is_method=True, defaults=_declared_defaults(text))


def _preferred(forms: list[Callee] | None) -> Callee | None:
    """The form for symbolic sizes where there are two."""
    symbolic = [form for form in forms or () if form.name.endswith("_symint")]
    return next(iter((*symbolic[-1:], *(forms or ()))), None)


def _read(
    pattern: re.Pattern[str],
    text: str,
    *,
    is_method: bool,
    defaults: dict[tuple[str, str], int] | None = None,
) -> dict[str, list[Callee]]:
    """Those that hand on their arguments as they are, by op; of one name, the first."""
    found: dict[str, list[Callee]] = {}
    for match in pattern.finditer(text):
        written = split_types(match["takes"])
        parameters = [_parameter(each) for each in written]
        passed = split_types(match["gets"])
        names = [name for _, name, _ in parameters]
        if passed != ([_THIS, *names] if is_method else names):
            continue
        takes = [kind for kind, _, _ in parameters]
        needless = next((i for i, each in enumerate(parameters) if each[2]), len(parameters))
        if defaults is not None:
            needless = defaults.get((match["name"], ", ".join(takes)), len(parameters))
        if is_method:
            takes, needless = ["at::Tensor", *takes], needless + 1
        callee = Callee(match["name"], plain_type(match["gives"]), tuple(takes), needless)
        forms = found.setdefault(match["op"], [])
        forms += [] if any(form.name == callee.name for form in forms) else [callee]
    return found


_DECLARED = re.compile(r"^  [\w:<>, &]+? (?P<name>\w+)\((?P<takes>[^\n]*)\) const;", re.MULTILINE)


def _declared_defaults(text: str) -> dict[tuple[str, str], int]:
    """From which place on the methods have defaults, by name and types: the class declares them."""
    found = {}
    for match in _DECLARED.finditer(text):
        parameters = [_parameter(each) for each in split_types(match["takes"])]
        needless = next((i for i, each in enumerate(parameters) if each[2]), len(parameters))
        found[match["name"], ", ".join(kind for kind, _, _ in parameters)] = needless
    return found


def _parameter(text: str) -> tuple[str, str, bool]:
    """The plain type of a parameter, its name, and whether it has a default."""
    declared, equals, _ = text.partition("=")
    kind, _, name = declared.strip().rpartition(" ")
    return plain_type(kind), name.lstrip("&"), bool(equals)


def plain_type(text: str) -> str:
    """A type without what does not change how a value for it is written."""
    text = text.replace("::std::", "std::").replace("const ", "").replace(" &", "").strip()
    return text.replace("::std", "std") if text.startswith("::") else text
