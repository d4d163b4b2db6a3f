"""Inputs for a function that came without: guessed from its type hints, by a rule of one screen.

A parameter gets, by its hint:

    Tensor                  float32 numbers of shape [3, 4], then of the shapes below
    list or tuple of those  two of them
    Optional[...]           None, unless it is an Optional[Tensor] and None is refused
    bool, int, float, str   the default, else True, 2, 0.5, ""
    no hint                 the default, else as Tensor; as 0.5 where no shape is accepted. What
                            forward keeps as `ctx.k = k`, and backward returns None for, is a
                            plain value: 0.5, else 1, else as the others

The first arguments that forward and backward accept are taken, else the first that forward does;
but none where a plain value is without a hint and a default: backward may want another.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pullback.check.target.target import Target
from pullback.function.slots import op_schema
from pullback.judge.example import example_of
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Run, cotangents_of, run

# All tensors of one shape, then the shapes of products, of rows, of images with kernels.
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((3, 4),),
    ((3, 4), (4, 5)),
    ((4,),),
    ((2, 3, 4),),
    ((3, 4), (5, 4), (5,)),
    ((3, 4), (4,)),
    ((2, 3, 4), (2, 4, 5)),
    ((4, 4),),
    ((2, 3, 8, 8),),
    ((2, 3, 8, 8), (4, 3, 3, 3), (4,)),
    ((),),
)
PLAIN = (0.5, 1)
NUMBERS: dict[Any, Any] = {bool: True, int: 2, float: 0.5, str: "", complex: 0.5 + 0.5j}
UNKNOWN = inspect.Parameter.empty
AS_PLAIN = object()  # no hint, and a plain value by the look of it


def guessed(target: Target) -> tuple[Any, ...] | None:
    """The best arguments, made from the hints, that `target` accepts; None where there are none."""
    number = number_of_guess(target)
    return None if number is None else guess(target, number)


def guess(target: Target, number: int) -> tuple[Any, ...]:
    """The arguments with this number among those that are tried."""
    return next(islice(_candidates(_parameters(target)), number, None))


def number_of_guess(target: Target) -> int | None:
    """The number of the best arguments among those that are tried: it runs the target on each."""
    first = None
    parameters = _parameters(target)
    is_open = any(hint is AS_PLAIN and default is UNKNOWN for hint, default in parameters)
    for number, args in enumerate(_candidates(parameters)):
        called = _called(target, args)
        if called is None:
            continue
        try:
            called.pull(cotangents_of(called.outputs, 0))
        except BackwardFailedError:
            first = number if first is None and not is_open else first
            continue
        return number
    return first


def refusal_of(target: Target) -> str:
    """What is said of the first arguments that are tried; empty where they are taken."""
    if not _parameters(target):
        return "its signature names no argument"
    try:
        example = example_of(guess(target, 0))
        called = run(target.call, example, target.names_of(len(example.args)))
        called.pull(cotangents_of(called.outputs, 0))
    except ForwardRefusedError as refusal:
        return str(refusal)
    except BackwardFailedError as failure:
        return f"backward raised {failure}"
    return ""


def _parameters(target: Target) -> list[tuple[Any, Any]]:
    """The hint and the default of each positional parameter."""
    forward = target.function.forward if target.is_function else target.thing
    forward = forward.forward if isinstance(forward, torch.nn.Module) else forward
    schema = op_schema(getattr(forward, "_opoverload", forward))
    packet = getattr(forward, "default", None)
    schema = schema or op_schema(packet)
    if schema is not None and not isinstance(schema, str):
        given = [a for a in schema.arguments if not a.kwarg_only]
        return [
            (_of_schema(a.type), a.default_value if a.has_default_value() else UNKNOWN)
            for a in given
        ]
    try:
        found = list(inspect.signature(forward).parameters.values())
        hints = _hints(forward)
    except (TypeError, ValueError):
        return []
    skipped = 1 if target.is_function and not target.has_setup_context else 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [p for p in found[skipped:] if p.kind in kinds]
    plain = _plain_values(target) if target.is_function else set()
    return [
        (hints.get(p.name, AS_PLAIN if p.name in plain else UNKNOWN), p.default) for p in wanted
    ]


def _plain_values(target: Target) -> set[str]:
    """The parameters that forward keeps on its context, and that backward returns None for."""
    forward, backward = (_tree_of(target.method(name)) for name in ("forward", "backward"))
    if forward is None or backward is None or target.has_setup_context:
        return set()
    context, *names = [one.arg for one in forward.args.args]
    kept = {
        node.value.id
        for node in ast.walk(forward)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        if any(
            isinstance(one, ast.Attribute) and _is_name(one.value, context) for one in node.targets
        )
    }
    returned = [node.value for node in ast.walk(backward) if isinstance(node, ast.Return)]
    return {
        name
        for place, name in enumerate(names)
        if name in kept and returned and all(_is_none_at(value, place) for value in returned)
    }


def _tree_of(method: Any) -> ast.FunctionDef | None:
    """A method as it is written; None where its text is not at hand."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, TypeError, SyntaxError):
        return None
    return next((one for one in body if isinstance(one, ast.FunctionDef) and one.args.args), None)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_none_at(returned: ast.expr | None, place: int) -> bool:
    """Whether a `return` has the word None at a place of its tuple."""
    if not isinstance(returned, ast.Tuple) or place >= len(returned.elts):
        return False
    one = returned.elts[place]
    return isinstance(one, ast.Constant) and one.value is None


