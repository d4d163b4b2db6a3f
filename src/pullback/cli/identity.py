"""Who a target is: the names that settings and baselines may call it by, and its file.

`my_ops.py:Swish` on the command line and `package.my_ops:Swish` are one Function. Files are told
from the folder of the settings, with slashes, so that they are the same wherever the command runs.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path

from pullback.check.target.naming import module_path
from pullback.check.target.registration import body_of
from pullback.check.target.target import Target


@dataclass(frozen=True, slots=True)
class Identity:
    """One target: the name on the command line, all its names, and the file that defines it."""

    name: str
    names: tuple[str, ...]
    file: str = ""  # from the root, with slashes; empty where there is none
    path: Path | None = None


def identity_of(name: str, target: Target, root: Path) -> Identity:
    """Who the target called `name` on the command line is."""
    thing = target.function if target.function is not None else target.thing
    thing = (body_of(thing) or thing) if target.is_op else thing
    path = source_text(thing)
    own = getattr(thing, "__qualname__", "") or target.name
    called = (target.name, own) if target.is_op else (own,)  # the bodies of ops may share a name
    names = [name, *(f"{getattr(thing, '__module__', '')}:{one}" for one in called)]
    if path is None:
        return Identity(name, tuple(dict.fromkeys(names)))
    file = from_root(path, root)
    names += [f"{where}:{one}" for where in (file, module_path(path)[1]) for one in called]
    return Identity(name, tuple(dict.fromkeys(names)), file, path)


def source_text(thing: object) -> Path | None:
    """The file that defines a class or a function; None where there is none."""
    try:
        found = inspect.getsourcefile(inspect.unwrap(thing))  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None
    return Path(found).resolve() if found and Path(found).is_file() else None


def from_root(path: Path, root: Path) -> str:
    """A file as it is called from the root of the settings."""
    try:
        return Path(os.path.relpath(path.resolve(), root.resolve())).as_posix()
    except ValueError:  # another drive
        return path.as_posix()
