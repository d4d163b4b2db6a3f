"""Compiled compositions beside the program as written: every backend, in several layouts.

Each case is composed once, with contiguous examples, and called with inputs and cotangents of
other layouts. Which layouts a case gets goes by its number: over a suite each gets its turn with
each backend, and the first call is always contiguous, as it is for most users.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import pullback as pb
from tests.upstream import compare, features, layouts, reported
from tests.upstream.cases import Case, cases_of, ops
from tests.upstream.features import Row
from tests.upstream.programs import program_of

BACKENDS = ("inductor", "native", "auto")
COTANGENTS = ("contiguous", "expanded", "transposed")


def rows_of_program(seed: int) -> Iterator[Row]:
    """A random program through derive, source and eager combine, as each op goes."""
    program = program_of(seed)
    dtype = str(program.case.tensors[0].dtype).removeprefix("torch.")
    return features.rows_of_case(f"program {seed}", dtype, program.case)


def rows_of_compiled_program(seed: int, backend: str, turns: int) -> Iterator[Row]:
    """A random program through a backend, in `turns` layouts besides the plain one."""
    return rows_of(f"program {seed}", program_of(seed).case, backend, seed, turns)


def rows_of_compiled_op(name: str, backend: str, turns: int) -> Iterator[Row]:
    """The first sample of an op through a backend."""
    (case,) = cases_of(ops()[name], "float64", 1)
    turn = sum(map(ord, name))
    return rows_of(name, case, backend, turn, turns)


def rows_of_reported(name: str, *, is_short: bool = False) -> Iterator[Row]:
    """A reported program through derive, source and eager combine."""
    case = reported.case_of(name)
    dtype = str(case.tensors[0].dtype).removeprefix("torch.")
    return features.rows_of_case(name, dtype, case, is_short=is_short)


def rows_of_compiled_reported(name: str, backend: str, turns: int) -> Iterator[Row]:
    """A reported program through a backend, in `turns` layouts besides the plain one."""
    return rows_of(name, reported.case_of(name), backend, sum(map(ord, name)), turns)


def rows_of(name: str, case: Case, backend: str, turn: int, turns: int) -> Iterator[Row]:
    """The rows of a case: first the layout of its examples, then others."""
    dtype = str(case.tensors[0].dtype).removeprefix("torch.")
    begun = Row(name, dtype, f"{backend} combine", "")
    yield begun
    warnings.simplefilter("ignore")
    inputs = layouts.leaves(case.tensors, case.needs)
    try:
        composed = pb.combine(case.program, *inputs, backend=backend)
    except Exception as error:
        yield Row(name, dtype, begun.feature, *features.refused_or_error(error))
        return
    for layout, cotangent in layouts_of(turn, turns):
        feature = f"{backend} {layout}, cotangents {cotangent}"
        yield Row(name, dtype, feature, "")
        yield Row(name, dtype, feature, *_compared(case, composed, layout, cotangent))


def layouts_of(turn: int, turns: int) -> list[tuple[str, str]]:
    """The layouts of inputs and of cotangents that a case gets at its turn."""
    others = [name for name in layouts.LAYOUTS if name != "contiguous"]
    row = [others[(turn + i) % len(others)] for i in range(turns)]
    pairs = [(name, COTANGENTS[(turn + i + 1) % 3]) for i, name in enumerate(row)]
    return [("contiguous", COTANGENTS[turn % 3]), *pairs]


def _compared(case: Case, composed: Any, layout: str, cotangent: str) -> tuple[str, str]:
    def answer(call: Any, some: Case = case) -> compare.Answer:
        inputs = layouts.leaves(some.tensors, some.needs, layouts.LAYOUTS[layout])
        return compare.first(call, inputs, layouts.LAYOUTS[cotangent])

    try:
        truth = answer(case.program)
    except Exception:  # PyTorch does not take this layout, as `view` does not
        return "right", "not asked"
    try:
        got = [answer(composed.apply) for _ in range(2)]
    except Exception as error:
        return features.refused_or_error(error)
    wide = features.widened(case)
    for one in got:
        said = compare.difference(one, truth, lambda: answer(wide.program, wide))
        if said:
            return "wrong", f"{said} [{' / '.join(composed.explain().split(chr(10)))}]"
    return "right", ""
