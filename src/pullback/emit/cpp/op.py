"""C++: a `torch::autograd::Function` in one file, registered as an op of PyTorch.

The file needs the headers of torch alone. Beside it stand a CMake file and a small
program that uses the op without Python.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace

from pullback.derive.recipe import Parts
from pullback.derive.source import require_flat
from pullback.emit.cpp.body import CPP_WIDTH
from pullback.emit.cpp.defaults import with_defaults
from pullback.emit.cpp.function import returned_by, write_function
from pullback.emit.cpp.library import library_text
from pullback.emit.cpp.plain import plain_row
from pullback.emit.cpp.project import cmake_text, main_text
from pullback.emit.cpp.reach import is_twice, reach_of
from pullback.emit.cpp.signature import NAMESPACE, CppFunction
from pullback.emit.cpp.variants import variants_of
from pullback.emit.cpp.verify import differing_cpp, graphs_differ, require_same
from pullback.emit.python.module import snake
from pullback.emit.subject import EmitSubject
from pullback.errors import BuildError
from pullback.run.disk.toolchain import absence, has_headers, language_standard


def emit_cpp(
    subject: EmitSubject, *, is_verified: bool = False, file: str | None = None
) -> dict[str, str]:
    """The files of a subject by their names, the C++ file with the op first.

    If `is_verified`, the op is compiled and compared with the program; where that cannot be, a line
    in the file says so. `file` is the name that the C++ file will have, if that is another one.
    """
    function = cpp_function(subject)
    head, note = _head(subject, function), ""
    text = library_text(head, [function])
    if is_verified:
        missing = absence()
        if missing is None and not require_same([function], text, file or f"{function.op}.cpp"):
            missing = "there were no inputs on which the program could be run"
        note = f"Not compared with the program when it was written: {missing}." if missing else ""
    if note:
        text = library_text([*head, "", *textwrap.wrap(note, CPP_WIDTH)], [function])
    return {
        f"{function.op}.cpp": text,
        "CMakeLists.txt": cmake_text(function, language_standard()),
        "main.cpp": main_text(function),
    }


def cpp_function(subject: EmitSubject) -> CppFunction:
    """The Function of a subject in C++."""
    if not has_headers():
        raise BuildError(
            "the headers of torch must be there to emit C++",
            got="a torch without its `include` folder",
            fix="install torch from its wheels",
        )
    subject = with_defaults(subject)
    whole = _written(subject, snake(subject.name))
    variants = [(n, _written(variant, whole.op, n)) for n, variant in variants_of(subject)]
    optional = frozenset(name for names, _ in variants for name in names)
    return replace(whole, variants=tuple(variants), optional=optional)


def _written(subject: EmitSubject, op: str, absent: frozenset[str] = frozenset()) -> CppFunction:
    require_flat(subject.captured, to="emitted")
    returned_by(subject.captured)
    parts = _chosen(subject)
    reach = reach_of(subject, parts)
    return write_function(subject, parts, reach, plain_row(subject, parts, absent), op)


def _chosen(subject: EmitSubject) -> Parts:
    """The graphs to write: those that read best, unless they differ or cost a second derivative.

    A value that forward and backward of a hand-written class both compute is computed once in the
    former; saved on the way, it has no history.
    """
    is_own = subject.function is not None
    is_lost = is_own and not is_twice(subject, subject.parts) and is_twice(subject, subject.exact)
    if not is_lost and not graphs_differ(subject, subject.parts):
        return subject.parts
    differs = graphs_differ(subject, subject.exact)
    if differs:
        raise differing_cpp(subject.name, differs)
    return subject.exact


def _head(subject: EmitSubject, function: CppFunction) -> list[str]:
    came = subject.captured.name.removesuffix(".apply")
    by_name = {one.name for one in function.plain if one.is_keyword}
    names = [(name, function.spelled.get(name, name)) for name in function.parameters]
    passed = [f"{own}={own}" if name in by_name else own for name, own in names]
    call = f"torch.ops.{NAMESPACE}.{function.op}({', '.join(passed)})"
    said = f"{subject.name}, written by pullback from {came}: yours to keep."
    return [
        *textwrap.wrap(said, CPP_WIDTH),
        "",
        f'Python:  torch.ops.load_library("lib{function.op}.so"); {call}',
        f"C++:     {NAMESPACE}::{function.name}::apply({', '.join(function.parameters)})",
    ]
