"""Plans of real programs, with tiny budgets: the best call is right, and nothing is left behind."""

import gc
import importlib
import threading

import pytest
import torch

import pullback as pb
from pullback.errors import BackendError, PlanError
from pullback.plan.measurements import AS_WRITTEN, HYBRID
from tests.plan.fakes import FakeMeter, Square, chain, decides, doubles_in_place, leaf, square_sine

OPTIONS = {"backends": ["eager"], "budget": 0.0}


@pytest.fixture(scope="module")
def planned():
    return pb.plan(square_sine, leaf(), leaf(), backends=["eager"], budget=8.0)


@pytest.fixture
def fake(monkeypatch):
    """Plans by planted numbers."""
    module = importlib.import_module("pullback.plan.planning")

    def use(meter):
        monkeypatch.setattr(module, "Meter", lambda device: meter)

    return use


def same(best, program, *args):
    """Whether outputs and gradients are those of the program."""
    results = []
    for call in (best, program):
        output = call(*args)
        results.append([output, *torch.autograd.grad(output.sum(), args)])
    return all(torch.allclose(a, b) for a, b in zip(*results, strict=True))


# ---- the best call ----


def test_best_computes_what_the_program_does(planned):
    assert same(planned.best, square_sine, leaf(), leaf())
    assert same(planned.best, square_sine, leaf(5), leaf(5))


@pytest.mark.slow
def test_every_grouping_is_in_the_table(planned):
    table = planned.table()

    assert "Square Sine mul " in table
    assert "[Square Sine mul]" in table
    assert table.count("*") == 1


def test_explanation_names_the_choice(planned):
    first = planned.explain().splitlines()[0]

    assert repr(planned) == f"<Plan of {first}>"


def test_pareto_is_a_front(planned):
    rows = planned.pareto()

    assert [row.relative for row in rows] == sorted(row.relative for row in rows)
    assert [row.saved for row in rows] == sorted((row.saved for row in rows), reverse=True)
    assert planned.pareto(8) == rows


def test_errors_are_those_of_rounding(planned):
    errors = [row.error for one in planned.evidence.sized for row in one.rows]

    assert max(errors) < 1e-6


def test_function_is_one_to_check_and_compose(planned):
    assert issubclass(planned.function, pb.Function)
    assert same(planned.function.apply, square_sine, leaf(), leaf())


def test_nested_choice_is_the_program_itself(fake):
    fake(FakeMeter(dict.fromkeys(("Chain", "SquareSine", "SineGrowth"), 9.0)))

    planned = pb.plan(chain, leaf(), **OPTIONS)

    assert planned.best is chain
    assert planned.function.explain() == "nested: as written"


def test_combined_choice_is_the_composition_itself(fake):
    fake(FakeMeter())

    planned = pb.plan(chain, leaf(), **OPTIONS)

    assert planned.best == planned.function.apply
    assert planned.function.composed == "combined"


# ---- several sizes ----


def test_plan_follows_the_size(fake):
    fake(FakeMeter({"Chain": lambda size: size / 4}))

    planned = pb.plan(chain, sizes=[leaf(64), (leaf(4),)], backends=["eager"], budget=1e6)

    (border,) = planned.evidence.borders
    assert 4 < border < 64
    assert planned.best(leaf(4)).grad_fn.name() == "ChainBackward"
    assert planned.best(leaf(64)).grad_fn.name() != "ChainBackward"
    assert planned.best(leaf(border)).grad_fn.name() != "ChainBackward"
    assert same(planned.best, chain, leaf(4))
    assert same(planned.function.apply, chain, leaf(64))
    assert f"crossover: {border} elements, between the measured 4 and 64" in planned.explain()


def test_keyword_calls_follow_the_size(fake):
    fake(FakeMeter({"Chain": lambda size: size / 4}))
    planned = pb.plan(chain, leaf(4), sizes=[(leaf(64),)], backends=["eager"], budget=1e6)

    assert planned.best(x=leaf(4)).grad_fn.name() == "ChainBackward"
    assert planned.best(x=leaf(64)).grad_fn.name() != "ChainBackward"


def test_empty_tensor_is_a_size():
    planned = pb.plan(chain, leaf(0), sizes=[leaf(4)], **OPTIONS)

    assert planned.best(leaf(0)).shape == (0,)
    assert same(planned.best, chain, leaf(4))


