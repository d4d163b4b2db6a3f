"""How the package reads to somebody who would take it over, in numbers.

python -m tests.repo.house

The same table over time tells whether the package gets easier or harder to take over; `figures`
says where in it the lines are. The rows on rules and on a call run the package.
"""

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.repo.figures import (
    PACKAGE,
    chain_of,
    defined_twice,
    depth_of,
    folder_of,
    functions_with_many,
    line_counts,
    public_names,
    trees,
)

LONG = 50
"""Code lines beyond which a function is long."""

PRIVATE = ("_schema", "_version", "_cdata")
"""Attributes of PyTorch's that are not public; each is meant to be read in one module."""

MATRIX = Path(__file__).parents[1] / "check" / "gold" / "matrix.txt"
"""Which rules name each planted fault."""


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many lines of a function hold code; its docstring, comments and blank lines do not."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    nodes = [node for statement in body for node in ast.walk(statement)]
    return len({line for node in nodes if (line := getattr(node, "lineno", None)) is not None})


def functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of the package."""
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def numeric_constants() -> dict[str, set[float]]:
    """The numbers that modules name at their top: the values of each name."""
    found = defaultdict(set)
    for tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                value = node.value.value
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found[ast.unparse(node.targets[0])].add(value)
    return found


def broad_handlers(tree: ast.Module) -> int:
    """How many handlers of a module catch `Exception` of any kind."""
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return sum(isinstance(one.type, ast.Name) and one.type.id == "Exception" for one in handlers)


def private_uses(name: str) -> Counter[str]:
    """How often each module reads a private attribute."""
    found = Counter[str]()
    for module, tree in trees().items():
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        found[module] += sum(node.attr == name for node in nodes)
    return +found


def rules_by_faults() -> Counter[str]:
    """How many planted faults each rule names."""
    found = Counter[str]()
    for line in MATRIX.read_text("utf-8").splitlines():
        found.update(line.partition(":")[2].split())
    return found


def rule_names() -> set[str]:
    """The names of all rules."""
    from pullback.check.rules import all_rules  # imports every rule

    return {one.rule.name for one in all_rules()}


def touched_by_a_call() -> tuple[int, int, int]:
    """Files, functions and calls of the package in one warm call of a derived Function."""
    import torch  # the package itself is only read elsewhere

    import pullback as pb

    x = torch.randn(8, requires_grad=True)
    derived = pb.derive(lambda x: x.sin() * 2, x)
    for _ in range(3):
        derived.apply(x)
    seen = Counter[tuple[str, str]]()

    def note(frame, event, argument):
        if event == "call" and str(PACKAGE) in frame.f_code.co_filename:
            seen[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        derived.apply(x)
    finally:
        sys.setprofile(None)
    return len({file for file, _ in seen}), len(seen), seen.total()


def rows() -> Iterator[tuple[str, str]]:
    """What is counted, and how many there are."""
    sizes = sorted(line_counts().values())
    yield "modules / lines", f"{len(sizes)} / {sum(sizes):,}"
    p90 = statistics.quantiles(sizes, n=10)[-1]
    yield "module: median / p90 / max", f"{statistics.median(sizes):.0f} / {p90:.0f} / {sizes[-1]}"
    long = sum(code_lines(one) > LONG for one in functions())
    yield f"functions over {LONG} code lines", f"{long} of {sum(1 for _ in functions()):,}"
    many = sum(map(functions_with_many, trees().values()))
    yield "functions with more than 4 parameters", f"{many}"
    top = max(trees(), key=depth_of)
    yield "import depth", f"{depth_of(top)} ({' > '.join(folders_on(chain_of(top)))})"
    every = sum(len(set(public_names(tree))) for tree in trees().values())
    yield "public names in more than one module", f"{len(defined_twice())} of {every:,}"
    numbers = numeric_constants()
    several = sum(len(values) > 1 for values in numbers.values())
    yield "module-level numbers", f"{len(numbers)}, {several} names with several values"
    exported = [n for n in trees()["pullback.extend"].body if isinstance(n, ast.ImportFrom)]
    yield "names of the extension API", f"{sum(len(one.names) for one in exported)}"
    broad = {module: broad_handlers(tree) for module, tree in trees().items()}
    in_check = sum(n for module, n in broad.items() if folder_of(module) == "check")
    yield "`except Exception`", f"{sum(broad.values())}, {in_check} in check"
    for name in PRIVATE:
        uses = private_uses(name)
        yield f"`.{name}`", f"{uses.total()} in {len(uses)} modules"
    known, named = rule_names(), rules_by_faults()
    few = [sum(named[rule] <= most for rule in known) for most in (0, 1, 3)]
    yield (
        "rules: all / naming no fault / at most 1 / at most 3",
        (f"{len(known)} / {few[0]} / {few[1]} / {few[2]}"),
    )
    files, calls, hops = touched_by_a_call()
    yield "one warm `D.apply`: files / functions / calls", f"{files} / {calls} / {hops}"


def folders_on(chain: list[str]) -> list[str]:
    """The folders that a chain of imports passes through, each once."""
    return list(dict.fromkeys(map(folder_of, chain)))


def main() -> None:
    """Print the table, in Markdown."""
    print("| | now |\n|---|---|")
    for what, count in rows():
        print(f"| {what} | {count} |")


if __name__ == "__main__":
    main()
