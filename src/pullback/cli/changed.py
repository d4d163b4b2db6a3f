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

HEAD = "HEAD"
OP_MAKERS = ("custom_op", "triton_op")  # of torch.library


def changed_files(ref: str) -> frozenset[Path]:
    """The files that differ from where this branch left `ref`, untracked ones included."""
    top = Path(_git("rev-parse", "--show-toplevel").strip())
    start = _start(ref)
    listed = _git("diff", "--name-only", "-z", "--diff-filter=d", start, "--", folder=top)
    listed += _git("ls-files", "--others", "--exclude-standard", "-z", folder=top)
    return frozenset((top / name).resolve() for name in listed.split("\0") if name)


def _start(ref: str) -> str:
    """The commit to compare with: the last that `ref` and this branch have in common.

    Before the first commit of a branch, that is the tree without files.
    """
    head = subprocess.run(["git", "rev-parse", "--verify", "--quiet", HEAD], capture_output=True)
    if ref == HEAD and head.returncode:
        return _git("hash-object", "-t", "tree", os.devnull).strip()
    commit = _git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", of=ref
    )
    found = subprocess.run(
        ["git", "merge-base", commit.strip(), HEAD], capture_output=True, text=True, check=False
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


def python_files(folder: Path) -> Iterator[Path]:
    """The Python files in a folder and those below; not in hidden ones, nor in environments."""
    for top, folders, files in os.walk(folder):
        inner = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in inner if not (Path(top, name) / "pyvenv.cfg").is_file()]
        yield from (Path(top, name) for name in files if name.endswith(".py"))


def files_with_functions(files: Iterable[Path]) -> Iterator[str]:
    """Those of the files that define a Function or an op by the look of it: none is imported."""
    for path in sorted(files):
        if path.suffix == ".py" and path.is_file() and _defines_function(path):
            relative = os.path.relpath(path)
            yield relative if len(relative) < len(str(path)) else str(path)


def _defines_function(path: Path) -> bool:
    """Whether a class at the top of the file has a base called `...Function`, or an op is made."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    renamed: set[str] = set()
    for node in _at_the_top(tree):
        if isinstance(node, ast.ImportFrom):
            renamed |= {one.asname for one in node.names if one.asname and _is_base(one.name)}
        elif isinstance(node, ast.ClassDef):
            if any(_is_base(name) or name in renamed for name in map(_last_name, node.bases)):
                return True
        elif _makes_op(node):
            return True
    return False


def _makes_op(node: ast.AST) -> bool:
    """Whether a function has a decorator that makes an op of it, or what is assigned is one."""
    if isinstance(node, ast.FunctionDef):
        made = node.decorator_list
    else:
        made = [node.value] if isinstance(node, ast.Assign) else []
    return any(isinstance(one, ast.Call) and _last_name(one.func) in OP_MAKERS for one in made)


def _is_base(name: str) -> bool:
    return name.endswith("Function")


def _at_the_top(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a file is imported, also those in `if` and `try`."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _at_the_top(node)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
