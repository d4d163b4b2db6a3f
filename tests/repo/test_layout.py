"""`docs/layout.md` lists what is in the package; no module hides a function of its package."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "pullback"


def listed(text):
    """The paths that a layout names: the first cell of each row of its tables."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def present(package):
    """The folders (with a slash) and modules that stand directly in a package."""
    folders = [f"{p.name}/" for p in package.iterdir() if (p / "__init__.py").exists()]
    return folders + [path.name for path in package.glob("*.py")]


def test_layout_lists_the_package():
    paths = listed((ROOT / "docs" / "layout.md").read_text("utf-8"))
    inside = [path.removeprefix("src/pullback/") for path in paths if "src/pullback/" in path]

    assert sorted(inside) == sorted(present(PACKAGE))


def test_layout_names_only_what_exists():
    paths = listed((ROOT / "docs" / "layout.md").read_text("utf-8"))

    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def ranks(text):
    """The place of each layer in a pyproject.toml, from the top; those on one line share one."""
    lines = re.search(r"^layers = \[\n(.*?)^\]", text, re.M | re.S)[1].splitlines()
    return {name: place for place, line in enumerate(lines) for name in re.findall(r"\w+", line)}


def test_layout_stands_in_the_order_of_layers():
    of = ranks((ROOT / "pyproject.toml").read_text("utf-8"))
    paths = listed((ROOT / "docs" / "layout.md").read_text("utf-8"))
    names = [Path(path).stem for path in paths if path.startswith("src/pullback/")]
    places = [of[name] for name in names if name != "__init__"]

    assert len(places) == len(of)
    assert places == sorted(places)


def test_layers_of_one_line_share_a_place():
    assert ranks('layers = [\n    "(cli)",\n    "(check) | (plan)",\n]\n') == {
        "cli": 0,
        "check": 1,
        "plan": 1,
    }


def test_planted_folder_is_seen(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "__init__.py").touch()
    (tmp_path / "errors.py").touch()
    (tmp_path / "templates").mkdir()

    assert present(tmp_path) == ["new/", "errors.py"]


def test_rows_of_layout_are_read():
    assert listed("| folder | what |\n|---|---|\n| `src/a/` | uses `b` |\n") == ["src/a/"]


# ---- names ----


def hidden_functions(package):
    """Functions of a package that are lost once the module of the same name is imported."""
    text = (package / "__init__.py").read_text("utf-8")
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    return sorted(functions & modules)


def test_no_module_hides_a_function():
    packages = [path.parent for path in PACKAGE.rglob("__init__.py")]

    assert len(packages) > 10
    assert {str(p): hidden_functions(p) for p in packages if hidden_functions(p)} == {}


def test_planted_module_hides_a_function(tmp_path):
    (tmp_path / "__init__.py").write_text("def build(): ...\n\n\ndef plan(): ...\n")
    (tmp_path / "build.py").touch()

    assert hidden_functions(tmp_path) == ["build"]