def test_function_class_is_planned_by_its_name():
    planned = pb.plan(Square, leaf(), **OPTIONS)

    assert planned.evidence.program == "Square"
    assert same(planned.best, Square.apply, leaf())


def test_program_without_gradients_is_planned():
    planned = pb.plan(chain, torch.ones(4), **OPTIONS)

    assert torch.equal(planned.best(torch.ones(4)), chain(torch.ones(4)))
    assert "?" in planned.table()  # there is no gradient that could have an error


# ---- what cannot be planned in groups ----


def test_uncaptured_program_is_nested_and_says_why():
    planned = pb.plan(decides, leaf(), **OPTIONS)

    assert planned.evidence.chosen == (AS_WRITTEN,)
    assert "not possible: every grouping: `decides` must do the same work" in planned.explain()
    assert planned.best is decides


def test_in_place_program_is_planned():
    planned = pb.plan(doubles_in_place, leaf(), **OPTIONS)

    assert same(planned.best, doubles_in_place, leaf())


def test_program_that_changes_its_input_is_nested():
    def grows(x):
        return x.mul_(2).sin()

    x = leaf()
    planned = pb.plan(grows, x, **OPTIONS)

    assert planned.best is grows
    assert torch.equal(x, leaf())


def test_interrupted_plan_is_a_plan(fake):
    fake(FakeMeter())

    def progress(done, total, text):
        if text.startswith("group"):
            raise KeyboardInterrupt

    planned = pb.plan(chain, leaf(), backends=["eager"], budget=1e6, progress=progress)

    assert planned.function.composed == "combined"
    assert "stopped by Ctrl-C" in planned.explain()


def test_plan_interrupted_at_once_is_nested(fake):
    fake(FakeMeter())

    def progress(done, total, text):
        raise KeyboardInterrupt

    planned = pb.plan(chain, leaf(), backends=["eager"], progress=progress)

    assert planned.best is chain
    assert "nothing was measured" in planned.table()
    assert planned.pareto() == ()


# ---- what is left behind ----


def test_nothing_is_left_changed(capsys):
    x = leaf()
    weight = leaf()
    state = torch.get_rng_state()
    before = (threading.active_count(), gc.isenabled(), torch.is_grad_enabled())

    def program(x):
        return (x * weight).sin() * torch.rand_like(x)

    with torch.no_grad():
        pb.plan(program, x, **OPTIONS)

    assert (threading.active_count(), gc.isenabled(), torch.is_grad_enabled()) == before
    assert x.grad is None
    assert weight.grad is None
    assert torch.equal(x, leaf())
    assert torch.equal(torch.get_rng_state(), state)
    assert capsys.readouterr() == ("", "")


# ---- mistakes ----


def test_plan_without_examples_is_refused():
    with pytest.raises(PlanError) as caught:
        pb.plan(chain)

    assert str(caught.value) == (
        "E510 plan: `chain` must be planned with examples of its arguments\n"
        "  expected: tensors like those it will be called with, and its other arguments\n"
        "  got:      no example"
    )


def test_examples_of_one_size_are_refused():
    with pytest.raises(PlanError) as caught:
        pb.plan(chain, leaf(4), sizes=[(leaf(4),)])

    assert caught.value.facts["got"] == "(float32[4]) and (float32[4]), both of 4 elements"


@pytest.mark.parametrize("budget", [-1, "long", True, float("nan")])
def test_odd_budget_is_refused(budget):
    with pytest.raises(PlanError, match="`budget` must be a number of seconds"):
        pb.plan(chain, leaf(), budget=budget)


def test_unknown_backend_is_refused():
    with pytest.raises(BackendError):
        pb.plan(chain, leaf(), backends=["magic"])


def test_unknown_objective_is_refused_before_work():
    with pytest.raises(PlanError, match="`objective`"):
        pb.plan(chain, leaf(), objective="speed")


def test_error_of_the_program_is_raised():
    def broken(x):
        return x @ torch.ones(3, 3)

    with pytest.raises(RuntimeError, match=r"size mismatch|mat"):
        pb.plan(broken, leaf(8), **OPTIONS)


def test_hybrid_can_be_the_choice(fake):
    fake(FakeMeter({"Chain": 9.0}))

    planned = pb.plan(chain, leaf(), backends=["eager"], budget=1e6)

    assert planned.evidence.chosen[0].how == HYBRID
    assert same(planned.best, chain, leaf())
