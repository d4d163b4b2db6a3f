"""A watcher sees the calls of `apply` of its thread, and decides what they return."""

import torch

import pullback as pb
from pullback.function.call_watch import CallWatch, watch_calls


class Double(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_watcher_gets_the_call_and_gives_its_result():
    seen = []

    def announce(cls, call, args, kwargs):
        seen.append((cls, args, kwargs))
        return call(*args, **kwargs) + 1

    watch_calls(CallWatch(lambda: True, announce))
    try:
        got = Double.apply(torch.ones(2))
    finally:
        watch_calls(None)

    assert got.tolist() == [3.0, 3.0]
    assert [(cls, len(args), kwargs) for cls, args, kwargs in seen] == [(Double, 1, {})]


def test_watcher_that_is_off_is_not_asked():
    watch_calls(CallWatch(lambda: False, lambda *call: 1 / 0))
    try:
        got = Double.apply(torch.ones(2))
    finally:
        watch_calls(None)

    assert got.tolist() == [2.0, 2.0]
