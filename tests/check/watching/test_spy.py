"""A watched Function computes the same, and tells what its methods did."""

import torch
from torch.autograd import Function

from pullback.check.target.target import target_of
from pullback.check.watching.spy import marking_of, spy_on
from tests.check import functions as f
from tests.check.subjects import normal


class InPlace(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(ctx, g):
        return g, g


class InSetup(Function):
    @staticmethod
    def forward(x, scale=2):
        return x, x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g, h):
        return g + 2 * h, None


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def test_call_of_backward_is_kept():
    spy = spy_on(target_of(f.Product))
    a, b = normal(3), normal(3, seed=1).detach()
    (grad,) = torch.autograd.grad(spy.target.call(a, b).sum(), a)

    (call,) = spy.calls

    assert call.needs == (True, False)
    assert torch.equal(call.returned[0], grad)
    assert torch.equal(call.returned[1], a)


def test_backward_runs_inside_given_context():
    spy = spy_on(target_of(f.Square), lambda: torch.autograd.set_grad_enabled(True))
    x = normal(3)
    (grad,) = torch.autograd.grad(spy.target.call(x).sum(), x)

    assert grad.requires_grad


def test_function_without_backward_cannot_be_watched():
    assert spy_on(target_of(NoBackward)) is None


def test_marks_and_writes_are_told():
    marking = marking_of(target_of(InPlace))
    marking.target.call(torch.ones(2), torch.ones(2))

    (marks,) = marking.marks

    assert (marks.dirty, marks.written) == ({0}, {0})


def test_mark_without_write_is_told():
    marking = marking_of(target_of(InSetup))
    marking.target.call(torch.ones(2))

    (marks,) = marking.marks

    assert (marks.dirty, marks.written) == ({0}, set())
