"""A C++ file as a shared library, built once.

A library is kept in the cache (`cache.py`) under all that it depends on: its text and that of the
files it includes from beside it, the compiler and its flags, torch, Python, and the machine.
Processes that want the same one wait for the first of them; what is damaged is built again.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import importlib.machinery
import importlib.util
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pullback.errors import BuildError
from pullback.run.disk import toolchain
from pullback.run.disk.cache import Entry, entry

Loaded = TypeVar("Loaded")

SHOWN = 3
"""How many errors of the compiler are shown."""

SPACE = "free some space, or set PULLBACK_CACHE_DIR and TMPDIR to folders on another disk"

_FULL = os.strerror(errno.ENOSPC)  # the compiler is run in English
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)
_ERROR = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<said>.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library to be built.

    Attributes:
        name: of the library, and of the module if it is one of Python's.
        file: the C++ file.
        flags: for the compiler, besides what every library needs.
        python: whether it uses Python's headers.
        cache: the folder to keep it in; by default the cache's own.
    """

    name: str
    file: Path
    flags: tuple[str, ...] = ()
    python: bool = False
    cache: Path | None = None


def is_built(library: Library) -> bool:
    """Whether the cache has it; it has not what another process is building."""
    with contextlib.suppress(OSError), _place(library, wait=False) as place:
        return place.facts() is not None
    return False


def build_library(library: Library, load: Callable[[Path], Loaded]) -> Loaded:
    """What `load` makes of the path of a library, which is built first if need be.

    `load` is called while no other process may remove the library. If it fails on one from the
    cache, that is built again. Raises `BuildError` where there is no compiler, or where it refuses.
    """
    with _place(library) as place:
        path = place.folder / f"lib{library.name}.so"
        if place.facts() is not None:
            try:
                return load(path)
            except Exception:
                pass  # whole, and yet not for this system: it is built again
        place.empty()
        try:
            _compile(library, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        place.seal({})
        return load(path)


def _place(library: Library, *, wait: bool = True) -> AbstractContextManager[Entry]:
    """The folder in the cache for all that the library depends on."""
    command = toolchain.compiler() or ()
    words = [*command, _version(command), *_before(library), *_after(library)]
    texts = [f"{path.name}\n{text}" for path, text in sources(library.file).items()]
    origin = "\n".join([f"library {library.name}", *words, *texts])
    return entry(origin, within=library.cache, wait=wait)


def _before(library: Library) -> list[str]:
    return [*toolchain.options(python=library.python), *library.flags]


def _after(library: Library) -> list[str]:
    return toolchain.libraries(python=library.python)


def sources(file: Path) -> dict[Path, str]:
    """A C++ file and those that it includes from beside it, and they in turn: the text of each."""
    found: dict[Path, str] = {}
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found[path] = path.read_text(encoding="utf-8", errors="replace")
        waiting += [(path.parent / name).resolve() for name in _INCLUDE.findall(found[path])]
    return found


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    """Which compiler it is, by its own word."""
    if not command:
        return ""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=False, errors="replace"
        )
    except OSError:
        return ""
    return done.stdout.strip()


# ---- compiling ----


def _compile(library: Library, path: Path) -> None:
    missing, program = toolchain.absence(python=library.python), toolchain.compiler()
    if missing or program is None:
        raise BuildError(
            "a C++ compiler must be there to build",
            got=missing or "",
            fix="install g++ or clang++, or set CXX to a compiler",
        )
    file = str(library.file.resolve())
    command = [*program, *_before(library), file, "-o", str(path), *_after(library)]
    try:
        code, said = _run(command)
    except OSError as error:
        raise BuildError(
            f"`{library.file}` must be built with `{program[0]}`", got=str(error)
        ) from None
    if code:
        raise _refused(library.file, path.parent, command, said)


_running: set[subprocess.Popen[str]] = set()  # compilers, which end with this process


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a compiler: its exit code, and what it said."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,  # so that it can be ended with all that it started
    ) as compiler:
        _running.add(compiler)
        try:
            out, err = compiler.communicate()
        except BaseException:
            _end(compiler)
            raise
        finally:
            _running.discard(compiler)
    return compiler.returncode, err or out


def _end(compiler: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(compiler.pid, signal.SIGKILL)
        else:
            compiler.kill()


@atexit.register
def _end_all() -> None:
    """A build in the background ends with the process that began it."""
    for compiler in tuple(_running):
        _end(compiler)


def _refused(file: Path, folder: Path, command: Sequence[str], said: str) -> BuildError:
    """What the compiler said, in short."""
    full = next((line.strip() for line in said.splitlines() if _FULL in line), None)
    if full is not None:
        return BuildError(
            f"`{file}` must be built where a disk has space left", got=full, fix=SPACE
        )
    log = folder / "compiler.log"
    log.write_text(f"{shlex.join(command)}\n\n{said}", encoding="utf-8")
    errors = list(_ERROR.finditer(said))
    own = [error for error in errors if Path(error["file"]).name == file.name]
    shown = [_in_short(error, file if own else None) for error in (own or errors)[:SHOWN]]
    rest = len(own or errors) - len(shown)
    last = [line for line in said.strip().splitlines() if line.strip()][-1:] or ["no word"]
    return BuildError(
        f"`{file}` must compile",
        at=f"{file}:{own[0]['line']}" if own else str(file),
        got="\n            ".join([*(shown or last), *([f"and {rest} more"] if rest else [])]),
        fix=f"all that the compiler said is in {log}",
    )


def _in_short(error: re.Match[str], file: Path | None) -> str:
    """One error of the compiler; with the line that it is about, if that is in `file`."""
    if file is None:
        return f"{error['file']}:{error['line']}: {error['said']}"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    code = "".join(lines[int(error["line"]) - 1 : int(error["line"])]).strip()
    return f"line {error['line']}: {error['said']}" + (f"\n              {code}" if code else "")


# ---- loading ----


@functools.cache
def extension(library: Library) -> ModuleType:
    """The Python module that a library is, which initialises itself."""
    return build_library(library, lambda path: _imported(library.name, path))


def _imported(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec: Any = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
