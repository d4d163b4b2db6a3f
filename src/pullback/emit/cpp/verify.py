"""Before it is returned, C++ is compiled, run in a new process and compared with the program.

The library is the one that `build` makes of the file, and stays in the cache for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pullback.capture.decided import decided
from pullback.derive.recipe import Parts
from pullback.emit.compiled import library_of
from pullback.emit.cpp.plain_text import PlainArgument
from pullback.emit.cpp.shadow import shadow_of
from pullback.emit.cpp.signature import NAMESPACE, CppFunction
from pullback.emit.subject import EmitSubject
from pullback.emit.tester import FileCall, FileFailedError, seen_of_file
from pullback.errors import BuildError, EmitMismatchError
from pullback.judge.observed import Observed, Wanted
from pullback.judge.text_difference import TextDifference
from pullback.judge.trial_rows import TrialRow, op_rows

# ---- the graphs, without a compiler ----


def graphs_differ(subject: EmitSubject, parts: Parts) -> TextDifference | None:
    """The first thing in which the graphs `parts` differ from the program, or None."""
    captured, comparison = subject.captured, subject.comparison
    if captured.mutated:
        return None  # a Function of Python's would need the copies that only the C++ makes
    shadow = shadow_of(captured, parts)
    has_branches = any(True for _ in decided(captured))
    for row in op_rows(captured, subject.specs, is_double=False, numbers={}):
        if row.may_refuse and has_branches:
            continue  # with other sizes the program does other things: the op refuses them
        expected = comparison.repeated(row, comparison.wanted)
        if expected is None:
            continue
        found = comparison.observe(shadow, row)
        if row.may_refuse and found.error:
            continue  # the op raises an error that says so
        differs = comparison.apart(expected, found, row)
        if differs:
            return differs
    return None


# ---- the op ----


def require_same(functions: Sequence[CppFunction], text: str, file: str) -> bool:
    """Raise `EmitMismatchError` unless the ops in `text` do what their programs do.

    `file` is the name that the text will have: `build` then finds this very library. Gives whether
    there were inputs to compare each of them on.
    """
    cases = [case for function in functions for case in _cases(function)]
    if {case.function.name for case in cases} < {function.name for function in functions}:
        return False
    with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
        source = Path(folder, file)
        source.write_text(text, encoding="utf-8")
        library, calls = _built(functions[0].name, source), [*map(_call, cases)]
        try:
            found = seen_of_file(library, calls, Path(folder), namespace=NAMESPACE)
        except FileFailedError as error:
            raise mismatch(functions[0].name, got=str(error)) from None
    for case, seen in zip(cases, found, strict=True):
        if case.row.may_refuse and seen.error.startswith(f"{case.called.name}: "):
            continue
        differs = case.called.subject.comparison.apart(case.expected, seen, case.row)
        if differs:
            raise differing_cpp(case.function.name, differs)
    return True


def _built(name: str, source: Path) -> Path:
    try:
        return library_of(source)
    except BuildError as error:
        raise EmitMismatchError(
            f"the C++ of `{name}` must compile: nothing is handed out",
            got=error.facts["got"],
            fix=f"{error.facts['fix']}; this is a defect of pullback: please report it",
        ) from None


def mismatch(name: str, **facts: str) -> EmitMismatchError:
    """The error for text that does other things than the program."""
    return EmitMismatchError(
        f"the C++ of `{name}` must do what the program does: nothing is handed out",
        **facts,
        fix="this is a defect of pullback: please report it with the program",
    )


def differing_cpp(name: str, found: TextDifference) -> EmitMismatchError:
    """The error for C++ that differs from the program in what was found."""
    return mismatch(name, **found.facts("the program", "the C++"))


@dataclass(frozen=True)
class _Case:
    """One row for an op, and what the program gives for it.

    `called` is the Function behind the op that serves the row: itself, or a variant.
    """

    function: CppFunction
    called: CppFunction
    row: TrialRow
    expected: Observed


def _cases(function: CppFunction) -> Iterator[_Case]:
    for called in (function, *(variant for _, variant in function.variants)):
        comparison = called.subject.comparison
        captured, is_twice = comparison.captured, called.reach.is_twice
        wanted = replace(comparison.wanted, sees_changes=True, is_alone=True, is_twice=is_twice)
        has_tensors = any(one.kind == "closure" for one in captured.inputs)
        is_double = torch.float64 in called.reach.dtypes and not has_tensors
        numbers = {one.place: _other(one) for one in called.plain if one.is_free}
        rows = op_rows(captured, comparison.specs, is_double=is_double, numbers=numbers)
        for row in rows:
            expected = comparison.repeated(row, wanted)
            if expected is not None:
                yield _Case(function, called, row, expected)


def _other(one: PlainArgument) -> Any:
    """Another value of a number."""
    return one.value + 1 if isinstance(one.value, int) else one.value * 1.07 + 0.01


def _call(case: _Case) -> FileCall:
    """The call of the op."""
    function, called, row = case.function, case.called, case.row
    inputs = called.subject.captured.inputs
    places = [place for place, one in enumerate(inputs) if one.is_given]
    changed = {place for place, _ in called.subject.captured.mutated}
    wanted = Wanted(
        needs=tuple(inputs[place].needs for place in places),
        changed=tuple(i for i, place in enumerate(places) if place in changed),
        sees_changes=True,
        is_alone=True,
        is_twice=case.expected.second is not None,
    )
    plain = {one.name: row.numbers.get(one.place, one.value) for one in function.plain}
    by_name = {one.name for one in function.plain if one.is_keyword}
    arguments = [
        (called.tensors.index(name), None) if name in called.tensors else (None, plain.get(name))
        for name in function.parameters
        if name not in by_name
    ]
    tensors = [row.tensors[place].detach() for place in places]
    return FileCall(function.op, tensors, wanted, arguments, _named(function, plain))


def _named(function: CppFunction, plain: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the op takes by name alone."""
    names = [one.name for one in function.plain if one.is_keyword]
    return {function.spelled.get(name, name): plain[name] for name in names}