def _hints(forward: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(forward)
    except Exception:  # a hint that names what is not there at run time
        return {}


def _of_schema(kind: Any) -> Any:
    """The hint that a type of an op's schema stands for."""
    text = str(kind)
    named: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "number": float}
    named |= {"SymInt": int, "Tensor": Tensor, "Optional[Tensor]": Tensor | None}
    if text.startswith("List["):
        return list[_of_schema(text[5:-1])]  # type: ignore[misc]
    return named.get(text, type(None) if text.startswith("Optional[") else UNKNOWN)


def _candidates(parameters: list[tuple[Any, Any]]) -> Iterator[tuple[Any, ...]]:
    if not parameters:
        return
    if any(hint is AS_PLAIN for hint, _ in parameters):
        for plain in PLAIN:
            as_plain = [
                (hint, _plain_default(hint, default, plain)) for hint, default in parameters
            ]
            for shapes in SHAPES:
                yield _made(as_plain, shapes, with_optional=False, as_number=False)
        parameters = [(UNKNOWN if h is AS_PLAIN else h, default) for h, default in parameters]
    for with_optional in (False, True):
        for shapes in SHAPES:
            yield _made(parameters, shapes, with_optional=with_optional, as_number=False)
        if not any(_has_choice(hint) for hint, _ in parameters):
            break
    if sum(hint is UNKNOWN and default is UNKNOWN for hint, default in parameters) > 1:
        for shapes in SHAPES:
            yield _made(parameters, shapes, with_optional=False, as_number=True)


def _plain_default(hint: Any, default: Any, plain: Any) -> Any:
    return plain if hint is AS_PLAIN and default is UNKNOWN else default


def _made(
    parameters: list[tuple[Any, Any]],
    shapes: tuple[tuple[int, ...], ...],
    *,
    with_optional: bool,
    as_number: bool,
) -> tuple[Any, ...]:
    """One candidate: tensors in the order of `shapes`, whose last one is for all that follow."""
    count = 0

    def tensor() -> Tensor:
        nonlocal count
        shape = shapes[min(count, len(shapes) - 1)]
        generator = torch.Generator().manual_seed(count)
        count += 1
        return torch.randn(shape, generator=generator).requires_grad_()

    def value(hint: Any, default: Any) -> Any:
        if _has_choice(hint) and with_optional:
            return tensor()
        if default is not UNKNOWN and (default is not None or hint is not Tensor):
            return default
        if hint is UNKNOWN:
            return 0.5 if as_number and count else tensor()
        if hint is Tensor or hint is torch.nn.Parameter:
            return tensor()
        if typing.get_origin(hint) in (list, tuple):
            inner = [a for a in typing.get_args(hint) if a is not Ellipsis] or [UNKNOWN]
            items = [value(a, UNKNOWN) for a in (inner * 2)[:2]]
            return items if typing.get_origin(hint) is list else tuple(items)
        return NUMBERS.get(hint)

    return tuple(value(hint, default) for hint, default in parameters)


def _has_choice(hint: Any) -> bool:
    """Whether a hint is `Optional[Tensor]`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return is_union and Tensor in typing.get_args(hint) and type(None) in typing.get_args(hint)


def _called(target: Target, args: tuple[Any, ...]) -> Run | None:
    """The call with `args`; None where it is refused, or no gradient flows through it."""
    example = example_of(args)
    for through_clone in (False, True):
        try:
            names = target.names_of(len(args))
            called = run(target.call, example, names, through_clone=through_clone)
        except ForwardRefusedError:
            continue
        return called if called.live else None
    return None
