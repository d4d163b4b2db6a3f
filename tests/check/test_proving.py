"""What a report says to be proved holds for all inputs; a search that fails is not told."""

import importlib

import pytest
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check import proving
from pullback.check.processes.endings import Died
from tests.check.subjects import made, normal

X = normal(4)


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class Halved(Swish):
    @staticmethod
    def backward(ctx, g):
        return Swish.backward(ctx, g) / 2


class Surrogate(Halved):
    declares = {"surrogate": "x"}  # noqa: RUF012


def through_numpy(x):
    return torch.from_numpy(x.detach().numpy() * 2.0) + 0 * x


@pytest.mark.parametrize("isolate", [True, False])
def test_right_gradient_is_proved_for_all_inputs(isolate):
    report = pb.check(Swish, (X,), isolate=isolate)

    assert report.proved.gradients == ("x",)
    assert report.proved.unknown == ()
    assert "  proved: the gradient of `x` for all inputs, for every size from 2 on" in str(report)


def test_each_gradient_is_proved():
    product = made(lambda a, b: a * b, lambda g, a, b: (g * b, g * a))

    assert "proved: the gradients of `a`, `b` for all inputs" in str(pb.check(product, (X, X + 1)))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("target", "options"),
    [
        (Halved, {}),
        (Surrogate, {}),
        (Swish, {"profile": "quick"}),
        (Swish, {"select": ["layout"]}),
        (through_numpy, {}),
    ],
    ids=["wrong", "surrogate", "quick", "not asked", "no Function"],
)
def test_nothing_is_said_where_nothing_is_tried(target, options):
    report = pb.check(target, (X,), **options)

    assert report.proved is None
    assert "proved:" not in str(report)


def test_what_cannot_be_read_is_not_proved():
    class Foreign(Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(x.detach().numpy() * 2.0)

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    report = pb.check(Foreign, (X,))

    assert report.proved.gradients == ()
    assert "  proved: nothing: " in str(report)


def test_search_that_dies_is_not_told(monkeypatch):
    def dies(task, seconds):
        raise Died("it was ended by SIGKILL")

    monkeypatch.setattr(proving, "answer_of", dies)
    report = pb.check(Swish, (X,))

    assert report.ok
    assert report.proved is None


def test_long_loop_is_not_searched(monkeypatch):
    asked = []

    def prove(function, *examples, seconds):
        asked.append(function)
        raise ValueError("no proof")

    monkeypatch.setattr(importlib.import_module("pullback.prove"), "prove", prove)

    def summed(x):
        total = x
        for _ in range(300):
            total = total + x
        return total

    looped = made(summed, lambda g, x: g * 301)
    for function in (looped, Swish):
        pb.check(function, (X,), isolate=False, select=["gradient"])

    assert asked == [Swish]
