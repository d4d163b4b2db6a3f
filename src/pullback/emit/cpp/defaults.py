"""Parameters that the examples leave at their defaults: they are arguments of an emitted op, too.

A capture of `f(x)` is one of `f(x, 1e-5)`, where 1e-5 is the default: the arguments that were left
out are put behind those of the examples. Where the program is called, they are left out again:
a backward may return a gradient for each argument that was given, and for no more.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pullback.capture.trees import flatten, tensor_leaves
from pullback.emit.subject import EmitSubject, subject_of
from pullback.function.plain import forward_of

KEYWORD = inspect.Parameter.KEYWORD_ONLY
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
EMPTY = inspect.Parameter.empty


def parameters_of(subject: EmitSubject) -> list[inspect.Parameter | None]:
    """For each argument of the capture its parameter; None where it has no name of its own."""
    count = len(subject.arguments) - len(subject.left)
    named: list[inspect.Parameter | None] = list(_positional(_signature(subject)))
    return [*(named + [None] * count)[:count], *subject.left]


def with_defaults(subject: EmitSubject) -> EmitSubject:
    """`subject` with the arguments that its examples leave at their defaults."""
    signature, captured = _signature(subject), subject.captured
    left = [p for p in _positional(signature)[len(subject.arguments) :] if p.default is not EMPTY]
    if subject.function is None:
        left += [p for p in signature if p.kind is KEYWORD and p.default is not EMPTY]
    left = list(itertools.takewhile(lambda p: not tensor_leaves(p.default), left))
    if subject.left or not left:
        return subject
    leaves, spec = flatten((*subject.arguments, *(p.default for p in left)))
    whole = replace(captured, leaves=tuple(leaves), in_spec=spec)
    return replace(subject, captured=whole, left=tuple(left))


def captured_with(subject: EmitSubject, arguments: tuple[Any, ...]) -> EmitSubject | None:
    """The same program captured with other arguments; None where it cannot be."""
    given, keywords = subject.given(arguments)
    thing = subject.function if subject.function is not None else subject.program
    try:
        made = subject_of(functools.partial(thing, **keywords) if keywords else thing, given)
        return with_defaults(replace(made, save=subject.save))
    except Exception:  # whatever it is: the program does not do with these
        return None


def _signature(subject: EmitSubject) -> list[inspect.Parameter]:
    program = subject.program
    if subject.function is not None:
        program = forward_of(subject.function)
    try:
        return list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):
        return []


def _positional(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters that are named one by one, as far as they are given by position."""
    return list(itertools.takewhile(lambda parameter: parameter.kind in POSITIONAL, parameters))
