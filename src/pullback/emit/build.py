"""`build`: an emitted C++ file becomes a library, and its ops are there as `torch.ops.<ns>.<name>`.

The compiler is called directly with the headers and libraries that came with torch. A library is
kept under a name made of everything that it depends on: the text, torch, the compiler, the flags.
Two processes that build the same at once wait for each other, and the second finds it built.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from pullback.emit.headers import has_headers, include_folder, language_standard
from pullback.errors import BuildError
from pullback.run.cache import root

COMPILERS = ("c++", "g++", "clang++")
SHOWN = 3
"""How many errors of the compiler are shown."""

_LIBRARY = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_OP = re.compile(r'\.def\(\s*(?:TORCH_SELECTIVE_SCHEMA\(\s*)?"(?:\w+::)?(\w+)(?:\.\w+)?\s*[("]')
_ERROR = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<said>.*)$", re.MULTILINE
)


def build(
    path: str | os.PathLike[str],
    *,
    flags: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a C++ file that registers ops, unless that was done before, and load it.

    Arguments:
        path: a C++ file with `TORCH_LIBRARY` or `TORCH_LIBRARY_FRAGMENT`, such as `emit` writes; or
            a folder with one of them.
        flags: more options for the compiler.
        cache: the folder to keep libraries in; by default one in `$PULLBACK_CACHE_DIR`, else in
            this user's caches.

    Returns the op, `torch.ops.<ns>.<name>`; of a file with several, the namespace `torch.ops.<ns>`;
    `torch.ops` if they are in several. The compiler is `$CXX` if that is set.
    """
    file = _source(Path(path))
    text = file.read_text(encoding="utf-8")
    names = _registered(file, text)
    library = compiled(file, text, flags=flags, cache=cache)
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


# ---- compiling ----


def compiled(
    file: Path,
    text: str,
    *,
    flags: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Path:
    """The library of a C++ file: the one that is kept, or a new one."""
    compiler = find_compiler()
    options = _options(flags)
    parts = [text, torch.__version__, str(torch.__path__[0]), *_version(compiler), *options]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    folder = Path(cache) if cache is not None else cache_folder()
    library = folder / key / f"lib{file.stem}.so"
    if library.is_file():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(library.parent / "lock")):
            if not library.is_file():
                _compile(compiler, options, file, library)
    except OSError as error:
        raise BuildError(
            f"`{folder}` must be a folder that libraries can be kept in",
            got=error.strerror or str(error),
            fix="name another one: build(..., cache=...), or $PULLBACK_CACHE_DIR",
        ) from None
    return library


def cache_folder() -> Path:
    """The folder that libraries are kept in, beside what the backends keep."""
    return root().with_name("build")


def has_compiler() -> bool:
    """Whether there is something to compile with."""
    try:
        find_compiler()
    except BuildError:
        return False
    return True


def find_compiler() -> tuple[str, ...]:
    """The command of the compiler."""
    wish = os.environ.get("CXX")
    command = tuple(shlex.split(wish)) if wish else ()
    found = [command] if command else [(name,) for name in COMPILERS]
    for each in found:
        if shutil.which(each[0]) is not None and sys.platform != "win32" and has_headers():
            return each
    got = f"CXX={wish}, which is not there" if wish else f"none of {', '.join(COMPILERS)}"
    if sys.platform == "win32":
        got = "Windows, where this is not supported"
    elif not has_headers():
        got = "a torch without its headers"
    raise BuildError(
        "a C++ compiler must be there to build",
        got=got,
        fix="install g++ or clang++, or set CXX to a compiler",
    )


@functools.cache
def _version(compiler: tuple[str, ...]) -> tuple[str, str]:
    """Which compiler it is, and the machine."""
    done = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, check=False, errors="replace"
    )
    return done.stdout.strip() or " ".join(compiler), platform.machine()


def _options(flags: Sequence[str]) -> list[str]:
    """The options that the compiler is called with, but for the files."""
    include, lib = include_folder(), Path(torch.__path__[0]) / "lib"
    api = include / "torch" / "csrc" / "api" / "include"
    shared = ["-dynamiclib"] if sys.platform == "darwin" else ["-shared", "-Wl,--no-undefined"]
    return [
        f"-std=c++{language_standard()}",
        "-O2",
        "-fPIC",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(include), "-isystem", str(api)),
        *shared,
        *flags,
        f"-L{lib}",
        f"-Wl,-rpath,{lib}",
        *("-ltorch", "-ltorch_cpu", "-lc10"),
    ]


def _compile(compiler: tuple[str, ...], options: Sequence[str], file: Path, library: Path) -> None:
    """Compile beside the place of the library, then move it there: nobody loads half of one."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        # Libraries are named after the file that needs them.
        start = [option for option in options if not option.startswith(("-l", "-L", "-Wl,-rpath"))]
        end = [option for option in options if option not in start]
        command = [*compiler, *start, str(file.resolve()), *end, "-o", str(made)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
        if done.returncode != 0:
            raise _refused(file, library.parent, command, done.stderr or done.stdout)
        os.replace(made, library)


def _refused(file: Path, folder: Path, command: Sequence[str], said: str) -> BuildError:
    """What the compiler said, in short."""
    log = folder / "compiler.log"
    log.write_text(f"{shlex.join(command)}\n\n{said}", encoding="utf-8")
    errors = list(_ERROR.finditer(said))
    own = [e for e in errors if Path(e["file"]).name == file.name]
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = []
    for error in (own or errors)[:SHOWN]:
        number = int(error["line"])
        code = lines[number - 1].strip() if error in own and number <= len(lines) else ""
        place = f"line {number}" if error in own else f"{error['file']}:{number}"
        shown.append(f"{place}: {error['said']}" + (f"\n              {code}" if code else ""))
    last = [line for line in said.strip().splitlines() if line.strip()][-1:] or ["no word"]
    rest = len(own or errors) - len(shown)
    got = "\n            ".join([*shown, *([f"and {rest} more"] if rest > 0 else [])]) or last[0]
    return BuildError(
        f"`{file}` must compile",
        at=f"{file}:{own[0]['line']}" if own else str(file),
        got=got,
        fix=f"all that the compiler said is in {log}",
    )


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
            got=(str(error).strip().splitlines() or ["no word"])[0],
        ) from None
