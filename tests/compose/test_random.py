"""Hybrids of random programs, in random groupings, compute what the programs compute."""

import pytest
import torch

import pullback as pb
from pullback.compose.flow import recorded_units
from pullback.errors import GroupingError
from tests.compose.as_written import assert_same, derivatives_of
from tests.compose.pipelines import Square
from tests.compose.random_programs import inputs_of, random_groups, random_program


def require_same_results(seed: int, backend: str, count: int = 1) -> None:
    """Require hybrids of the program of this number to be as it is written."""
    drawn = random_program(seed)
    args = inputs_of(drawn)

    def program(*args):
        return drawn(*args)

    units = len(recorded_units(program, args).units)
    expected = derivatives_of(program, args)
    for number in range(count):
        try:
            groups = random_groups(units, 10 * seed + number)
            made = pb.hybrid(program, *args, groups=groups, backend=backend)
        except GroupingError:  # groups that wait for each other are refused in words
            continue
        for _ in range(2):  # when it is made, and by the short way
            assert_same(derivatives_of(made.apply, args), expected, rtol=1e-10)


@pytest.mark.quick(15)
@pytest.mark.parametrize("seed", range(40))
def test_hybrid_of_a_random_program_computes_the_same(seed):
    require_same_results(seed, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 240))
def test_more_hybrids_of_random_programs_compute_the_same(seed):
    require_same_results(seed, "eager", count=3)


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_compiled_hybrid_of_a_random_program_computes_the_same(seed):
    require_same_results(seed, "inductor")


def test_random_programs_have_all_kinds_of_steps():
    names = {name for seed in range(60) for name, _ in random_program(seed).steps}

    assert {"gradient", "detach", "mul_", "assigned", "rows", "Mul", "recorded off"} <= names


# ---- what they found ----


def test_group_that_nobody_uses_runs_as_written():
    def program(x):
        y = x.sin()
        y.exp().tanh()
        return y * 2

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    made = pb.hybrid(program, x, groups=[(1, 2)], backend="eager")

    assert_same(derivatives_of(made.apply, (x,)), derivatives_of(program, (x,)))
    assert "as written: 1 exp, 2 tanh: its result is not used" in made.explain()


def slope(x):
    y = x * 2
    (g,) = torch.autograd.grad(y.sin().sum(), y, create_graph=True)
    return g * y


@pytest.mark.parametrize(
    ("groups", "lines"),
    [
        ([(0, 1, 2, 3, 4)], ["one node: 0 mul, 1 sin, 2 sum, 3 grad, 4 mul"]),
        ([(1, 2, 3)], ["one node: 1 sin, 2 sum, 3 grad"]),
        ([(1, 2)], ["one node: 1 sin, 2 sum"]),
        ([(0, 1)], ["as written: 0 mul, 1 sin: `grad` differentiates what is made outside"]),
        ([(0, 1, 2), (3, 4)], ["as written: 0 mul, 1 sin, 2 sum: `grad`", "3 grad, 4 mul: `grad`"]),
    ],
)
def test_gradient_inside_a_program_sees_what_it_goes_through(groups, lines):
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    made = pb.hybrid(slope, x, groups=groups, backend="eager")

    assert_same(derivatives_of(made.apply, (x,)), derivatives_of(slope, (x,)))
    for line in lines:
        assert line in made.explain()


def test_change_in_place_of_what_a_node_reads_is_as_written():
    def program(x):
        y = x * 0.5
        z = y * 2
        y.mul_(3)
        return y + z

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    made = pb.hybrid(program, x, groups=[(1,)], backend="eager")

    assert_same(derivatives_of(made.apply, (x,)), derivatives_of(program, (x,)))
    assert "as written: 1 mul: `mul_` changes what is made outside its group" in made.explain()


def test_group_that_has_no_backward_runs_as_written():
    def program(x):
        y = x * 2
        z = Square.apply(y)
        y.mul_(3)  # `z` can no longer be differentiated
        return y + x, z.detach()

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    made = pb.hybrid(program, x, groups=[(0, 1, 2)], backend="eager")

    assert_same(derivatives_of(made.apply, (x,)), derivatives_of(program, (x,)))
    assert "as written: 0 mul, 1 Square, 2 mul_: " in made.explain()


def test_node_is_not_tied_to_what_its_dead_units_read():
    def program(x, y):
        z = y * 2
        w = x.sin()
        w * z
        return w.exp()

    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    calls = []
    made = pb.hybrid(program, x, y, groups=[(1, 2, 3)], backend="eager")
    y.register_hook(calls.append)
    made.apply(x, y).sum().backward()

    assert not calls
    assert y.grad is None


def test_unit_that_draws_and_is_not_used_stays_in_its_node():
    def program(x):
        y = x * 2
        torch.nn.functional.dropout(y)
        return torch.nn.functional.dropout(y.sin())

    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    made = pb.hybrid(program, x, groups=[(0, 1, 2, 3)], backend="eager")
    torch.manual_seed(3)
    expected = program(x)
    torch.manual_seed(3)

    assert torch.equal(made.apply(x), expected)
    assert "one node: 0 mul, 1 dropout, 2 sin, 3 dropout" in made.explain()
