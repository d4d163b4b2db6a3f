"""Building C++ against the installed torch: which compiler, and a shared library built once.

A library is kept in the cache on disk (`run.cache`) under all that it depends on: its source, the
compiler and its flags, torch, Python, and the machine. Processes that want the same one wait for
the first of them; what is damaged or does not load is built again.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from pullback.errors import ToolchainError
from pullback.run.cache import entry

Loaded = TypeVar("Loaded")

STANDARD = "c++20"  # what torch's own headers are written in since 2.13; 2.11 takes it, too
_TORCH = Path(torch.__file__).parent


def compiler() -> str | None:
    """The C++ compiler: what CXX names, else the first of the usual ones that is installed."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "clang++", "c++"]:
        found = shutil.which(name)
        if found:
            return found
    return None


def absence() -> str | None:
    """Why nothing can be built here, in one line; None if it can."""
    if sys.platform == "win32":
        return "libraries are built with g++ or clang++, which Windows has not"
    if compiler() is None:
        return "no C++ compiler is installed (g++, clang++, or what CXX names)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are not installed (Python.h)"
    if not (_TORCH / "include" / "ATen").exists():
        return "this torch came without its headers"
    return None


def flags() -> list[str]:
    """What the compiler is told for code that uses torch and Python, before the files."""
    abi = int(torch.compiled_with_cxx11_abi())
    include, api = _TORCH / "include", _TORCH / "include" / "torch" / "csrc" / "api" / "include"
    words = [f"-std={STANDARD}", "-O1", "-fPIC", "-shared", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    # As system headers: their warnings are not ours.
    words += [f"-isystem{path}" for path in (include, api, sysconfig.get_path("include"))]
    return words


def libraries() -> list[str]:
    """What a library that uses torch and Python is linked with, after the files."""
    names = [f"-l{name}" for name in ("c10", "torch_cpu", "torch", "torch_python")]
    if sys.platform == "darwin":
        names += ["-undefined", "dynamic_lookup"]
    return [f"-L{_TORCH / 'lib'}", f"-Wl,-rpath,{_TORCH / 'lib'}", *names]


# ---- building ----


def is_built(name: str, source: str) -> bool:
    """Whether the cache has the library called `name` of this source."""
    with entry(_origin(name, source, ())) as place:
        return place.facts() is not None


def build(
    name: str, source: str, load: Callable[[Path], Loaded], *, extra: Sequence[str] = ()
) -> Loaded:
    """What `load` makes of the shared library called `name`, built from `source` if need be.

    Arguments:
        name: of the library; it needs only be right for `load`.
        source: the C++ text.
        load: takes the path of the library. It is called while no other process may remove it. If
            it fails on a library from the cache, that is built anew.
        extra: more flags for the compiler.

    Raises `ToolchainError` where there is no compiler, or where it refuses.
    """
    with entry(_origin(name, source, extra)) as place:
        path = place.folder / f"{name}.so"
        if place.facts() is not None:
            try:
                return load(path)
            except Exception:
                pass  # whole, and yet not for this system: it is built again
        place.empty()
        try:
            _compile(source, path, extra)
        except BaseException:
            place.empty()
            raise
        place.seal({})
        return load(path)


def _compile(source: str, path: Path, extra: Sequence[str]) -> None:
    missing, program = absence(), compiler()
    if missing or program is None:
        raise ToolchainError(f"`{path.stem}` must be built with a C++ compiler", got=missing or "")
    text = path.with_suffix(".cpp")
    text.write_text(source, encoding="utf-8")
    command = [program, *flags(), *extra, str(text), "-o", str(path), *libraries()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise ToolchainError(
            f"`{path.stem}` must be built with `{program}`", got=str(error)
        ) from None
    if done.returncode:
        raise ToolchainError(
            f"`{path.stem}` must be C++ that `{Path(program).name}` compiles",
            got=_first_error(done.stderr) or f"exit status {done.returncode}",
        )


def _first_error(output: str) -> str:
    """The first line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line]
    return (wrong or lines or [""])[0]


def _origin(name: str, source: str, extra: Sequence[str]) -> str:
    words = [str(compiler()), *flags(), *extra, *libraries()]
    return "\n".join([f"library {name}", *words, source])


# ---- loading ----


@functools.cache
def extension(name: str, source: str) -> ModuleType:
    """The Python module called `name` of this source, which initialises itself."""
    return build(name, source, lambda path: _imported(name, path))


def _imported(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec: Any = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
