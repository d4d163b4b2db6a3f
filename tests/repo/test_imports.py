"""What our files import is declared: by the package, for development, or by what those bring."""

import ast
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs")
OURS = {
    "_pullback_cli",
    "_pullback_pytest",
    "_pullback_start",
    "benchmarks",
    "docs",
    "examples",
    "pullback",
    "tests",
}


def imported_in(text):
    """The packages that a module imports, but for those of Python and of ours."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - OURS - set(sys.stdlib_module_names)


def imported():
    """The packages that our files import."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    own = [path for path in paths if "gold" not in path.parts]
    return sorted(set().union(*(imported_by(path) for path in own)))


def imported_by(path):
    """What a file imports, but for the files beside it."""
    names = imported_in(path.read_text("utf-8"))
    return {name for name in names if not path.with_name(f"{name}.py").exists()}


def names_in(requirements):
    """The distributions that requirements name, in lower case."""
    return {re.match(r"[\w.-]+", one)[0].lower() for one in requirements}


def declared(text):
    """What a pyproject.toml asks for, and what torch and sympy are known to bring."""
    lists = re.findall(r"^(?:dependencies|dev) = \[(.*?)\]$", text, re.M | re.S)
    ours = names_in(re.findall(r'"([^"]+)"', "".join(lists)))
    brought = [*(requires("torch") or ()), *(requires("sympy") or ())]
    brought.append("triton")  # which builds of torch for a GPU require
    return ours, ours | names_in(one for one in brought if "extra ==" not in one)


def test_imports_are_declared():
    brought_by = packages_distributions()
    _, known = declared((ROOT / "pyproject.toml").read_text("utf-8"))
    names = imported()
    found = {name: {one.lower() for one in brought_by.get(name, [name])} for name in names}

    assert "torch" in names
    assert {name: by for name, by in found.items() if not by & known} == {}


def test_declared_versions_are_constrained():
    ours, _ = declared((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = names_in(line for line in lines if line and not line.startswith("#"))

    assert sorted(ours - pinned) == []


def test_planted_import_is_seen():
    text = "import os\nimport torch.fx\n\n\ndef late():\n    from yaml import safe_load\n"

    assert imported_in(text) == {"torch", "yaml"}


def test_file_beside_another_is_no_package(tmp_path):
    (tmp_path / "support.py").touch()
    path = tmp_path / "losses.py"
    path.write_text("import support\nimport yaml\n")

    assert imported_by(path) == {"yaml"}


def test_lists_of_project_are_read():
    text = 'dependencies = ["torch>=2.11", "rich"]\n[x]\ndev = [\n    "pytest>=8.2",\n]\n'

    assert declared(text)[0] == {"torch", "rich", "pytest"}
