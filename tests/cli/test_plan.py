"""`pullback plan` prints and writes what it measured, and says what is wrong."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.check.target.naming import load
from pullback.cli.main import app
from pullback.errors import PlanError, PlanFileError, PullbackError, TargetError

OPS = """
import torch
import pullback as pb


class Square(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


def program(x, y):
    return Square.apply(x) * torch.sin(y)


def examples(size):
    return torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True)


def fixed(x):
    return x.sin()


fixed.examples = lambda: (torch.ones(2, requires_grad=True),)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `pullback plan` in a folder with `ops.py`, with no time for groups."""
    (tmp_path / "ops.py").write_text(OPS)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        options = ["--budget", "0", "--backend", "eager"]
        result = CliRunner().invoke(app, ["plan", *arguments, *options])
        if isinstance(result.exception, PullbackError):
            raise result.exception
        assert result.exception is None, result.output
        return result.output

    return call


def test_table_and_reasons_are_printed(run):
    output = run("ops.py:program", "--sizes", "4,1e2")

    assert "program(float32[4], float32[4]): 4 elements of `x`" in output
    assert "program(float32[100], float32[100]): 100 elements of `x`" in output
    assert "[Square sin mul]" in output
    assert "\nprogram: " in output
    assert "measured: torch " in output


def test_plan_and_figure_are_written(run, tmp_path):
    output = run("ops.py:program", "--sizes", "4", "-o", "plan.json", "--figure", "plan.svg")

    assert output.endswith("plan: plan.json\nfigure: plan.svg\n")
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "pullback-plan"
    assert (tmp_path / "plan.svg").read_text().startswith("<svg ")
    program = load("ops.py:program")
    assert pb.load_plan(tmp_path / "plan.json", program).evidence.program == "program"


def test_expressions_take_the_size(run):
    example = "torch.ones(size, 2, requires_grad=True)"

    output = run("ops.py:fixed", "--sizes", "3,5", "--example", example)

    assert "fixed(float32[3, 2]): 6 elements of `x`" in output
    assert "fixed(float32[5, 2]): 10 elements of `x`" in output


def test_examples_without_size_serve_without_sizes(run):
    assert "fixed(float32[2]): 2 elements of `x`" in run("ops.py:fixed")


def test_examples_that_take_no_size_are_refused(run):
    with pytest.raises(TargetError) as caught:
        run("ops.py:fixed", "--sizes", "3")

    assert str(caught.value) == (
        "E401 target: `examples` of `ops.py:fixed` must take a size where --sizes are given, and "
        "only there\n  expected: examples(size)\n  got:      no parameter"
    )


def test_examples_that_need_a_size_are_refused(run):
    with pytest.raises(TargetError) as caught:
        run("ops.py:program")

    assert caught.value.facts["expected"] == "examples(), or --sizes"


@pytest.mark.parametrize("sizes", ["1,x", "", "0", "1.5", "-3", "inf"])
def test_odd_sizes_are_refused(run, sizes):
    with pytest.raises(TargetError, match="`--sizes` must be whole numbers"):
        run("ops.py:program", "--sizes", sizes)


def test_odd_objective_is_refused(run):
    with pytest.raises(PlanError, match="`objective`"):
        run("ops.py:program", "--sizes", "4", "--objective", "speed")


def test_number_is_an_objective(run, tmp_path):
    run("ops.py:program", "--sizes", "4", "--objective", "0.5", "-o", "plan.json")

    assert json.loads((tmp_path / "plan.json").read_text())["objective"] == 0.5


@pytest.mark.parametrize("option", ["-o", "--figure"])
def test_missing_folder_is_found_before_measuring(run, option, monkeypatch):
    monkeypatch.setattr("pullback.cli.plan.plan", lambda *args, **options: pytest.fail("measured"))

    with pytest.raises(PlanFileError, match="must be a file in a folder that is there"):
        run("ops.py:program", "--sizes", "4", option, str(Path("none") / "plan.svg"))


def test_figure_of_other_format_is_found_before(run, monkeypatch):
    monkeypatch.setattr("pullback.cli.plan.plan", lambda *args, **options: pytest.fail("measured"))

    with pytest.raises(PlanFileError, match="must be a file that a figure can be written to"):
        run("ops.py:program", "--sizes", "4", "--figure", "plan.png")
