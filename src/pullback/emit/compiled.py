"""`build`: an emitted C++ file becomes a library, and its ops are there as `torch.ops.<ns>.<name>`.

The compiler is called directly with the headers and libraries that came with torch, and a library
is kept for as long as nothing changes that it depends on (`run.disk.building`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pullback.errors import BuildError, first_line
from pullback.run.disk import building, toolchain
from pullback.run.disk.building import Library
from pullback.run.disk.cache import root

FLAGS = ("-O2", "-fvisibility=hidden")

_LIBRARY = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_OP = re.compile(r'\.def\(\s*(?:TORCH_SELECTIVE_SCHEMA\(\s*)?"(?:\w+::)?(\w+)(?:\.\w+)?\s*[("]')


def build_file(
    path: str | os.PathLike[str],
    *,
    flags: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Any:
    """As `pullback.build`, which says what it does."""
    file = _source(Path(path))
    text = file.read_text(encoding="utf-8")
    names = _registered(file, text)
    library = library_of(file, flags=flags, cache=cache)
    _load(file, library, names)
    spaces = {namespace for namespace, _ in names}
    if len(spaces) > 1:
        return torch.ops
    (namespace,) = (getattr(torch.ops, space) for space in spaces)
    return getattr(namespace, names[0][1]) if len(names) == 1 else namespace


def _source(path: Path) -> Path:
    """The C++ file that is meant."""
    if path.is_dir():
        found = [
            file
            for file in sorted(path.glob("*.cpp"))
            if _LIBRARY.search(file.read_text(encoding="utf-8", errors="replace"))
        ]
        if len(found) != 1:
            raise BuildError(
                f"`{path}` must hold one C++ file that registers ops",
                got=f"{len(found)} of them",
                fix="name the file itself",
            )
        return found[0]
    if not path.is_file():
        raise BuildError(
            f"`{path}` must be a C++ file, or a folder with one",
            got="nothing in that place",
            fix=f'pb.emit(..., "cpp", path="{path}") writes one',
        )
    return path


def _registered(file: Path, text: str) -> list[tuple[str, str]]:
    """The ops that a file registers, each as its namespace and its name."""
    bare = re.sub(r"//[^\n]*", "", text)
    libraries = list(_LIBRARY.finditer(bare))
    ends = [library.start() for library in libraries[1:]] + [len(bare)]
    found = [
        (library[1], op)
        for library, end in zip(libraries, ends, strict=False)
        for op in dict.fromkeys(_OP.findall(bare[library.end() : end]))
    ]
    if not found:
        raise BuildError(
            f"`{file}` must register an op to be built",
            expected="TORCH_LIBRARY or TORCH_LIBRARY_FRAGMENT, with `m.def`",
            got="a registration without an op" if libraries else "no registration",
        )
    return found


def library_of(
    file: Path,
    *,
    flags: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Path:
    """The library of a C++ file: the one that is kept, or a new one."""
    folder = None if cache is None else Path(cache)
    library = Library(file.stem, file, flags=(*FLAGS, *flags), cache=folder)
    try:
        return building.build_library(library, lambda path: path)
    except OSError as error:
        raise BuildError(
            f"`{folder or root()}` must be a folder that libraries can be kept in",
            got=error.strerror or str(error),
            fix="name another one: build(..., cache=...), or $PULLBACK_CACHE_DIR",
        ) from None


def has_compiler() -> bool:
    """Whether there is something to compile with."""
    return toolchain.absence() is None


# ---- loading ----


def _load(file: Path, library: Path, names: Sequence[tuple[str, str]]) -> None:
    if str(library.resolve()) in {str(Path(p).resolve()) for p in torch.ops.loaded_libraries}:
        return
    for space, op in names:
        if hasattr(getattr(torch.ops, space), op):
            raise BuildError(
                f"`{space}::{op}` must not be registered twice in one process",
                at=str(file),
                got="an op of that name, which another library registered",
                fix="give the class another name, or load it in a new process",
            )
    try:
        torch.ops.load_library(str(library))
    except (OSError, RuntimeError) as error:
        raise BuildError(
            f"the library of `{file}` must load",
            at=str(library),
            got=first_line(error),
        ) from None
