"""The cache on disk: one folder per compiled graph, complete or absent.

A folder is filled under a lock, then sealed with a manifest: the checksum of every file, and what
the folder was made from and for. A folder without a manifest that fits, to the last byte, is
emptied: what was cut short, damaged, or made by another torch or machine is made again.

The cache lives under `PULLBACK_CACHE_DIR`, by default in the user's cache folder. It keeps the
`LIMIT` entries that were used last; `clear()` empties it, and so does removing the folder. What it
holds is run, so nobody else may write to it (`private`). Whatever is wrong with it is an `OSError`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pullback.run.disk.private import OpenFolderError, is_own, require_private

LIMIT = 1000
"""How many entries are kept: some hundred kilobytes each."""

_FORMAT = 1  # of the folders; counted up when their meaning changes
_MANIFEST = "manifest"
_COMPILER = "torch.compile"


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder of the cache, and the text of all that its content depends on."""

    folder: Path
    origin: str

    def facts(self) -> dict[str, Any] | None:
        """What the folder was sealed with; None unless every file of it is as it was then."""
        try:
            checksum, _, body = self._manifest.read_bytes().partition(b"\n")
            if checksum.decode() != _digest(body):
                return None
            content = json.loads(body)
            if content["origin"] != self.origin or not self._holds(content["files"]):
                return None
            if not is_own(self.folder):
                return None
            self._remove_strays(content["files"])
            os.utime(self._manifest)
        except (OSError, ValueError, KeyError):
            return None
        facts: dict[str, Any] = content["facts"]
        return facts

    def _holds(self, files: Mapping[str, str]) -> bool:
        paths = {self.folder / name: checksum for name, checksum in files.items()}
        return all(is_own(p) and _digest(p.read_bytes()) == c for p, c in paths.items())

    def has_grown(self) -> bool:
        """Whether there are files that were not there when the folder was sealed."""
        body = self._manifest.read_bytes().partition(b"\n")[2]
        return len(self._files()) != len(json.loads(body)["files"])

    def _remove_strays(self, files: Mapping[str, str]) -> None:
        """Remove what came after the sealing: nobody knows whether that is whole."""
        for path in self._files():
            if str(path.relative_to(self.folder)) not in files:
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        paths = sorted(self.folder.rglob("*"))
        return [path for path in paths if path.is_file() and path != self._manifest]

    def empty(self) -> None:
        """Make the folder, with nothing in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.mkdir(exist_ok=True, mode=0o700)
        if not is_own(self.folder):
            raise OpenFolderError(f"`{self.folder}` is open to others, and cannot be removed")

    def seal(self, facts: Mapping[str, Any]) -> None:
        """Say that the folder is complete, with `facts` about it."""
        files = {str(p.relative_to(self.folder)): _digest(p.read_bytes()) for p in self._files()}
        content = {"origin": self.origin, "facts": dict(facts), "files": files}
        body = json.dumps(content).encode()
        unfinished = self._manifest.with_suffix(".new")
        unfinished.write_bytes(_digest(body).encode() + b"\n" + body)
        unfinished.replace(self._manifest)

    @property
    def _manifest(self) -> Path:
        return self.folder / _MANIFEST


@contextlib.contextmanager
def entry(origin: str, *, within: Path | None = None, wait: bool = True) -> Iterator[Entry]:
    """The folder for what is made from `origin`; other processes wait until the block ends.

    It is in the cache, or `within` a folder of the user's, in which nothing is ever forgotten.
    Where somebody else has it and this is not to `wait`, raises `Timeout`; where the folder cannot
    be used, or others can write to it, another `OSError`.
    """
    origin = f"{environment()}\n{origin}"
    key = _digest(origin.encode())
    place = root() if within is None else within.resolve()
    require_private(place)
    with _locked(place, key, wait=wait):
        yield Entry(place / key[:2] / key, origin)
        if within is None:
            _forget_oldest(key)


def clear() -> None:
    """Remove every entry; what is in use goes on working."""
    for folder in _folders():
        with contextlib.suppress(Timeout), _locked(root(), folder.name, wait=False):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in (headers(), root() / _COMPILER):
        shutil.rmtree(folder, ignore_errors=True)


def headers() -> Path:
    """The folder of the headers that Inductor compiles once for all kernels."""
    return root() / "headers"


def compiler_folder() -> Path:
    """The folder of what `torch.compile` keeps for our checks; raises where others write to it."""
    require_private(root())
    return root() / _COMPILER


def root() -> Path:
    """The folder of the cache, which is this user's own."""
    return _own(os.environ.get("PULLBACK_CACHE_DIR") or str(_default()))


@functools.cache
def _own(name: str) -> Path:
    path = Path(name).resolve() / "compiled"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_ours = not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
        if is_ours and os.access(path, os.W_OK | os.X_OK):
            return path
    except OSError:
        pass
    # It holds code that is run: nothing that another user may write to. This one is not kept.
    instead = Path(tempfile.mkdtemp(prefix="pullback-")).resolve()
    atexit.register(_remove, instead, os.getpid())
    return instead


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder at the end of the process that made it, and of no fork of that."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _default() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "pullback" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pullback"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pullback"


@functools.cache
def environment() -> str:
    """What compiled code depends on besides its source: torch, Python, and the machine."""
    parts = (
        f"format {_FORMAT}",
        f"torch {torch.__version__} {torch.version.git_version}",
        f"python {sys.version_info[:3]} {sysconfig.get_config_var('SOABI')}",
        f"machine {sys.platform} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        f"processor {_processor()}",
    )
    return "\n".join(parts)


def _processor() -> str:
    """What the processor can do, as far as the system tells."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.partition(":")[2].split()))
    return platform.processor()


# ---- locks and limits ----


def _locked(place: Path, key: str, *, wait: bool = True) -> FileLock:
    """The lock of an entry.

    Locks stay for ever, so there are not as many as keys; and enough that nobody waits by chance
    for a library that takes half a minute.
    """
    folder = place / "locks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return FileLock(folder / _lock_name(key), timeout=-1 if wait else 0)


def _lock_name(key: str) -> str:
    return key[:4]


def _folders() -> list[Path]:
    return [path for path in root().glob("??/*") if path.is_dir()]


def _forget_oldest(newest: str) -> None:
    folders = _folders()
    if len(folders) <= LIMIT:
        return
    for folder in sorted(folders, key=_last_use)[: len(folders) - LIMIT * 9 // 10]:
        if _lock_name(folder.name) == _lock_name(newest):
            continue  # its lock is ours
        with contextlib.suppress(Timeout), _locked(root(), folder.name, wait=False):
            shutil.rmtree(folder, ignore_errors=True)


def _last_use(folder: Path) -> float:
    try:
        return (folder / _MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
