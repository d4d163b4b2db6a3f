"""The trade of memory against work has points, each with a time."""

import torch

import pullback as pb
from pullback.capture.joint import capture
from pullback.derive.trade import trade_of


def program(x, w):
    return ((x @ w).sigmoid() * x.sum()).exp(), x.argmax()


def inputs():
    return [torch.randn(8, 8, requires_grad=True) for _ in range(2)]


def test_every_point_has_its_time():
    ticks = iter(range(10_000))
    row = inputs()
    points = trade_of(capture(program, row), row, clock=lambda: float(next(ticks)))

    assert len(points) > 2
    assert [point.time for point in points] == [1.0] * len(points)


def test_bytes_fall_as_flops_rise():
    row = inputs()
    points = pb.derive(program, *row).frontier(*row)
    saved, flops = [p.bytes for p in points], [p.flops for p in points]

    assert saved == sorted(set(saved), reverse=True)
    assert flops == sorted(set(flops))
    assert flops[0] == 0
    assert all(point.time > 0 for point in points)


def test_points_are_for_the_call():
    derived = pb.derive(program, *inputs())
    large = [torch.randn(16, 16, requires_grad=True) for _ in range(2)]

    assert derived.frontier(*large)[0].bytes > derived.frontier(*inputs())[0].bytes
