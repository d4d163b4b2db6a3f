"""`pullback judge` prints verdicts, and ends with a code that a gate can use."""

import json

import pytest
from click.testing import CliRunner

from pullback.candidates.schema import JUDGE_SCHEMA
from pullback.cli.main import app
from pullback.errors import ExamplesError
from tests.report.test_json import faults_of

REFERENCE = """
import torch


def softmax(x):
    return torch.softmax(x, -1)


def examples():
    return (torch.randn(6, 5),)


def fails(x):
    raise ValueError("not today")
"""

KERNELS = """
import torch

print("loaded")


def good(x):
    y = (x - x.amax(-1, keepdim=True)).exp()
    return y / y.sum(-1, keepdim=True)


def bad(x):
    return torch.sigmoid(x)
"""

QUICK = ("--no-check", "--no-compiled", "--warm", "--time", "0.01")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `pullback judge` in a folder with a reference and kernels."""
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "kernels.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, ["judge", *args, *QUICK])


def test_good_kernel_ends_with_zero(run):
    result = run("kernels.py:good", "--reference", "ref.py:softmax")

    assert result.exit_code == 0, result.output
    assert "kernels.py:good against ref.py:softmax: right, honest" in result.output


def test_several_kernels_are_one_document(run, tmp_path):
    args = ("kernels.py:good", "kernels.py:bad", "--reference", "ref.py:softmax")
    result = run(*args, "--json", "-o", "out.json")
    document = json.loads(result.stdout)

    assert result.exit_code == 1
    assert faults_of(document, JUDGE_SCHEMA) == []
    assert [(one["right"], one["honest"]) for one in document["verdicts"]] == [
        (True, True),
        (False, True),
    ]
    assert document["verdicts"][0]["speedup"]["low"] > 0
    assert document["verdicts"][1]["findings"][0]["name"] == "wrong-result"
    assert json.loads((tmp_path / "out.json").read_text()) == document


def test_examples_come_from_the_command_line(run):
    args = ("--example", "torch.randn(3, 7)", "--seed", "5")
    result = run("kernels.py:bad", "--reference", "ref.py:softmax", *args)

    assert result.exit_code == 1
    assert "seed 5" in result.output


def test_candidate_is_not_imported_here(run):
    import sys

    run("kernels.py:bad", "--reference", "ref.py:softmax")

    assert "candidates" not in sys.modules
    assert "ref" not in sys.modules


def test_explain_knows_what_can_be_found():
    result = CliRunner().invoke(app, ["explain", "j201"])

    assert result.output == (
        "J201 stale-result (pullback judge: not right and not honest)\n\n"
        "the result of an earlier call comes back for other inputs\n"
    )


def test_reference_that_fails_is_an_error(run):
    result = run("kernels.py:good", "--reference", "ref.py:fails")

    assert isinstance(result.exception, ExamplesError) or result.exit_code == 2
