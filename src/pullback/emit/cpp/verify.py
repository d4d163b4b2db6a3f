"""C++ is compared with the program before anyone gets it: compiled, and run in a new process.

The library is the one that `build` makes of the file, and stays in the cache for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pullback.capture.decided import decided
from pullback.derive.recipe import Parts
from pullback.emit.compiled import library_of
from pullback.emit.cpp import observed as watching
from pullback.emit.cpp.beside import Beside, apart
from pullback.emit.cpp.compared import Row, difference, expected_of, rows_of, wanted_of
from pullback.emit.cpp.library import NAMESPACE
from pullback.emit.cpp.observed import JOB, RESULTS, Observed, observed
from pullback.emit.cpp.plain import PlainArgument
from pullback.emit.cpp.runs import twin_of
from pullback.emit.cpp.signature import CppFunction
from pullback.emit.subject import Subject
from pullback.errors import BuildError, EmitMismatchError

LONGEST = 600.0
"""Seconds after which the process that runs the op is given up."""

_RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


# ---- the graphs, without a compiler ----


def graphs_differ(subject: Subject, parts: Parts) -> str:
    """Where the graphs `parts` do other things than the program; nothing where they do not."""
    if subject.captured.mutated:
        return ""  # a Function of Python's would need the copies that only the C++ makes
    with apart():
        trial = Beside(subject, parts)
        wanted = wanted_of(trial, is_twice=False)
        twin = twin_of(subject.captured, parts)
        has_branches = any(True for _ in decided(subject.captured))
        for row in rows_of(trial, is_double=False, numbers={}):
            if row.may_refuse and has_branches:
                continue  # with other sizes the program does other things: the op refuses them
            expected = expected_of(trial, row, wanted)
            if expected is None:
                continue
            found = observed(lambda given: list(twin.apply(*given)), row.tensors, wanted)
            if row.may_refuse and found.error:
                continue  # the op says so in words
            found.flags = {}
            differs = difference(found, expected)
            if differs:
                return f"{row.label}: {differs}"
    return ""


# ---- the op ----


def require_same(functions: Sequence[CppFunction], text: str, file: str) -> bool:
    """Raise `EmitMismatchError` unless the ops in `text` do what their programs do.

    `file` is the name that the text will have: `build` then finds this very library. Gives whether
    there were inputs to compare each of them on.
    """
    with apart():
        cases = [case for function in functions for case in _cases(function)]
    if {case.function.name for case in cases} < {function.name for function in functions}:
        return False
    with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
        source = Path(folder, file)
        source.write_text(text, encoding="utf-8")
        library = _built(functions[0].name, source)
        found = _run(cases, library, Path(folder))
    for case, seen in zip(cases, found, strict=True):
        if case.row.may_refuse and seen.error.startswith(f"{case.called.name}: "):
            continue
        differs = difference(seen, case.expected)
        if differs:
            raise mismatch(case.function.name, f"{case.row.label}: {differs}")
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


def mismatch(name: str, differs: str) -> EmitMismatchError:
    """The error for text that does other things than the program."""
    return EmitMismatchError(
        f"the C++ of `{name}` must do what the program does: nothing is handed out",
        got=differs,
        fix="this is a defect of pullback: please report it with the program",
    )


@dataclass(frozen=True)
class _Case:
    """One row for an op, and what the program gives for it.

    `called` is the Function behind the op that serves the row: itself, or a variant.
    """

    function: CppFunction
    called: CppFunction
    row: Row
    expected: Observed


def _cases(function: CppFunction) -> Iterator[_Case]:
    for called in (function, *(variant for _, variant in function.variants)):
        trial, reach = Beside(called.subject, called.subject.parts), called.reach
        wanted = wanted_of(trial, is_twice=reach.is_twice)
        has_tensors = any(one.kind == "closure" for one in trial.captured.inputs)
        is_double = torch.float64 in reach.dtypes and not has_tensors
        numbers = {one.place: _other(one) for one in called.plain if one.is_free}
        for row in rows_of(trial, is_double=is_double, numbers=numbers):
            expected = expected_of(trial, row, wanted)
            if expected is not None:
                yield _Case(function, called, row, expected)


def _other(one: PlainArgument) -> Any:
    """Another value of a number."""
    return one.value + 1 if isinstance(one.value, int) else one.value * 1.07 + 0.01


def _run(cases: Sequence[_Case], library: Path, folder: Path) -> list[Observed]:
    """What the ops give for each case, in a process of its own."""
    job = {
        "library": str(library),
        "namespace": NAMESPACE,
        "threads": torch.get_num_threads(),
        "calls": [_call(case) for case in cases],
    }
    torch.save(job, folder / JOB)
    name, path = cases[0].function.name, os.pathsep.join([part for part in sys.path if part])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(watching.__file__), str(folder)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise mismatch(name, f"the op did not end in {LONGEST:g} s") from None
    if done.returncode or not (folder / RESULTS).exists():
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise mismatch(name, f"its process ended with {done.returncode}: {last[0]}")
    return [Observed(**found) for found in torch.load(folder / RESULTS, weights_only=False)]


def _call(case: _Case) -> Any:
    """One call for the other process: the op, tensors, what is asked, and the arguments."""
    function, called, row = case.function, case.called, case.row
    inputs = called.subject.captured.inputs
    places = [place for place, one in enumerate(inputs) if one.is_given]
    changed = {place for place, _ in called.subject.captured.mutated}
    wanted = {
        "needs": tuple(inputs[place].needs for place in places),
        "changed": tuple(i for i, place in enumerate(places) if place in changed),
        "is_twice": case.expected.second is not None,
    }
    plain = {one.name: row.numbers.get(one.place, one.value) for one in function.plain}
    by_name = {one.name for one in function.plain if one.is_keyword}
    arguments = [
        (called.tensors.index(name), None) if name in called.tensors else (None, plain.get(name))
        for name in function.parameters
        if name not in by_name
    ]
    tensors = [row.tensors[place].detach() for place in places]
    return function.op, tensors, wanted, arguments, _named(function, plain)


def _named(function: CppFunction, plain: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the op takes by name alone."""
    names = [one.name for one in function.plain if one.is_keyword]
    return {function.spelled.get(name, name): plain[name] for name in names}
