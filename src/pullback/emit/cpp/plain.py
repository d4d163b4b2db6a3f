"""Plain arguments of an emitted op: numbers, bools, strings, and lists of numbers.

A graph holds them as they were in the examples. A number that only goes into ops, as it is or by a
formula, is free: it becomes a number of each call. That is known if the program, run with a watched
number, does nothing else with it, and if captures with other values differ in those numbers alone,
each time by the same formula. All else is fixed: the op takes it, and refuses any other value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.capture.decided import decided
from pullback.capture.joint import CaptureInput
from pullback.capture.trees import flatten
from pullback.derive.recipe import Parts
from pullback.emit.cpp.alike import Place, number_at, numbers_apart, put_number
from pullback.emit.cpp.body import cpp_identifier
from pullback.emit.cpp.defaults import KEYWORD, captured_with, parameters_of
from pullback.emit.cpp.plain_text import KINDS, LISTS, SCHEMA_DTYPES, Plain, PlainArgument
from pullback.emit.cpp.reach import runs_alike
from pullback.emit.cpp.values import named_number
from pullback.emit.cpp.watched import Listening, Notes, Watched, value_at
from pullback.emit.subject import EmitSubject

UNNAMED = (bool, int, float, complex, str)


def plain_row(subject: EmitSubject, parts: Parts, absent: frozenset[str] = frozenset()) -> Plain:
    """The arguments of `subject`; in the graphs `parts`, free ones take the place of numbers.

    `absent` are the optional tensors that are not there, which are no arguments.
    """
    row, unnamed = _row(subject, absent)
    plain = [one for one in row if isinstance(one, PlainArgument) and not one.is_infinite]
    numbers = [one for one in plain if type(one.value) in (int, float)]
    notes = Notes()
    free: set[str] = set()
    if numbers and _is_watched(subject, numbers, notes):
        free = _opened(subject, parts, numbers, notes)
    # Where an argument is fixed, a condition on it holds.
    conditions = [text for text, names in notes.conditions.items() if names & free]
    made = [
        replace(one, is_free=one.name in free) if isinstance(one, PlainArgument) else one
        for one in row
    ]
    return Plain(tuple(made), tuple(conditions), tuple(unnamed))


# ---- which arguments there are ----


def _row(
    subject: EmitSubject, absent: frozenset[str]
) -> tuple[list[CaptureInput | PlainArgument], list[Any]]:
    """The arguments of the op in order, and the plain values that are none.

    Tensors from outside the program come behind its arguments; those that the examples left at
    their defaults come behind these, by name alone, as do all that are so in the program.
    """
    captured = subject.captured
    closures = [one for one in captured.inputs if one.kind == "closure"]
    inputs = {one.position: one for one in captured.inputs if one.kind == "argument"}
    taken = {cpp_identifier(one.name) for one in captured.inputs}
    arguments = subject.arguments
    start = len(arguments) - len(subject.left)
    row: list[CaptureInput | PlainArgument] = []
    named: list[PlainArgument] = []
    unnamed: list[Any] = []
    is_named = bool(closures)
    pairs = zip(arguments, parameters_of(subject), strict=True)
    for place, (argument, parameter) in enumerate(pairs):
        leaves = flatten(argument)[0]
        own = [inputs[leaf.position] for leaf in leaves if isinstance(leaf, CaptureInput)]
        name = "" if parameter is None else cpp_identifier(parameter.name)
        if parameter is not None and parameter.name in absent:
            continue
        if parameter is None or own or name in taken or not _is_plain(argument):
            row += own
            unnamed += [leaf for leaf in leaves if isinstance(leaf, UNNAMED)]
            is_named = True if place >= start else is_named
            continue
        taken.add(name)
        is_keyword = place >= start and (is_named or parameter.kind is KEYWORD)
        (named if is_keyword else row).append(
            PlainArgument(
                name,
                argument,
                parameter.default,
                place,
                own_name=parameter.name,
                annotated=str(parameter.annotation),
                is_keyword=is_keyword,
            )
        )
    return [*row, *closures, *named], unnamed


def _is_plain(value: Any) -> bool:
    """Whether a value can be an argument of an op, and can be compared."""
    if type(value) in (list, tuple):
        kinds = {type(item) for item in value}
        return len(kinds) <= 1 and kinds <= LISTS.keys() and all(map(_is_plain, value))
    if value is None or isinstance(value, torch.dtype):
        return value is None or value in SCHEMA_DTYPES
    return type(value) in KINDS and value == value


# ---- which of them are free ----


def _is_watched(subject: EmitSubject, numbers: Sequence[PlainArgument], notes: Notes) -> bool:
    """Whether the program runs with watched numbers as it does with plain ones."""
    arguments = list(subject.arguments)
    for one in numbers:
        arguments[one.place] = Watched(one.value, one.name, frozenset({one.name}), notes)
    watched = replace(subject.captured, leaves=tuple(flatten(tuple(arguments))[0]))
    with Listening():
        return runs_alike(subject, replace(subject, captured=watched))


def _opened(
    subject: EmitSubject, parts: Parts, numbers: Sequence[PlainArgument], notes: Notes
) -> set[str]:
    """The names of the numbers that are free, which now stand in the graphs."""
    graphs = (parts.forward, parts.backward)
    own = {one.name: one.value for one in numbers}
    seen: dict[str, list[tuple[dict[str, Any], dict[Place, Any]]]] = {}
    for one in numbers:
        found = None if one.name in notes.escaped else _seen(subject, parts, one, own, notes)
        if found is not None:
            seen[one.name] = found
    while True:
        rows = [row for found in seen.values() for row in found]
        places = {place for _, apart in rows for place in apart}
        formulas = {place: _formula(graphs, place, rows, own, notes) for place in places}
        lost = {place for place, formula in formulas.items() if formula is None}
        if not lost:
            break
        seen = {
            name: found
            for name, found in seen.items()
            if not any(lost & apart.keys() for _, apart in found)
        }
    for place, formula in formulas.items():
        assert formula is not None
        names = frozenset(name for name in own if _mentions(formula, name))
        put_number(graphs, place, named_number(number_at(graphs, place), formula, names))
    return set(seen)


def _seen(
    subject: EmitSubject, parts: Parts, one: PlainArgument, own: dict[str, Any], notes: Notes
) -> list[tuple[dict[str, Any], dict[Place, Any]]] | None:
    """For two other values of `one`, the numbers in which the graphs differ."""
    found = []
    for value in _others(one, own, notes):
        arguments = list(subject.captured.fill(subject.tensors()))
        arguments[one.place] = value
        other = captured_with(subject, tuple(arguments))
        if other is None or _fixed(other) != _fixed(subject):
            return None
        theirs = other.parts if parts is subject.parts else other.exact
        apart = numbers_apart((parts.forward, parts.backward), (theirs.forward, theirs.backward))
        if apart is None:
            return None
        found.append(({**own, one.name: value}, apart))
    return found if len(found) == 2 else None


def _others(one: PlainArgument, own: dict[str, Any], notes: Notes) -> Iterator[Any]:
    """Two other values, under which the program decides as it did.

    They have no exact form in a lower precision: a number that went through one can be recognised.
    """
    start = one.value
    wishes: list[Any]
    if isinstance(start, int):
        wishes = [start + 2, start + 5, start - 2, start - 5, start + 1, start - 1]
    else:
        wishes = [start * factor for factor in (1.37, 0.73, 1.07, 0.93)]
        wishes = wishes if start else [0.19, 0.37, -0.19, -0.37]
    fitting = [
        wish
        for wish in wishes
        if all(value_at(text, {**own, one.name: wish}) for text in notes.conditions)
    ]
    yield from fitting[:2]


def _fixed(subject: EmitSubject) -> Any:
    """What must be the same in every capture, beside the graphs."""
    captured = subject.captured
    constants = [
        one.tensor.tolist()
        for one in captured.inputs
        if one.kind == "constant" and one.tensor is not None
    ]
    outputs = [(o.kind, o.index, o.differentiable, o.changes) for o in captured.outputs]
    return repr(constants), outputs, [str(condition) for condition in decided(captured)]


# ---- by which formula ----


def _formula(
    graphs: Any,
    place: Place,
    rows: Sequence[tuple[dict[str, Any], dict[Place, Any]]],
    own: dict[str, Any],
    notes: Notes,
) -> str | None:
    """The formula of the number in a place: as it was computed, or one step further."""
    start = number_at(graphs, place)
    wanted = [(own, start), *((values, apart.get(place, start)) for values, apart in rows)]
    known = list(dict.fromkeys((*own, *notes.formulas)))
    steps = [_steps(formula, *_ends(formula, own, start)) for formula in known]
    products = (f"({a} * {b})" for a in known for b in known)
    for candidate in itertools.chain(known, *steps, products):
        if all(_is_same(candidate, values, number) for values, number in wanted):
            return candidate
    return None


def _ends(formula: str, own: dict[str, Any], number: Any) -> tuple[Any, Any]:
    value = value_at(formula, own)
    return number - value, (number / value if value else 1)


def _steps(formula: str, apart: Any, factor: Any) -> Iterator[str]:
    """What one step of arithmetic makes of a formula."""
    yield f"(-{formula})"
    yield f"(1 - {formula})"
    yield f"(1 / double({formula}))"
    for constant in (factor, int(factor) if math.isfinite(factor) else factor):
        if math.isfinite(constant) and len(repr(constant)) <= 6:
            yield (
                f"({formula} * {constant!r})" if constant >= 0 else f"({formula} * ({constant!r}))"
            )
    if math.isfinite(apart) and len(repr(apart)) <= 6:
        yield f"({formula} + {apart!r})" if apart >= 0 else f"({formula} - {-apart!r})"


def _is_same(formula: str, values: dict[str, Any], number: Any) -> bool:
    try:
        found = value_at(formula, values)
    except ArithmeticError:
        return False
    return type(found) is type(number) and found == number


def _mentions(formula: str, name: str) -> bool:
    return name in compile(formula, "", "eval").co_names
