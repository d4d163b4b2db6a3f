"""The user's own names: of a program, of its arguments, and of tensors from outside it.

And the name of the Function that is made of a program: that of its class, its node and its op. It
is the user's name for the program: `LayerNorm` for `layer_norm`. A lambda has none: it is called
after the variable that it is assigned to, else after its line. Two lambdas have two names.
"""

from __future__ import annotations

import ast
import functools
import inspect
import keyword
import linecache
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function as TorchFunction

from pullback.capture.found import names_in
from pullback.capture.trees import paths_of
from pullback.errors import FunctionNameError
from pullback.function.signature import forward_signature, source_place

# How far into containers, objects and helper functions names are looked for, and how long.
_DEPTH, _LIMIT = 3, 10_000


def program_name(program: Any) -> str:
    """What the user calls `program`: `Square.apply`, `loss`, `MyModule`."""
    cls = function_class(program)
    if cls is not None:
        return f"{cls.__name__}.apply"
    inner = getattr(program, "func", program)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def program_place(program: Any) -> str:
    """Where `program` was written, or ""."""
    cls: Any = function_class(program)
    if cls is not None:
        return source_place(cls.forward)
    inner = getattr(program, "func", program)
    return source_place(inner.forward if isinstance(inner, nn.Module) else inner)


def late_bound(program: Any) -> Any:
    """`program`; where it is the `apply` of a Function, one that looks `apply` up when it runs.

    From torch 2.15 on, a reference to `apply` from before cannot be seen to be called.
    """
    if isinstance(program, functools.partial):
        return functools.partial(late_bound(program.func), *program.args, **program.keywords)
    cls: Any = function_class(program)
    return program if cls is None else lambda *args, **kwargs: cls.apply(*args, **kwargs)


def function_class(program: Any) -> type | None:
    """The Function class whose `apply` `program` is, or None."""
    owner = getattr(program, "__self__", None)
    is_apply = getattr(program, "__name__", "") == "apply"
    if is_apply and isinstance(owner, type) and issubclass(owner, TorchFunction):
        return owner
    return None


def argument_names(program: Any, examples: Sequence[Any]) -> list[str]:
    """The user's name of each leaf of the arguments: `x`, `xs[0]`, `params['w']`."""
    names = parameter_names(program, len(examples))
    return [
        f"{name}{path}"
        for name, example in zip(names, examples, strict=True)
        for path in paths_of(example)
    ]


def parameter_names(program: Any, count: int) -> list[str]:
    """The user's name of each of the first `count` positional arguments."""
    cls = function_class(program)
    if cls is not None:
        signature = forward_signature(cls)
        return [signature.name(i) for i in range(count)]
    call = program.forward if isinstance(program, nn.Module) else program
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return [f"arg{i}" for i in range(count)]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return (names + [f"arg{i}" for i in range(len(names), count)])[:count]


def closure_names(program: Any) -> dict[int, str]:
    """How `program` refers to the tensors that are not among its arguments, by their `id`."""
    names: dict[int, str] = {}
    for name, value in islice(_visible(program, _DEPTH), _LIMIT):
        if isinstance(value, Tensor):
            names.setdefault(id(value), name)
    return names


def identifier(name: str) -> str:
    """`name` as one that Python accepts: `xs[0]` becomes `xs_0`.

    >>> identifier("self.params['w']"), identifier("lambda")
    ('self_params_w', 'lambda_')
    """
    plain = re.sub(r"\W+", "_", name).strip("_") or "value"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    return f"{plain}_" if keyword.iskeyword(plain) else plain


# ---- what a function can see from outside ----


def _visible(program: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Names and values that `program` sees, itself a function, method, module or partial."""
    if isinstance(program, nn.Module):
        yield from _inside("self", program, depth)
        return
    owner = getattr(program, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        yield from _inside("self", owner, depth)
    function = inspect.unwrap(getattr(program, "__func__", getattr(program, "func", program)))
    if not isinstance(function, FunctionType):
        return
    for name, value in _variables(function):
        yield from _inside(name, value, depth)


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables from the enclosing scopes that `function` mentions, and their values."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _inside(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """`value` under its name, and what can be reached through it."""
    yield name, value
    if depth == 0 or isinstance(value, (Tensor, ModuleType, type)):
        return
    for path, inner in _members(value):
        yield from _inside(f"{name}{path}", inner, depth - 1)
    if isinstance(value, FunctionType) or inspect.ismethod(value):
        yield from _visible(value, depth - 1)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        named = [*value.named_parameters(), *value.named_buffers()]
        yield from ((f".{name}", tensor) for name, tensor in named)
    if isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value[:100]))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items())[:100])
    elif not isinstance(value, FunctionType):
        attributes = getattr(value, "__dict__", {})
        yield from ((f".{key}", item) for key, item in list(attributes.items())[:100])


# ---- the class that is made of a program ----


def class_name(program: Any, name: str | None = None) -> str:
    """The name of the class for a program; `name` is the user's wish.

    >>> class_name(len), class_name(len, "row_count")
    ('Len', 'RowCount')
    """
    if name is not None:
        _require_name(name)
        return _capitalised(name)
    cls = function_class(program)
    if cls is not None:
        return cls.__name__
    while isinstance(program, functools.partial):
        program = program.func
    found = getattr(program, "__name__", type(program).__name__)
    if found == "<lambda>":
        return _lambda_name(program.__code__)
    return _capitalised(found if found.isidentifier() else "derived")


def _capitalised(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] or "_" for part in name.split("_"))


def _require_name(name: Any) -> None:
    """Raise unless `name` can name a class in Python, a function in C++ and an op."""
    is_name = isinstance(name, str) and name.isascii() and name.isidentifier()
    if is_name and not keyword.iskeyword(name) and name.strip("_"):
        return
    raise FunctionNameError(
        "`name` must be a name that a Python function could have",
        expected='letters, digits and underscores, such as "gate"',
        got=repr(name),
    )


# ---- lambdas ----

_numbers: dict[tuple[str, int], list[CodeType]] = {}
_lock = threading.Lock()


def _lambda_name(code: CodeType) -> str:
    """What a lambda is called: `Gate` in `gate = lambda ...`, else `Lambda12` on line 12.

    Further ones on the same line have a number, in the order in which they are asked for.
    """
    with _lock:  # Python 3.11 cannot parse in two threads at once (gh-106905)
        names = list(_assigned(code))
        base = _capitalised(names[0]) if len(names) == 1 else f"Lambda{code.co_firstlineno}"
        known = _numbers.setdefault((code.co_filename, code.co_firstlineno), [])
        if code not in known:
            known.append(code)
        number = known.index(code) + 1
    return base if number == 1 else f"{base}n{number}"


def _assigned(code: CodeType) -> Iterator[str]:
    """The variables that lambdas on the line of `code` are assigned to, themselves or in a call.

    Where that is unclear there are none, or several.
    """
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # not the text that the code came from
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        if not node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        called = value.args[:1] if isinstance(value, ast.Call) else [value]
        lambdas = [one for one in ast.walk(node) if isinstance(one, ast.Lambda)]
        is_it = called == lambdas != [] and lambdas[0].lineno == code.co_firstlineno
        if is_it and len(targets) == 1 and isinstance(targets[0], ast.Name):
            yield targets[0].id
