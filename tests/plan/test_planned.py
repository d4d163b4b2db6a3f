"""A saved plan is replayed for the same program without measuring, and refused for another."""

import importlib
from dataclasses import replace

import pytest
import torch

import pullback as pb
from pullback.errors import PlanFileError
from pullback.plan.measure import Meter
from pullback.plan.measurements import AS_WRITTEN, PlanCandidate
from pullback.plan.planned import Plan
from tests.plan.fakes import FakeMeter, Sine, chain, leaf, made_up, square_sine


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


# ---- which function serves ----


class Named:
    """Stands for a Function: its `apply` tells its name."""

    def __init__(self, name):
        self.apply = lambda x: name


def served(*chosen):
    """What a plan with these choices at 10, 100 and 1000 elements calls at these sizes."""
    first = made_up().sized[0]
    sized = tuple(
        replace(first, size=10 ** (n + 1), chosen=one, rows=()) for n, one in enumerate(chosen)
    )
    functions = {(one.chosen, one.size): Named(f"{one.size}") for one in sized}
    plan = Plan(lambda x: "program", made_up(sized=sized), functions)
    return [plan.best(torch.ones(size)) for size in (1, 10, 31, 33, 100, 315, 317, 1000, 9999)]


def candidate(backend, save="auto"):
    return PlanCandidate("combined", (), backend, save)


def test_neighbours_share_what_is_not_compiled():
    one, other = candidate("eager"), candidate("eager", "everything")

    assert served(one, one, other) == ["10"] * 6 + ["1000"] * 3
    assert served(one, one, one) == ["10"] * 9


def test_compiled_choice_has_a_function_for_each_size():
    one = candidate("inductor")

    assert served(one, one, one) == ["10"] * 3 + ["100"] * 3 + ["1000"] * 3


def test_program_as_written_serves_its_sizes():
    assert served(AS_WRITTEN, AS_WRITTEN, candidate("native")) == ["program"] * 6 + ["1000"] * 3


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_compiled_plan_is_right_and_loads(tmp_path):
    plan = pb.plan(chain, leaf(100), sizes=[leaf(10_000)], backends=["inductor"], budget=0)
    plan.save(tmp_path / "plan.json")

    for one in (plan, pb.load_plan(tmp_path / "plan.json", chain)):
        for size in (7, 100, 5000, 10_000):
            torch.testing.assert_close(one.best(leaf(size)), chain(leaf(size)))
