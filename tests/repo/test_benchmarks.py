"""Every benchmark runs, in a few rounds: what nothing runs goes stale."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def programs_of(folder):
    """The names of the modules in a folder that can be run; `make bench` runs the same."""
    paths = sorted(folder.glob("*.py"))
    return [path.stem for path in paths if "__main__" in path.read_text("utf-8")]


# They build C++, which takes more than half a minute each: `make test` only imports them.
BUILDING = (
    "chunked_saves_memory",
    "composed_is_fast",
    "emitted_cpp_is_fast",
    "llama_step",
    "opaque_unit_gains",
)
SLOW = (*BUILDING, "cut_saves_no_more_than_torch", "judged_attacks", "judged_speedup_is_true")


def marked(name):
    """A benchmark as a parameter, slow where it builds or captures much."""
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [marked(name) for name in programs_of(ROOT / "benchmarks")])
def test_benchmark_runs_in_few_rounds(name, run_python):
    run = run_python("-m", f"benchmarks.{name}", "--rounds", "2", folder=ROOT)

    assert run.returncode == 0, run.stderr
    assert run.stdout


@pytest.mark.parametrize("name", BUILDING)
def test_building_benchmark_can_be_imported(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_there_is_a_benchmark():
    assert programs_of(ROOT / "benchmarks")


def test_shared_module_is_no_program(tmp_path):
    (tmp_path / "claim.py").write_text('if __name__ == "__main__":\n    main()\n')
    (tmp_path / "timing.py").write_text("ROUNDS = 1\n")

    assert programs_of(tmp_path) == ["claim"]
