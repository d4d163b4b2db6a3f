"""Sound functions pass `wrong-in-threads`; planted faults are caught, and named."""

import threading

import torch
from torch.autograd import Function

from pullback.check.rules.context.wrong_in_threads import check
from tests.check.functions import Dropout, Product, Square
from tests.check.subjects import findings, normal, rule_tests


class Locked(Function):
    """A field of the class, used under a lock."""

    lock = threading.Lock()
    work = None

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with Locked.lock:
            Locked.work = x.detach()
            return Locked.work * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Racy(Product):
    total = 0.0  # a number, for the reason told at RacyForward

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        Racy.total = b.sum().item()
        da = g * b
        return da * (Racy.total / b.sum()), g * a


class RacyForward(Function):
    """A number on the class between forward and ctx.

    No tensor there: PyTorch itself crashes now and then when one thread drops a tensor that
    another one is saving, and these tests run in the process of all others.
    """

    scale = 0.0

    @staticmethod
    def forward(ctx, x):
        RacyForward.scale = x.abs().max().item()
        y = x * x.detach().abs().max()
        ctx.scale = RacyForward.scale
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale


_local = threading.local()


class Local(Function):
    @staticmethod
    def forward(ctx, x):
        _local.x = x.detach()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * _local.x.cos()


SOUND = {
    "square": (Square, lambda: (normal(5),)),
    "lock": (Locked, lambda: (normal(5),)),
    "random": (Dropout, lambda: (normal(5),)),
}
PLANTED = {
    "backward": (Racy, lambda: (normal(4), normal(4, seed=1)), "while other threads run too"),
    "forward": (RacyForward, lambda: (normal(4),), "while other threads run too"),
    "thread-local": (Local, lambda: (normal(4),), "in another thread than its forward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_one_thread_alone_shows_nothing():
    a, b = normal(4), normal(4, seed=1)

    assert torch.autograd.gradcheck(Racy.apply, (a, b))


def test_repro_of_a_moved_backward_runs_in_a_thread():
    (finding,) = findings(check, Local, normal(4))

    assert "thread = Thread(target=" in finding.repro
