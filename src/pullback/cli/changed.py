"""What a git diff touches: the files that differ from a commit, and what depends on them."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from pullback.cli.identity import Identity
from pullback.cli.sources import sources_of
from pullback.errors import TargetError


def changed_files(ref: str) -> frozenset[Path]:
    """The files that differ from where this branch left `ref`, untracked ones included."""
    top = Path(_git("rev-parse", "--show-toplevel").strip())
    start = _start(ref)
    listed = _git("diff", "--name-only", "-z", "--diff-filter=d", start, "--", folder=top)
    listed += _git("ls-files", "--others", "--exclude-standard", "-z", folder=top)
    return frozenset((top / name).resolve() for name in listed.split("\0") if name)


def _start(ref: str) -> str:
    """The commit to compare with: the last that `ref` and this branch have in common."""
    commit = _git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", of=ref
    )
    found = subprocess.run(
        ["git", "merge-base", commit.strip(), "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or commit.strip()  # a shallow clone may have none in common


def _git(*args: str, folder: Path | None = None, of: str = "") -> str:
    try:
        done = subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise TargetError("--changed needs git", got="no such program") from None
    if done.returncode and of:
        fix = "write --changed=REF, or put the targets before --changed"
        raise TargetError(
            f"`{of}` must be a commit, a branch or a tag of this repository",
            got="none that git knows",
            fix=fix if os.path.exists(of) or ":" in of else "",
        )
    if done.returncode:
        raise TargetError(
            "--changed must be used in a git repository",
            got=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
        )
    return done.stdout


def is_touched(identity: Identity, files: Iterable[Path]) -> bool:
    """Whether a target, or anything of the user's that it imports, is in one of these files."""
    return identity.path is None or not set(files).isdisjoint(sources_of(identity.path))


def files_with_functions(files: Iterable[Path]) -> Iterator[str]:
    """Those of the files that define a Function by the look of it: they are not imported yet."""
    for path in sorted(files):
        if path.suffix == ".py" and path.is_file() and _defines_function(path):
            relative = os.path.relpath(path)
            yield relative if len(relative) < len(str(path)) else str(path)


def _defines_function(path: Path) -> bool:
    """Whether a class at the top of the file has a base called `...Function`, or one that has."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    known: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {_last_name(base) for base in node.bases}
        if bases & known or any(name.endswith("Function") for name in bases):
            known.add(node.name)
    return bool(known)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
