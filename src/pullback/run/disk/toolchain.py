"""The C++ compiler, and its options to build against the installed torch."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

COMPILERS = ("g++", "clang++", "c++")
"""The commands that are looked for, unless the variable CXX says one."""


def compiler() -> tuple[str, ...] | None:
    """The command of the C++ compiler: the program, and options that CXX may give it."""
    wish = _wish()
    for program, *options in [wish] if wish else [[name] for name in COMPILERS]:
        found = shutil.which(program)
        if found:
            return found, *options
    return None


def _wish() -> list[str]:
    """The command that CXX says."""
    said = os.environ.get("CXX", "")
    try:
        return shlex.split(said)
    except ValueError:  # a quotation without an end
        return [said]


def absence(*, python: bool = False) -> str | None:
    """Why nothing can be built here, in one line; None if it can.

    `python` says whether what is to be built uses Python's headers, too.
    """
    if sys.platform == "win32":
        return "libraries are built with g++ or clang++, which Windows has not"
    if compiler() is None:
        if _wish():
            return f"no C++ compiler is installed as `{os.environ['CXX']}`, which CXX names"
        return f"no C++ compiler is installed ({', '.join(COMPILERS)}, or what CXX names)"
    if python and not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are not installed (Python.h)"
    if not has_headers():
        return "this torch came without its headers"
    return None


# ---- what torch brings ----


def include_folder() -> Path:
    """The folder of the headers that came with torch."""
    return Path(torch.__path__[0]) / "include"


def has_headers() -> bool:
    """Whether the installed torch has its headers with it."""
    return (include_folder() / "ATen" / "ops").is_dir()


def language_standard() -> int:
    """The version of C++ that torch's headers are written in."""
    names = ("c10/macros/Macros.h", "ATen/ATen.h")
    files = [file for file in (include_folder() / name for name in names) if file.is_file()]
    said = any("C++20 or later" in file.read_text(encoding="utf-8") for file in files)
    return 20 if said else 17


# ---- the options of the compiler ----


def options(*, python: bool = False) -> list[str]:
    """What comes before the files of a shared library."""
    include = include_folder()
    folders = [include, include / "torch" / "csrc" / "api" / "include"]
    if python:
        folders.append(Path(sysconfig.get_path("include")))
    return [
        f"-std=c++{language_standard()}",
        "-fPIC",
        "-dynamiclib" if sys.platform == "darwin" else "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        # As system headers: their warnings are not ours.
        *(f"-isystem{folder}" for folder in folders),
    ]


def libraries(*, python: bool = False) -> list[str]:
    """What comes after the files: the libraries that it is linked with."""
    folder = Path(torch.__path__[0]) / "lib"
    names = ["torch", "torch_cpu", "c10", *(["torch_python"] if python else [])]
    words = [f"-L{folder}", f"-Wl,-rpath,{folder}", *(f"-l{name}" for name in names)]
    if sys.platform == "darwin":
        return [*words, *(["-undefined", "dynamic_lookup"] if python else [])]
    # What is missing is known at once; Python's own symbols are there when it is loaded.
    return words if python else [*words, "-Wl,--no-undefined"]
