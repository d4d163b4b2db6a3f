"""A name may be that of a model, or of what makes one; inputs may be named as well."""

import json

import pytest
from click.testing import CliRunner

from pullback.cli.main import app

MODEL = """
import torch
from torch import nn


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


class Act(nn.Module):
    def forward(self, x):
        return Cube.apply(x)


class Model(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.lin, self.act = nn.Linear(width, width), Act()

    def forward(self, x):
        return self.act(self.lin(x))


def make_model():
    return Model()


def make_wide(width: int = 3) -> Model:
    return Model(width)


def make_number():
    return 3


def make_nothing():
    raise ValueError("no weights")


def make_batch():
    return (torch.randn(2, 3),)


BATCH = [(torch.ones(2, 3),), (torch.zeros(4, 3),)]
model = Model()
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    (tmp_path / "zoo.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, ["check", *args, "--profile", "quick", "--no-cache"])


@pytest.mark.parametrize("name", ["make_model", "make_wide", "Model", "model"])
def test_model_is_made_and_looked_into(models, name):
    result = run(f"zoo.py:{name}", "--inputs", "zoo.py:make_batch", "--json")

    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["reports"]
    assert report["subject"] == "Model"
    (use,) = report["functions"]
    assert (use["name"], use["places"], use["calls"]) == ("Cube", ["act"], 1)


def test_inputs_may_be_a_list_of_examples(models):
    result = run("zoo:make_model", "--inputs", "zoo:BATCH")

    assert "inside: Cube: 2 calls, 2 signatures, at `act`" in result.stdout


def test_expressions_are_inputs_of_a_model(models):
    result = run("zoo:make_model", "--example", "torch.ones(2, 3)")

    assert "Model: nothing found" in result.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("make_number", "`zoo:make_number`, which takes no inputs, must give a module to check"),
        ("make_nothing", "got:      ValueError: no weights"),
    ],
)
def test_what_gives_no_module_is_an_error(models, name, said):
    result = run(f"zoo:{name}", "--inputs", "zoo:make_batch")

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("nowhere.pt", "must be a recording, or name inputs"),
        ("zoo:make_bath", "names such as make_batch"),
        ("zoo:make_nothing", "must give inputs when it is called without arguments"),
    ],
)
def test_inputs_that_are_not_there_are_an_error(models, inputs, said):
    result = run("zoo:make_model", "--inputs", inputs)

    assert result.exit_code == 2
    assert said in result.stderr


def test_rule_of_models_may_be_allowed(models):
    result = run("zoo:make_model", "--inputs", "zoo:make_batch", "--allow", "unused-parameter")

    assert result.exit_code == 0, result.output
