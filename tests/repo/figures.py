"""The size of the package in numbers, by folder: `make lint` prints them, so that growth is seen.

python -m tests.repo.figures
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = SOURCE / "pullback"
MANY = 4
"""Parameters beyond which a function has many."""

SHARED = {"check", "prepare", "render", "serve", "command", "main"}
"""Names that every file of a kind defines by agreement: rules their `check` and what `prepare`s it,
formats `render`, what is started in a process of its own `serve`, commands and programs."""

PROTOCOLS = {"pullback.derive.missing"}
"""Modules whose functions are the methods of a protocol (here `function.unwritten.Derivation`)."""


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a module's text, parsed once for all who walk it; nobody changes it."""
    return ast.parse(text)


@cache
def trees() -> dict[str, ast.Module]:
    """The parsed modules, by their dotted names."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {_name(path): parsed(path.read_text("utf-8")) for path in paths}


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module: str) -> str:
    """The folder of the package that a module stands in; the module itself at the top."""
    return module.split(".")[1] if "." in module else module


def is_face(module: str) -> bool:
    """Whether a module is the `__init__` of a folder of the package, or of the package itself."""
    return module.count(".") < 2 and _path(module).name == "__init__.py"


# ---- names and parameters ----


def public_names(tree: ast.Module) -> Iterator[str]:
    """The classes and functions that a module defines at its top, but for private ones."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_") and node.name not in SHARED:
            yield node.name


def defined_twice() -> dict[str, list[str]]:
    """The public names that stand in more than one module, with these.

    The verbs at the face of a folder and in `cli` are left out: they import what does the work.
    """
    places: dict[str, list[str]] = defaultdict(list)
    inner = (m for m in trees() if not (is_face(m) or m in PROTOCOLS or folder_of(m) == "cli"))
    for module, tree in ((module, trees()[module]) for module in inner):
        for name in dict.fromkeys(public_names(tree)):
            places[name].append(module)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def functions_with_many(tree: ast.Module) -> int:
    """How many functions take more than a few parameters besides `self`."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [
                a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ]
            count += len([name for name in names if name not in ("self", "cls")]) > MANY
    return count


# ---- imports ----


def imports_of(tree: ast.Module) -> set[str]:
    """The modules of the package that one imports at its top."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pullback"):
            joined = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in trees() else str(node.module) for name in joined}
    return found


@cache
def depth_of(module: str) -> int:
    """The length of the longest chain of imports that begins with a module."""
    below = imports_of(trees()[module]) - {module}
    return 1 + max((depth_of(one) for one in below if one in trees()), default=0)


def chain_of(module: str) -> list[str]:
    """The longest chain of imports that begins with a module."""
    below = [one for one in sorted(imports_of(trees()[module]) - {module}) if one in trees()]
    return [module, *(chain_of(max(below, key=depth_of)) if below else [])]


def line_counts() -> dict[str, int]:
    """How many lines each module has."""
    return {module: len(_path(module).read_text("utf-8").splitlines()) for module in trees()}


def main() -> None:
    """Print the table."""
    rows: dict[str, list[str]] = defaultdict(list)
    for module in trees():
        rows[folder_of(module)].append(module)
    lines = line_counts()
    print(
        f"{'folder':<12}{'files':>7}{'lines':>8}{'longest':>9}{'depth':>7}{'many parameters':>17}"
    )
    for folder, modules in [*sorted(rows.items()), ("all", list(trees()))]:
        sizes = [lines[m] for m in modules]
        depth, many = (
            max(map(depth_of, modules)),
            sum(functions_with_many(trees()[m]) for m in modules),
        )
        row = (len(modules), sum(sizes), max(sizes), depth, many)
        print(f"{folder:<12}{row[0]:>7}{row[1]:>8}{row[2]:>9}{row[3]:>7}{row[4]:>17}")
    print(f"public names that stand in more than one module: {len(defined_twice())}")
    longest = chain_of(max(trees(), key=depth_of))
    print("longest chain of imports:", " > ".join(one.removeprefix("pullback.") for one in longest))


def _path(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    main()
