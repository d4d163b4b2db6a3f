"""Targets by name: `module:name`, `file.py:name`, `torch.ops.namespace.op`."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import tokenize
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any, TypeVar

import torch

from pullback.capture.places import is_users_file
from pullback.errors import TargetError

OPS = "torch.ops."
T = TypeVar("T")
LIBRARIES = (".so", ".dylib", ".dll", ".pyd")
MOST = 8  # names that are listed
REGISTERS = "load the library that registers it (--load lib.so), or name the Python file that does"


def load(target: str) -> Any:
    """The object that `target` names: `module:name`, `file.py:name` or `torch.ops.space.op`."""
    _require_name(target)
    if target.startswith(OPS):
        return _op(target)
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise TargetError(
            f"`{target}` must name a module and an object in it",
            expected="module:name, or file.py:name",
            got=repr(target),
        )
    module = module_of(where)
    try:
        return _member(module, name)
    except AttributeError:
        raise TargetError(
            f"`{where}` must have `{name}`",
            got=f"names such as {', '.join(_like(name, _own_names(module)))}",
        ) from None


def _member(owner: Any, name: str) -> Any:
    """`owner.a.b` for the name `a.b`."""
    return reduce(getattr, name.split("."), owner)


def path_of(thing: Any) -> str:
    """`module:Name` of a class or function, as it says of itself; empty where it says nothing.

    What is built into PyTorch names no module: it stands in `torch`.
    """
    is_builtin = isinstance(thing, BuiltinFunctionType)
    name = getattr(thing, "__name__" if is_builtin else "__qualname__", "")
    module = getattr(thing, "__module__", None) or ("torch" if is_builtin else "")
    return f"{module}:{name}" if module and name else ""


def already_loaded(path: str) -> Any:
    """What `module:name` is in this process, which imports nothing for it; None if nothing."""
    module, _, name = path.partition(":")
    try:
        return _member(sys.modules.get(module), name)
    except AttributeError:
        return None


def module_of(where: str) -> ModuleType:
    """The module that `where` names, by its name or its file."""
    _require_name(where)
    path = Path(where)
    if where.endswith(".py"):
        if not path.is_file():
            raise TargetError(f"`{where}` must be a file", got="no such file", fix=_meant(path))
        return _of_file(path)
    if where.endswith(LIBRARIES) and path.is_file():
        raise TargetError(
            f"`{where}` must be a Python file or module",
            got="a library",
            fix=f"name the ops that it registers: torch.ops.NAMESPACE --load {where}",
        )
    if path.is_file():
        raise TargetError(
            f"`{where}` must be a Python file or module",
            expected="a file whose name ends in .py",
            got=f"a file that ends in {path.suffix}" if path.suffix else "a file without an ending",
        )
    if path.is_dir() and (os.sep in where or not (path / "__init__.py").is_file()):
        raise TargetError(
            f"`{where}` must be a file or a module",
            got="a folder",
            fix=f"name its files: {path / '*.py'}",
        )
    _look_in(os.getcwd())
    return _executed(where, lambda: importlib.import_module(where))


def _require_name(target: str) -> None:
    """Raise where there is nothing to look for."""
    if not target.strip():
        raise TargetError(
            "a target must have a name",
            expected="file.py, file.py:Name, module:Name, or torch.ops.namespace.op",
            got="an empty text",
            fix="if it came from a variable of the shell, that is not set",
        )


def _require_text(path: Path) -> None:
    """Raise unless a file is Python's: text, in the encoding that it names."""
    try:
        with tokenize.open(path) as file:
            is_text = "\0" not in file.read()
    except (SyntaxError, UnicodeDecodeError):
        is_text = False
    if not is_text:
        raise TargetError(f"`{path}` must be a Python file", got="a file that is not text")


def _of_file(path: Path) -> ModuleType:
    _require_text(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"`{path}` must be a Python file", got="a file that is none")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    top, name = module_path(path.resolve())
    if name != path.stem and (_imports_package(path, name) or _is_taken(path)):
        _look_in(str(top), os.getcwd())
        return _executed(str(path), lambda: importlib.import_module(name))
    sys.modules[path.stem] = module
    _look_in(str(path.parent.resolve()), os.getcwd())
    _executed(str(path), lambda: loader.exec_module(module))
    return module


def module_path(path: Path) -> tuple[Path, str]:
    """The folder above the packages that a file lies in, and its name as a module from there."""
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, names = folder.parent, [folder.name, *names]
    return folder, ".".join(names)


