"""A rule that takes long is no hang of the function: only one call that does not end is."""

import threading
import time

import pytest
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.processes.endings import Died
from pullback.check.processes.watch import Seen, Watch
from pullback.judge.progress import Progress


class Silent:
    """A connection on which nothing comes, while this process works."""

    def poll(self, seconds):
        end = time.process_time() + seconds / 10
        while time.process_time() < end:
            pass
        return False


def death(progress, size=10):
    import os

    with pytest.raises(Died) as raised:
        Watch(os.getpid(), 0.4, 60.0, Seen(progress, size)).wait(Silent())
    return raised.value


def test_one_call_that_does_not_end_is_a_hang():
    progress = Progress()
    progress.begin(10)

    assert (death(progress).is_hang, death(progress).is_slow) == (True, False)


def test_many_calls_are_slow():
    progress, is_over = Progress(), threading.Event()

    def work():
        while not is_over.wait(0.01):
            progress.begin(10)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert death(progress).is_slow
    finally:
        is_over.set()
        thread.join()


def test_one_larger_call_is_slow():
    progress = Progress()
    progress.begin(11)

    assert death(progress).is_slow


class SlowWhenLarge(Function):
    """Sound, and without an end for more than twenty numbers."""

    @staticmethod
    def forward(ctx, x):
        while x.numel() > 20:
            pass
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


@pytest.mark.slow
def test_function_that_is_slow_at_a_size_of_ours_has_no_finding():
    report = pb.check(SlowWhenLarge, (torch.randn(4, 5),), profile="quick")

    assert report.findings == ()
    assert any("trials take too long" in skip.reason for skip in report.skips)
