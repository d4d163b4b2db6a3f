"""Modules import downwards only; `lint-imports` says so, and names a planted bad import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LINT = "from importlinter.cli import lint_imports_command as lint; lint()"

SOUND = {
    "__init__.py": "from pullback.function import Function\n",
    "extend.py": "from pullback.check import Finding\n",
    "cli/__init__.py": "from pullback.check import Finding\n",
    "check/__init__.py": "from pullback.function import Function\nFinding = 1\n",
    "plan/__init__.py": "",
    "function/__init__.py": "from pullback.errors import PullbackError\nFunction = 1\n",
    "errors.py": "PullbackError = 1\n",
}
PLANTED = {
    "upwards": (
        {"errors.py": "import pullback.function\n"},
        "pullback.errors is not allowed to import pullback.function",
    ),
    "sideways": (
        {"check/__init__.py": "import pullback.plan\n"},
        "pullback.check is not allowed to import pullback.plan",
    ),
    "the public face": (
        {"check/__init__.py": "from pullback import Function\n"},
        "pullback.check is not allowed to import pullback:",
    ),
    "the extension API": (
        {"cli/__init__.py": "import pullback.extend\n"},
        "pullback.cli is not allowed to import pullback.extend",
    ),
    "hidden in a function": (
        {"errors.py": "def late():\n    import pullback.function\n"},
        "pullback.errors is not allowed to import pullback.function",
    ),
    "no layer": ({"utils.py": ""}, "not listed as layers:\n\n- pullback.utils"),
}


def lint_imports(source):
    """Run the contracts of our pyproject.toml on the package `pullback` in the folder `source`."""
    command = [sys.executable, "-c", LINT, "--config", ROOT / "pyproject.toml", "--no-cache"]
    return subprocess.run(command, cwd=source, capture_output=True, text=True)


def plant(folder, files):
    for name, text in files.items():
        path = folder / "pullback" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_our_layers_are_kept():
    run = lint_imports(ROOT / "src")

    assert run.returncode == 0, run.stdout


def test_sound_tree_breaks_no_contract(tmp_path):
    plant(tmp_path, SOUND)

    run = lint_imports(tmp_path)

    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_import_is_named(tmp_path, fault):
    files, finding = PLANTED[fault]
    plant(tmp_path, SOUND | files)

    run = lint_imports(tmp_path)

    assert run.returncode == 1
    assert finding in run.stdout
