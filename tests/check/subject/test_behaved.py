"""Far from the example a gradient counts only where forward is one that can be known."""

import pytest
import torch

import pullback as pb
from pullback.check.subject.behaved import approximates, goes_on_otherwise
from tests.check.subjects import made, normal, subject


def halves(x):
    """The root of y**3 + y = x by bisection between -4 and 4, which holds small x alone."""
    low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
    for _ in range(60):
        middle = (low + high) / 2
        is_above = middle**3 + middle > x
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    return (low + high) / 2


def of_root(forward):
    return made(forward, lambda g, x: g / (3 * forward(x) ** 2 + 1))


def wrong(report):
    return [f.rule.name for f in report.findings if f.weight == "wrong"]


@pytest.mark.slow
def test_solver_is_not_held_to_values_that_it_does_not_reach():
    found = wrong(pb.check(of_root(halves), (normal(5),)))

    assert not any(name.startswith("wrong-") for name in found)


def test_piece_of_a_formula_is():
    function = made(lambda x: x.clamp(-6, 6) ** 2, lambda g, x: 2 * g * x)

    assert "wrong-far-out" in wrong(pb.check(function, (normal(5),)))


def test_gradient_along_a_symmetric_matrix_may_be_symmetric():
    def solved(a, b):
        return torch.linalg.solve(a, b)

    def symmetric(g, a, b):
        x, y = torch.linalg.solve(a, b), torch.linalg.solve(a.mT, g)
        full = -torch.outer(y, x)
        return (full + full.mT) / 2, y

    root = normal(4, 4).detach()
    a = (root @ root.mT + 4 * torch.eye(4)).requires_grad_()

    assert wrong(pb.check(made(solved, symmetric), (a, normal(4, seed=1)))) == []


def test_gradient_that_is_wrong_within_symmetric_matrices_is_found():
    def traced(g, a):
        return g * torch.linalg.inv(a) * 1.5

    root = normal(4, 4).detach()
    a = (root @ root.mT + 4 * torch.eye(4)).requires_grad_()

    assert wrong(pb.check(made(lambda a: torch.logdet(a), traced), (a,))) != []


FORMULA = made(lambda x: x.sin(), lambda g, x: g * x.cos())


def until(tolerance):
    """The fixed point of `tanh(y) / 2 + x`, by as many rounds as it takes."""

    def forward(x):
        y, last = x, torch.full_like(x, torch.inf)
        while float((y - last).abs().max()) > tolerance:
            y, last = y.tanh() / 2 + x, y
        return y

    return made(forward, lambda g, x: g / (1 - (1 - forward(x).tanh() ** 2) / 2))


def test_rounds_of_a_solver_depend_on_the_values():
    solver, formula = (subject(f, normal(4)) for f in (until(1e-13), FORMULA))

    for one, is_other in ((solver, True), (formula, False)):
        tiny = one.small.put(0, one.small.args[0] * 1e-12, "tiny")
        assert goes_on_otherwise(one, tiny) == is_other


def summed(x):
    """Entry by entry."""
    total = x.new_zeros(())
    for one in x.flatten():
        total = total + one.sin()
    return total


def test_loop_over_entries_is_no_solver():
    loop = subject(made(summed, lambda g, x: g * x.cos()), normal(6, 8))
    solver = subject(of_root(halves), normal(6, 8))

    assert not approximates(loop)
    assert approximates(solver)
