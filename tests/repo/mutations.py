"""Mutations planted in the package, and whether its tests find them.

python -m tests.repo.mutations                     # 40 of them, found by the quick tests or not
python -m tests.repo.mutations --count 5 --seed 7  # others
python -m tests.repo.mutations --all               # with the slow tests, too
python -m tests.repo.mutations --only compose      # in one folder
python -m tests.repo.mutations --near              # with the tests of its own module alone, or
                                                   # those that name it: about a minute each

Each is one small change to one line of a copy of the tree: a comparison turned around, `and` for
`or`, a condition negated, a number off by one, plus for minus, a result that is lost. The tests of
the changed module run first, or those that name it, then those of its folder, then all, until one
fails that passes without the mutation. A mutation that none finds is printed as a diff, to be read:
either a test is missing, or the change has no visible effect (a time limit, the text of an internal
error).
"""

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/pullback")
COUNT = 40
SECONDS = 900
"""For the tests of one stage. One that ran longer is printed as such: it may be a loop without
end, or a busy machine."""

UNENDED = "did not end"

OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}


@dataclass(frozen=True)
class Mutation:
    """One changed expression or statement of one file: its place, the old text and the new."""

    path: Path
    line: int
    begin: int
    end: int
    new: str

    def apply(self, root: Path) -> None:
        """Change the file in a copy of the tree."""
        file = root / self.path
        text = file.read_bytes()
        file.write_bytes(text[: self.begin] + self.new.encode() + text[self.end :])

    def diff(self) -> str:
        """What it changes, for a reader."""
        old = (ROOT / self.path).read_bytes()
        new = old[: self.begin] + self.new.encode() + old[self.end :]
        lines = (text.decode().splitlines(keepends=True) for text in (old, new))
        return "".join(difflib.unified_diff(*lines, str(self.path), str(self.path), n=2))


# ---- what can be changed ----


def mutations_of(path: Path) -> list[Mutation]:
    """Every mutation of one file, in the order of its lines."""
    text = (ROOT / path).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, new in _changes(ast.parse(text)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        found.append(Mutation(path, node.lineno, begin, end, new))
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes inside functions, each with the text that takes its place."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            # What stands in a formatted text has no place of its own before Python 3.12.
            texts = [n for n in ast.walk(statement) if isinstance(n, ast.JoinedStr)]
            inside = {id(part) for text in texts for part in ast.walk(text)}
            for node in ast.walk(statement):
                changed = _changed(node) if id(node) not in inside else None
                if changed is not None and isinstance(node, ast.expr | ast.stmt):
                    yield node, ast.unparse(changed)


def _changed(node: ast.AST) -> ast.AST | None:
    """The node with the opposite meaning; None where there is none."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            return ast.Compare(node.left, [OPPOSITE[type(op)]()], node.comparators)  # type: ignore[list-item]
        case ast.BoolOp():
            return ast.BoolOp(OPPOSITE[type(node.op)](), node.values)  # type: ignore[arg-type]
        case ast.BinOp() if type(node.op) in OPPOSITE and not _is_text(node):
            return ast.BinOp(node.left, OPPOSITE[type(node.op)](), node.right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return ast.Constant(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
    return None


def _is_text(node: ast.BinOp) -> bool:
    """Whether two texts are joined, which nothing but `+` can do."""
    kinds = ast.JoinedStr, ast.Constant, ast.List, ast.Tuple
    return any(isinstance(side, kinds) for side in (node.left, node.right))


def drawn_mutations(count: int, seed: int, only: str = "") -> list[Mutation]:
    """As many mutations, each in another file, drawn from all there are."""
    draw = random.Random(seed)
    paths = [p.relative_to(ROOT) for p in sorted((ROOT / PACKAGE / only).rglob("*.py"))]
    sizes = [(ROOT / path).stat().st_size for path in paths]
    found: dict[Path, Mutation] = {}
    while len(found) < min(count, len(paths)):
        (path,) = draw.choices(paths, sizes)
        possible = mutations_of(path)
        sizes[paths.index(path)] = 0
        if possible:
            found[path] = draw.choice(possible)
        if not any(sizes):
            break
    return list(found.values())


# ---- which tests look at it ----


def stages_of(path: Path) -> list[list[str]]:
    """Tests to try in turn: those of the module, or that name it, those of its folder, all."""
    inside = path.relative_to(PACKAGE).with_suffix("")
    beside, top = ROOT / "tests" / inside.parent, ROOT / "tests" / inside.parts[0]
    own = [p for p in (beside / f"test_{inside.name}.py", beside / inside.name) if p.exists()]
    rest = [[folder] for folder in (beside, top) if folder.exists() and folder != ROOT / "tests"]
    stages = [*([test] for test in own), *([] if own else [_naming(path, top)]), *rest]
    named = [[str(test.relative_to(ROOT)) for test in stage] for stage in stages if stage]
    unique = [stage for i, stage in enumerate(named) if stage not in named[:i]]
    return [*unique, ["tests"]]


def _naming(path: Path, folder: Path) -> list[Path]:
    """The test files in a folder that import a module, or are of a rule in it."""
    *parents, leaf = path.relative_to("src").with_suffix("").parts
    package = re.escape(".".join(parents))
    imported = re.compile(rf"{package}\.{leaf}\b|from {package} import [^\n(]*\b{leaf}\b")
    rules = re.findall(r'"([a-z]+(?:-[a-z]+)+)"', (ROOT / path).read_text("utf-8"))
    files = {f"test_{rule.replace('-', '_')}.py" for rule in rules if "rules" in parents}
    tests = sorted(folder.rglob("test_*.py"))
    return [test for test in tests if test.name in files or imported.search(test.read_text())]


def found_by(mutation: Mutation, *, marks: str, near: bool) -> str:
    """The test that fails with the mutation and passes without; empty where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        _copy_tree(copy)
        stages = stages_of(mutation.path)
        for stage in stages[:1] if near else stages:
            tests = stage
            while True:
                mutation.apply(copy)
                failed = _failed(copy, tests, marks)
                shutil.copy2(ROOT / mutation.path, copy / mutation.path)
                if not failed or failed == UNENDED:
                    break
                if not _failed(copy, [failed], marks):
                    return failed
                tests = [*tests, f"--deselect={failed}"]
            if failed:
                return f"{UNENDED}: {stage[0]}"
    return ""


def _copy_tree(copy: Path) -> None:
    """The files that git tracks, as they are here."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def _failed(copy: Path, tests: list[str], marks: str) -> str:
    """The first test that fails; the file or folder where a failure has no test's name."""
    settings = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    settings["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            [*command, *(["-m", marks] if marks != "default" else [])],
            cwd=copy,
            env=settings,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UNENDED
    if done.returncode in (0, 5):  # 5: no test was selected
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return named[1] if named else tests[0]


def main() -> int:
    """Plant, try, print; the exit code is the number of mutations that no test found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a folder of the package")
    parser.add_argument("--near", action="store_true", help="run the first of these stages alone")
    parser.add_argument("--all", action="store_true", help="run the slow tests, too")
    asked = parser.parse_args()
    missed = []
    planted = drawn_mutations(asked.count, asked.seed, asked.only)
    for mutation in planted:
        where = found_by(mutation, marks="" if asked.all else "default", near=asked.near)
        print(f"{mutation.path}:{mutation.line}: {where or 'NOT FOUND'}", flush=True)
        missed += [] if where else [mutation]
    for mutation in missed:
        print(f"\n{mutation.diff()}")
    print(f"{len(planted) - len(missed)} of {len(planted)} found")
    return min(len(missed), 100)


if __name__ == "__main__":
    sys.exit(main())
