"""A saved plan is replayed for the same program without measuring, and refused for another."""

import importlib

import pytest
import torch

import pullback as pb
from pullback.errors import PlanFileError
from pullback.plan.measure import Meter
from tests.plan.fakes import FakeMeter, Sine, chain, leaf, square_sine


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file of a plan of `chain` that follows the size."""
    module = importlib.import_module("pullback.plan.planning")
    meter = FakeMeter({"Chain": lambda size: size / 4})
    monkeypatch.setattr(module, "Meter", lambda device: meter)
    planned = pb.plan(chain, leaf(4), sizes=[(leaf(64),)], backends=["eager"], budget=1e6)
    planned.save(tmp_path / "plan.json")
    planned.plot(tmp_path / "plan.svg")
    return tmp_path / "plan.json"


def test_loaded_plan_does_the_same(path, monkeypatch):
    def measures(self, task):
        raise AssertionError("measured again")

    monkeypatch.setattr(Meter, "time", measures)
    monkeypatch.setattr(FakeMeter, "time", measures)
    loaded = pb.load_plan(path, chain)

    assert loaded.best(leaf(4)).grad_fn.name() == "ChainBackward"
    assert loaded.best(leaf(64)).grad_fn.name() != "ChainBackward"
    torch.testing.assert_close(loaded.best(leaf(64)), chain(leaf(64)))


def test_loaded_plan_knows_the_evidence(path):
    loaded = pb.load_plan(str(path), chain)
    loaded.save(path.with_name("again.json"))

    assert path.with_name("again.json").read_text("utf-8") == path.read_text("utf-8")
    assert "crossover: " in loaded.explain()


def test_other_program_is_refused(path):
    with pytest.raises(PlanFileError) as caught:
        pb.load_plan(path, lambda x: Sine.apply(chain(x)))

    assert str(caught.value).splitlines() == [
        "E511 plan-file: `<lambda>` must be the program that was planned",
        f"  at:       {path}",
        "  expected: `chain` as it was written then, and the same calls in it",
        "  got:      another text, or other calls",
        "  fix:      plan again: pb.plan(program, *examples).save(path)",
    ]


def test_plan_loads_with_examples_of_ones_own(path):
    loaded = pb.load_plan(path, chain, leaf(6))

    torch.testing.assert_close(loaded.best(leaf(6)), chain(leaf(6)))


def test_examples_that_do_not_fit_raise_as_the_program(path):
    with pytest.raises(TypeError):
        pb.load_plan(path, square_sine)
