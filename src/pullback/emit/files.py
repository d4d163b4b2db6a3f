"""Files on disk: each is written whole or not at all, and no other text is overwritten."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pullback.errors import EmitPathError


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise `EmitPathError` unless the folder that `path` is to stand in is there."""
    place = Path(path)
    if not place.parent.is_dir():
        raise EmitPathError(
            f"`{place}` must stand in a folder that exists",
            got=f"no folder `{place.parent}`",
            fix=f"mkdir -p {place.parent}",
        )


def write_files(
    files: Mapping[str, str], main: str, path: str | os.PathLike[str], *, force: bool = False
) -> list[Path]:
    """Write `files` into the folder `path`, or `main` alone to `path` if that names a file.

    A path names a file if it ends as `main` does. A file that has this very text already stays as
    it is; one with another text is replaced only by `force`. Gives the paths of the files.
    """
    place = Path(path)
    if place.suffix == Path(main).suffix and not place.is_dir():
        wanted = {place: files[main]}
    elif place.is_dir() or len(files) > 1:
        wanted = {place / name: text for name, text in files.items()}
    else:
        wanted = {place: files[main]}
    for one, text in wanted.items():
        _require_free(one, text, force=force)
    for one, text in wanted.items():
        one.parent.mkdir(exist_ok=True)
        _write(one, text)
    return list(wanted)


def _require_free(path: Path, text: str, *, force: bool) -> None:
    """Raise `EmitPathError` if another text would be lost."""
    if path.is_dir():
        raise EmitPathError(
            f"`{path}` must be a file to be written", got="a folder", fix="name a file in it"
        )
    if force or not path.exists():
        return
    if _text(path) != text:
        raise EmitPathError(
            f"`{path}` must not hold another text that would be lost",
            got="a file that is there already, and differs",
            fix="name another file, or replace it: force=True, on the command line --force",
        )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    """Write beside `path`, then move into its place: no reader ever sees half a file."""
    if _text(path) == text:
        return
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritten(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(beside, path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        os.replace(beside, path)
    except OSError as error:
        Path(beside).unlink(missing_ok=True)
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> EmitPathError:
    return EmitPathError(f"`{path}` must be a place to write to", got=error.strerror or str(error))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
