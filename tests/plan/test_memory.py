"""Saved bytes count once and without what is there anyway; the peak is the most at once."""

import contextlib

import torch
from torch.autograd import profiler_legacy

from pullback.plan.memory import peak_bytes, saved_bytes

CPU = torch.device("cpu")


def test_inputs_are_kept_for_nothing():
    x = torch.ones(100, requires_grad=True)

    assert saved_bytes(lambda: x.sin(), []) == 400
    assert saved_bytes(lambda: x.sin(), [x]) == 0


def test_memory_kept_twice_counts_once():
    x = torch.ones(100, requires_grad=True)

    def run():
        y = x.exp()  # kept by exp, and twice by the product
        return y * y

    assert saved_bytes(run, [x]) == 400


def test_view_keeps_its_whole_memory():
    x = torch.ones(100, requires_grad=True)

    assert saved_bytes(lambda: (x * 1)[:10].sin(), [x]) == 400


def test_peak_counts_what_lives_together():
    def together():
        a, b = torch.empty(1000), torch.empty(500)
        return a.dim() + b.dim()

    def in_turn():
        torch.empty(1000)
        torch.empty(500)

    assert peak_bytes(together, CPU) == 6000
    assert peak_bytes(in_turn, CPU) == 4000


def test_unknown_device_has_no_peak():
    assert peak_bytes(lambda: None, torch.device("meta")) is None


def test_torch_without_old_profiler_has_none(monkeypatch):
    monkeypatch.delattr(profiler_legacy, "_enable_profiler_legacy")

    assert peak_bytes(lambda: None, CPU) is None


def test_profiler_is_off_after_an_error():
    def fails():
        raise ZeroDivisionError

    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            peak_bytes(fails, CPU)

    assert peak_bytes(lambda: torch.empty(10), CPU) == 40