def _imports_package(path: Path, name: str) -> bool:
    """Whether the file of the module `name` imports anything of its own package."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return False  # which Python says when the file is run
    imported = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    imported += [
        "." * one.level + (one.module or "") for one in nodes if isinstance(one, ast.ImportFrom)
    ]
    return any(one.partition(".")[0] in ("", name.partition(".")[0]) for one in imported)


def _is_taken(path: Path) -> bool:
    """Whether the file, as a module of its own, would stand in the place of another one."""
    there = getattr(sys.modules.get(path.stem), "__file__", None)
    is_pythons = path.stem in sys.stdlib_module_names
    return is_pythons or (there is not None and Path(there).resolve() != path.resolve())


def _look_in(*folders: str) -> None:
    """Let Python find modules in these folders, as `python file.py` and `python -m` do."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _executed(where: str, execute: Callable[[], T]) -> T:
    """What `execute` gives, which runs the module `where`; what it raises becomes `TargetError`."""
    try:
        return execute()
    except ModuleNotFoundError as error:
        if error.name and f"{where}.".startswith(f"{error.name}."):
            raise TargetError(
                f"`{where}` must be a module that Python finds from here",
                got=str(error),
                fix="run from the folder that holds it, or name a file: path/to/file.py:name",
            ) from None
        raise _broken(where, error) from None
    except (Exception, SystemExit) as error:
        raise _broken(where, error) from None


def _broken(where: str, error: BaseException) -> TargetError:
    """The error for a module that raises while it is imported."""
    said = f"{error.msg}: {error.text}" if isinstance(error, SyntaxError) else str(error)
    shown = f"{type(error).__name__}: {said.strip()}" if said else type(error).__name__
    fix = ""
    if isinstance(error, ModuleNotFoundError):
        fix = _from_where(error)
    if isinstance(error, SystemExit):
        fix = 'put what is to run only as a program under `if __name__ == "__main__":`'
    return TargetError(
        f"`{where}` must be something that Python can import",
        at=_raised_at(error),
        got=shown.splitlines()[0],
        fix=fix,
    )


def _from_where(error: ModuleNotFoundError) -> str:
    """What to do about a module that is not found: it may lie above the file that imports it."""
    name = (error.name or "").partition(".")[0]
    file = Path(_raised_at(error).rpartition(":")[0]).resolve()
    for folder in file.parents:
        if name and ((folder / name).is_dir() or (folder / f"{name}.py").is_file()):
            return f"run from {os.path.relpath(folder)}, which holds `{name}`"
    return "install it, or run pullback in the environment of your project"


def _raised_at(error: BaseException) -> str:
    """The line of the user's that raised, or that cannot be read."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.relpath(error.filename)}:{error.lineno}"
    place, entry = "", error.__traceback__
    while entry is not None:
        path = entry.tb_frame.f_code.co_filename
        if is_users_file(path):
            place = f"{os.path.relpath(path)}:{entry.tb_lineno}"
        entry = entry.tb_next
    return place


# ---- what may have been meant ----


def _own_names(module: ModuleType) -> list[str]:
    """The public names of a module but for the modules that it imports."""
    names = {n: v for n, v in vars(module).items() if not n.startswith("_")}
    return sorted(n for n, v in names.items() if not isinstance(v, ModuleType))


def _like(name: str, known: Iterable[str]) -> list[str]:
    """The names that are like `name`, else the first ones."""
    known = list(known)
    return get_close_matches(name, known, 3) or known[:MOST] or ["none"]


def _meant(path: Path) -> str:
    """The Python file beside `path` with a name like it."""
    beside = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = get_close_matches(path.name, beside, 1)
    return f"did you mean {path.parent / near[0]}?" if near else ""


# ---- ops ----


def _op(target: str) -> Any:
    """The op of the dispatcher that `torch.ops.space.op` or `torch.ops.space.op.overload` names."""
    space, _, path = target.removeprefix(OPS).partition(".")
    if not path:
        _require_namespace(space)
    found: Any = getattr(torch.ops, space)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):
            known = ops_of(space)
            near = get_close_matches(part, known, 3) or (known if len(known) <= MOST else [])
            meant = " or ".join(f"{OPS}{space}.{name}" for name in near)
            raise TargetError(
                f"`{target}` must be an op that is registered",
                expected=meant or "torch.ops.namespace.name, or with .overload after it",
                got=f"no `{part}`",
                fix="" if near else REGISTERS,
            ) from None
    return found


def _require_namespace(space: str) -> None:
    """Raise unless ops are registered in a namespace, which is named without an op."""
    every = {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    near = get_close_matches(space, every, 3)
    if not ops_of(space):
        raise TargetError(
            f"`{OPS}{space}` must be a namespace in which ops are registered",
            expected=" or ".join(f"{OPS}{name}" for name in near),
            got="none" if space else "no name",
            fix=REGISTERS,
        )
    raise TargetError(
        f"`{OPS}{space}` must name an op in it",
        expected=" or ".join(f"{OPS}{space}.{name}" for name in ops_of(space)[:3]),
        got="a namespace",
    )


def ops_of(space: str) -> list[str]:
    """The names of the ops in a namespace of the dispatcher, without their overloads."""
    every = torch._C._dispatch_get_all_op_names()
    own = (name.removeprefix(f"{space}::") for name in every if name.startswith(f"{space}::"))
    return sorted({name.partition(".")[0] for name in own})
