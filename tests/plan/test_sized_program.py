"""A program at one size: its units, what they wait for, and tasks that run."""

import torch

from pullback.plan.sized_program import sized_program
from tests.plan.fakes import chain, decides, doubles_in_place, leaf, square_sine


def test_units_wait_for_what_they_need():
    case = sized_program(square_sine, (leaf(), leaf()), 8)

    assert case.names == ["Square", "Sine", "mul"]
    assert case.waits == [set(), set(), {0, 1}]
    assert not case.changes_inputs


def test_draws_stay_in_order():
    def noisy(x):
        return torch.rand_like(x) * x + torch.rand_like(x)

    state = torch.get_rng_state()
    case = sized_program(noisy, (leaf(),), 8)

    assert case.drawing == [0, 2]
    assert 0 in case.waits[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_noisy_program_has_no_reference():
    case = sized_program(lambda x: torch.rand_like(x) * x, (leaf(),), 8)

    assert case.reference(case.task(case.program)) is None


def test_reference_is_computed_once():
    case = sized_program(chain, (leaf(),), 8)
    first = case.reference(case.task(chain))

    assert first[0].dtype is torch.float64
    assert case.reference(case.task(chain)) is first


def test_tasks_of_units_run_alone():
    case = sized_program(doubles_in_place, (leaf(),), 8)

    gradients = [case.task_of_unit(unit)() for unit in case.units.units]

    assert [gradient[0].shape for gradient in gradients] == [(8,)] * 3


def test_change_of_what_is_outside_crosses():
    case = sized_program(doubles_in_place, (leaf(),), 8)

    assert [case.crosses(group) for group in ((0, 1), (1, 2), (0, 1, 2))] == [False, True, False]


def test_program_that_changes_its_input_is_renewed():
    x = leaf()
    case = sized_program(lambda x: x.mul_(2), (x,), 8)

    assert case.changes_inputs
    torch.testing.assert_close(case.task(case.program)()[0].shape, x.shape)
    assert torch.equal(x, leaf())


def test_closures_have_gradients_and_are_spared():
    weight = leaf()
    case = sized_program(lambda x: x * weight, (leaf(),), 8)

    assert [one is weight for one in case.spared] == [False, True]
    assert len(case.task(case.program)()) == 2


def test_uncaptured_program_has_a_reason():
    case = sized_program(decides, (leaf(),), 8)

    assert case.units is None
    assert "whatever the values" in case.reason


def test_rounding_is_the_coarsest():
    case = sized_program(lambda x, y: x * y, (leaf(), leaf().detach().bfloat16()), 8)

    assert case.rounding == torch.finfo(torch.bfloat16).eps
