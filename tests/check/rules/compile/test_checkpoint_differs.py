"""Sound functions pass `checkpoint-differs`; planted faults are caught, and named."""

import random

import torch
from torch.autograd import Function

from pullback.check.rules.compile.checkpoint_differs import check
from tests.check.functions import Square
from tests.check.subjects import normal, rule_tests


class Dropout(Function):
    """Checkpointing replays PyTorch's generator."""

    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand(x.shape) > p
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class PythonMask(Dropout):
    @staticmethod
    def forward(ctx, x, p):
        mask = torch.tensor([random.random() > p for _ in range(x.numel())])
        ctx.save_for_backward(mask)
        return x * mask


class Alternates(Function):
    count = 0

    @staticmethod
    def forward(ctx, x):
        Alternates.count += 1
        ctx.k = 1 + Alternates.count % 2
        return x * ctx.k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k


SOUND = {
    "square": (Square, lambda: (normal(5),)),
    "dropout": (Dropout, lambda: (normal(20), 0.5)),
}


class ReadsTwice(Function):
    """Asks how many tensors were saved before it takes them: a checkpoint gives each once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        assert len(ctx.saved_tensors) == 2
        return g * ctx.saved_tensors[1]


PLANTED = {
    "saved tensors read twice": (ReadsTwice, (normal(5),), "use_reentrant=False"),
    "python's generator": (PythonMask, lambda: (normal(20), 0.5), "output 0"),
    "counter": (Alternates, lambda: (normal(5),), "output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
