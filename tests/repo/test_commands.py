"""`make`, pre-commit and CI run the same commands, and `make` says plainly what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# Settings of the `make` that runs these tests; they are not those of the `make` under test.
OUTER = {"MAKEFLAGS", "MFLAGS", "PYTHON", "JOBS", "ARGS"}

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def make(*arguments, folder=ROOT, **environment):
    inherited = {name: value for name, value in os.environ.items() if name not in OUTER}
    settings = {**inherited, "MAKELEVEL": "0", **environment}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=settings)


def recipe_of(target):
    """The commands of a target, without those that make the environment."""
    return make("--dry-run", "--old-file=.venv/.stamp", target).stdout.splitlines()


def hooks_of(text):
    """The commands of a pre-commit configuration."""
    return [hook["entry"] for repo in yaml.safe_load(text)["repos"] for hook in repo["hooks"]]


def commands_of(script):
    """The commands of a shell script, without comments, blank lines and its preamble."""
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    return [line for line in lines if not line.startswith(("set ", "cd "))]


FIGURES = ".venv/bin/python -m tests.repo.figures"
"""What `make lint` prints at its end, and cannot fail."""


def test_hooks_run_what_lint_runs():
    hooks = hooks_of((ROOT / ".pre-commit-config.yaml").read_text())

    assert [*hooks, FIGURES] == recipe_of("lint")


def test_ci_runs_lint_and_tests():
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    lint, test, triton, kernels = commands_of(script.read_text())
    assert (lint, test, kernels) == ("make lint", "make test", "make test-triton")
    assert triton.startswith("make build/triton/.stamp || {")  # not every machine has a wheel


def test_lint_runs_all_four_tools():
    tools = [command.split()[0] for command in recipe_of("lint") if command != FIGURES]

    assert [Path(tool).name for tool in tools] == ["ruff", "ruff", "mypy", "lint-imports"]


def test_only_test_all_runs_slow_ones():
    assert '-m ""' not in recipe_of("test")[-1]
    assert '-m ""' in recipe_of("test-all")[-1]


def test_demo_runs_the_demo():
    assert recipe_of("demo")[-1] == ".venv/bin/python -m examples.demo"


def test_docs_are_made_before_built():
    made, built = recipe_of("docs")[-2:]

    assert made == ".venv/bin/python -m docs.generate"
    assert built.startswith(".venv/bin/python -m mkdocs build --quiet --strict")


def test_help_names_every_public_target():
    named = [line.split()[1] for line in make("help").stdout.splitlines()]

    assert named == [
        "help",
        "demo",
        "test",
        "test-all",
        "test-triton",
        "lint",
        "bench",
        "docs",
        "dist",
        "clean",
    ]


def test_triton_is_installed_beside_the_environment(clone):
    commands = make("--dry-run", "test-triton", folder=clone).stdout

    assert "--no-deps -c constraints.txt --target build/triton triton" in commands
    assert f"PYTHONPATH={clone}/build/triton" in commands


def test_bare_make_prints_the_help():
    assert make().stdout == make("help").stdout


# ---- a machine that lacks something ----


@pytest.fixture
def clone(tmp_path):
    """A fresh clone, as far as `make` looks at it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "test-triton", "lint", "bench"])
def test_target_makes_its_environment(clone, target):
    commands = make("--dry-run", target, folder=clone).stdout

    assert "python3 -m venv .venv" in commands
    assert "pip install --quiet -c constraints.txt -e '.[dev]'" in commands


def test_environment_is_remade_after_changes(clone):
    stamp = clone / ".venv" / ".stamp"
    stamp.parent.mkdir()
    stamp.touch()

    assert "-m venv" not in make("--dry-run", "lint", folder=clone).stdout

    os.utime(clone / "constraints.txt", (stamp.stat().st_mtime + 10,) * 2)

    assert "-m venv" in make("--dry-run", "lint", folder=clone).stdout


@pytest.mark.parametrize("python", ["false", "no-such-python"], ids=["too old", "absent"])
def test_unfit_python_gets_one_line(clone, python):
    run = make("demo", f"PYTHON={python}", folder=clone)

    said, failed = run.stderr.splitlines()
    assert "pullback needs Python 3.10 or newer" in said
    assert failed.startswith("make: ***")
    assert not (clone / ".venv").exists()


def test_python_without_venv_gets_one_line(clone):
    python = clone / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n')
    python.chmod(0o755)

    run = make("demo", f"PYTHON={python}", folder=clone)

    said, _ = run.stderr.splitlines()
    assert "cannot make environments" in said


def test_missing_compiler_gets_one_note(clone):
    run = make("compiler", folder=clone, CXX="no-such-compiler")

    assert run.returncode == 0
    assert len(run.stdout.splitlines()) == 1
    assert "no C++ compiler found" in run.stdout


def test_present_compiler_gets_no_note(clone):
    assert make("compiler", folder=clone, CXX="true").stdout == ""


# ---- the readers themselves ----


def test_planted_hook_is_read():
    text = "repos: [{repo: local, hooks: [{id: a, entry: make a}, {id: b, entry: make b}]}]"

    assert hooks_of(text) == ["make a", "make b"]


def test_planted_ci_command_is_read():
    assert commands_of("#!/bin/sh\nset -e\n# why\n\nmake lint\npytest\n") == ["make lint", "pytest"]
