"""What a plan depends on: the source of its program, the calls it makes, and its arguments."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.seeds import uniform_like
from pullback.capture.units import Program
from pullback.capture.watch import FUNCTION
from pullback.errors import PlanFileError

# ---- the program ----


def fingerprint_of(program: Any, units: Program | None) -> str:
    """A hash of the source of a program, and of the calls that it makes.

    Comments, blank lines and the sizes of its arguments do not count.
    """
    parts = [_text(program), *_calls(units)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _calls(units: Program | None) -> Iterator[str]:
    for unit in units.units if units else ():
        yield repr((unit.name, unit.kind, unit.inputs, unit.outputs, unit.changed))
        if unit.kind == FUNCTION:
            yield _text(unit.target)


def _text(thing: Any) -> str:
    """The source of a function or class; its name and bytecode, where there is no source."""
    written = inspect.unwrap(getattr(thing, "__func__", thing))
    try:
        text = textwrap.dedent(inspect.getsource(written))
    except (OSError, TypeError):
        code = getattr(written, "__code__", None)
        return f"{getattr(written, '__qualname__', type(written).__qualname__)} {_code(code)}"
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:  # a lambda inside a longer statement
        return text


def _code(code: Any) -> str:
    if code is None:
        return ""
    plain = [repr(c) for c in code.co_consts if not inspect.iscode(c)]
    return repr((code.co_code.hex(), plain, code.co_names))


# ---- its arguments ----


def arguments_signature(args: Sequence[Any]) -> Any:
    """Arguments as JSON: kinds and sizes of tensors, plain values as they are, others by type."""
    return [_written(arg) for arg in args]


def _written(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {
            "tensor": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "device": value.device.type,
            "requires_grad": value.requires_grad,
        }
    if value is None or type(value) in (bool, int, str):
        return {"plain": value}
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_written(item) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _written(item) for key, item in value.items()}}
    return {"other": type(value).__name__}


def redrawn_arguments(signature: Any) -> tuple[Any, ...]:
    """Arguments of the same kinds and sizes as those of a signature, with other numbers."""
    return tuple(_read(entry) for entry in signature)


def _read(entry: Any) -> Any:
    ((kind, value),) = ((k, v) for k, v in entry.items() if k in _READERS)
    return _READERS[kind](value, entry)


def _tensor(dtype: str, entry: Any) -> Tensor:
    kind, shape = getattr(torch, dtype), entry["shape"]
    device = entry["device"]
    if device == "cuda" and not torch.cuda.is_available():
        raise PlanFileError(
            "a plan must be loaded where its device is",
            expected=f"a device of type {device}",
            got="none",
        )
    if not (kind.is_floating_point or kind.is_complex):
        return torch.zeros(shape, dtype=kind, device=device)
    drawn = uniform_like(torch.empty(shape, dtype=kind, device=device), 0, 0.0, 1.0)
    return drawn.requires_grad_(entry["requires_grad"])


def _other(name: str, entry: Any) -> Any:
    raise PlanFileError(
        "a plan must be loaded with examples where an argument cannot be written down",
        got=f"a {name} among the arguments",
        fix="pb.load_plan(path, program, *examples)",
    )


_READERS: dict[str, Any] = {
    "tensor": _tensor,
    "plain": lambda value, entry: value,
    "float": lambda value, entry: float(value),
    "list": lambda value, entry: [_read(item) for item in value],
    "tuple": lambda value, entry: tuple(_read(item) for item in value),
    "dict": lambda value, entry: {key: _read(item) for key, item in value.items()},
    "other": _other,
}
