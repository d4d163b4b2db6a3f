"""The shared fixtures and marks do what the other tests trust them to do."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USES_GOLD = "def test_text(gold): gold('deep/text.txt', 'new\\n')\n"


@pytest.fixture
def project(tmp_path):
    """A folder with our configuration and conftest, for tests that are planted in it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    return tmp_path


def run_pytest(project, test, *options, **environment):
    (project / "tests" / "test_planted.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    settings = {**os.environ, **environment}
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=settings)


def gold_file(project, text):
    path = project / "tests" / "gold" / "deep" / "text.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


# ---- cases ----


def test_quick_cases_are_spread_and_the_rest_is_slow(project):
    test = (
        "import pytest\n"
        "@pytest.mark.quick(3)\n"
        "@pytest.mark.parametrize('case', 'abcdefg')\n"
        "def test_it(case): pass\n"
    )

    quick = run_pytest(project, test, "-v").stdout
    whole = run_pytest(project, test, "-m", "").stdout

    assert re.findall(r"test_it\[(.)\] PASSED", quick) == ["a", "c", "e"]
    assert "7 passed" in whole


# ---- gold ----


def test_equal_gold_passes_and_clears(project):
    path = gold_file(project, "new\n")
    stale = path.with_name("text.txt.got")
    stale.write_text("old mismatch")

    run = run_pytest(project, USES_GOLD)

    assert run.returncode == 0
    assert not stale.exists()


def test_different_gold_fails_and_saves(project):
    path = gold_file(project, "old\n")

    run = run_pytest(project, USES_GOLD)

    assert run.returncode == 1
    assert "`deep/text.txt` differs from its gold file" in run.stdout
    assert path.read_text() == "old\n"
    assert path.with_name("text.txt.got").read_text() == "new\n"


def test_missing_gold_fails_and_says_so(project):
    run = run_pytest(project, USES_GOLD)

    assert run.returncode == 1
    assert "`deep/text.txt` has no gold file yet" in run.stdout


def test_empty_text_still_needs_its_gold(project):
    run = run_pytest(project, "def test_text(gold): gold('empty.txt', '')\n")

    assert run.returncode == 1


def test_update_gold_writes_the_file(project):
    path = gold_file(project, "old\n")

    run = run_pytest(project, USES_GOLD, "--update-gold")

    assert run.returncode == 0
    assert path.read_text() == "new\n"


# ---- marks ----


def marked(mark):
    return f"import pytest\n@pytest.mark.{mark}\ndef test_marked(): pass\n"


def test_slow_test_is_left_out(project):
    assert "1 deselected" in run_pytest(project, marked("slow")).stdout


def test_slow_test_runs_when_asked(project):
    assert "1 passed" in run_pytest(project, marked("slow"), "-m", "").stdout


def test_compiler_test_skips_without_compiler(project):
    run = run_pytest(project, marked("needs_compiler"), CXX="no-such-compiler")

    assert "1 skipped" in run.stdout
    assert "needs a C++ compiler" in run.stdout


def test_cuda_test_skips_without_device(project):
    run = run_pytest(project, marked("needs_cuda"), CUDA_VISIBLE_DEVICES="")

    assert "needs a GPU" in run.stdout


def test_unknown_mark_is_an_error(project):
    run = run_pytest(project, marked("needs_magic"))

    assert run.returncode != 0
    assert "'needs_magic' not found in `markers`" in run.stdout


# ---- our warnings ----

WARNS = "import warnings, pytest\ndef test_slip(): {use}warnings.warn('W301 hidden-tensor: x')\n"


def test_unexpected_warning_of_ours_fails(project):
    assert "1 failed" in run_pytest(project, WARNS.format(use="")).stdout


def test_expected_warning_of_ours_passes(project):
    run = run_pytest(project, WARNS.format(use="\n  with pytest.warns(UserWarning): "))

    assert "1 passed" in run.stdout


# ---- a fresh torch ----


def test_every_test_starts_from_one_seed(project):
    test = "import torch\ndef test_a(): assert torch.rand(()) == A\ndef test_b(): test_a()\n"
    seeded = "torch.manual_seed(0); A = torch.rand(())\n"

    run = run_pytest(project, test.replace("\n", f"\n{seeded}", 1))

    assert "2 passed" in run.stdout


DRAWS = """
import random
import numpy
import torch
draw = lambda: (random.random(), float(numpy.random.rand()), float(torch.rand(())))
AT_IMPORT = draw()
def test_draws(): print("drawn", AT_IMPORT, draw())
"""


def test_numbers_do_not_depend_on_the_modules_before(project):
    (project / "tests" / "test_before.py").write_text(DRAWS)
    first, second = re.findall("drawn .*", run_pytest(project, DRAWS, "-s").stdout)

    assert first == second


@pytest.mark.slow
def test_compiled_code_is_forgotten_between_tests(project):
    run = run_pytest(
        project,
        """
import torch

CAPTURES = []

def count(graph, inputs):
    CAPTURES.append(graph)
    return graph.forward

@torch.compile(backend=count)
def double(x):
    return 2 * x

def test_first():
    double(torch.ones(3)), double(torch.ones(3))
    assert len(CAPTURES) == 1

def test_second():
    double(torch.ones(3))
    assert len(CAPTURES) == 2
""",
    )

    assert "2 passed" in run.stdout
