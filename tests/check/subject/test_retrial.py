"""A fault of values is not blamed on a size or on ties, and one of sizes still is."""

import pytest
import torch

import pullback as pb
from pullback.check.subject.retrial import by_shape, by_ties, set_aside
from pullback.check.subject.trials import TriedVariant, trial_of
from tests.check.subjects import made, normal, subject

Function = torch.autograd.Function
X = 0.3 * normal(10).detach()


class Clipped(Function):
    """Beyond 1 it is constant, and backward does not know."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() < 1, x * x, torch.ones_like(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Blocks(Function):
    """The gradient of the last, partial block of four is dropped."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = 2 * x * g
        if len(x) > 12:
            grad[len(x) // 4 * 4 :] = 0
        return grad


def found_at(target, value):
    """A subject, and a trial of it at another value."""
    tried = subject(target, X)
    trial = trial_of(tried, tried.small.put(0, value, "another"))
    assert isinstance(trial, TriedVariant)
    assert trial.mismatches
    return tried, trial


def test_value_beyond_threshold_is_no_size():
    value = torch.cat([X, X, 4 * X[:5], X])
    tried, trial = found_at(Clipped, value)

    assert [left.mismatches for left in by_shape(tried, [trial])] == [()]
    assert [aside.example.args[0].shape for aside in set_aside(tried)] == [(10,)]


def test_partial_block_is_still_a_size():
    tried, trial = found_at(Blocks, torch.cat([X, X[:5]]))

    assert [len(left.mismatches) for left in by_shape(tried, [trial])] == [1]
    assert set_aside(tried) == []


def test_value_beyond_threshold_is_no_tie():
    tried, trial = found_at(Clipped, (5 * X).round())

    assert [left.mismatches for left in by_ties(tried, [trial])] == [()]


def test_fault_at_ties_is_still_one():
    class Largest(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.amax(0)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x == x.amax(0))

    report = pb.check(Largest, (X,), profile="standard")

    assert "wrong-at-ties" in [finding.rule.name for finding in report.findings]


@pytest.mark.parametrize(
    ("target", "rule"), [(Clipped, "wrong-far-out"), (Blocks, "wrong-at-size")]
)
def test_whole_check_names_the_right_rule(target, rule):
    report = pb.check(target, (X,), select=["shape", "domain"], profile="quick")

    assert [finding.rule.name for finding in report.findings] == [rule]


def table(x, i):
    return x[i]


def assigned(g, x, i):
    return torch.zeros_like(x).index_copy(0, i, g), None


def test_repeated_index_is_no_size():
    tried = subject(made(table, assigned), normal(6, 3), torch.tensor([0, 2, 5, 1]))
    one = tried.small.put(0, normal(1, 3), "one row").put(1, torch.zeros(4).long(), "one row")

    assert trial_of(tried, one).mismatches
    assert [left.mismatches for left in by_shape(tried, [trial_of(tried, one)])] == [()]


def test_count_of_mask_is_no_size():
    def mean(x, m):
        return (x * m).sum(-1) / m.sum(-1).clamp(min=1)

    def pull(g, x, m):
        return (g / m.shape[-1])[:, None] * m, None

    tried = subject(made(mean, pull), normal(4, 6), torch.ones(4, 6).bool())
    mask = torch.arange(10).reshape(2, 5) % 2 == 0
    other = tried.small.put(0, normal(2, 5), "smaller").put(1, mask, "smaller")

    assert trial_of(tried, other).mismatches
    assert [left.mismatches for left in by_shape(tried, [trial_of(tried, other)])] == [()]


class Spread(Function):
    """Its square root is guarded in forward only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.var(-1, unbiased=False) + 1e-8).sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        apart = x - x.mean(-1, keepdim=True)
        spread = apart.square().mean(-1, keepdim=True).sqrt()
        return g[..., None] * apart / (x.shape[-1] * spread)


def test_row_of_one_is_told_as_equal_entries():
    tried = subject(Spread, normal(4, 6))
    trial = trial_of(tried, tried.small.put(0, normal(4, 1), "one column"))

    assert trial.mismatches
    assert [left.mismatches for left in by_shape(tried, [trial])] == [()]


def test_quotient_of_zeros_is_a_tie():
    tried = subject(Spread, normal(4, 6))
    trial = trial_of(tried, tried.small.put(0, torch.ones(4, 6).double(), "equal"))

    assert [len(left.mismatches) for left in by_ties(tried, [trial])] == [1]


class Direction(Function):
    """The direction of the longest axis: of zeros there is none, nor a gradient of PyTorch's."""

    @staticmethod
    def forward(ctx, x):
        _, s, v = torch.linalg.svd(x, full_matrices=False)
        ctx.save_for_backward(x, s, v)
        return v[0].unsqueeze(1) * v[0]

    @staticmethod
    def backward(ctx, g):
        x, s, v = ctx.saved_tensors
        gap = s[0] ** 2 - s[1:] ** 2
        k = (v[1:] @ (g + g.T) @ v[0]) / gap
        m = (v[1:].T @ k).unsqueeze(1) * v[0]
        return x @ (m + m.T)


class Unit(Function):
    """A row over its length, zero for zeros; backward divides by zero there."""

    @staticmethod
    def forward(ctx, x):
        size = x.norm()
        ctx.save_for_backward(x)
        return torch.where(size > 0.1, x / size.clamp(min=0.1), x / 0.1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        size = x.norm()
        unit = x / size
        return torch.where(size > 0.1, (g - unit * (g * unit).sum()) / size, g * unit / unit / 0.1)


@pytest.mark.parametrize(("target", "found"), [(Direction, []), (Unit, ["wrong-at-zero"])])
def test_jump_without_a_gradient_is_no_fault_of_zeros(target, found):
    x = normal(3, 2).detach().requires_grad_()

    report = pb.check(target, (x,), select=["wrong-at-zero"])

    assert [finding.rule.name for finding in report.findings] == found
