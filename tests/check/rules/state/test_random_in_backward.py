"""Sound functions pass `random-in-backward`; planted faults are caught, and named."""

import random

import numpy as np
import torch
from torch.autograd import Function

from tests.check.functions import Dropout
from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("random-in-backward")

X = normal(16)


class Counts(Function):
    """Differs from backward to backward, and draws nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = 1.0
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ctx.scale *= 0.5
        return 4 * x * g * ctx.scale


class Rewinds(Function):
    """Goes back to forward's numbers, which are right, and leaves the generator there."""

    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.get_rng_state()
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx, g):
        torch.set_rng_state(ctx.state)
        return g * torch.rand_like(g)


def restored(g, x):
    """Draws, and puts the generator back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return 2 * x * g + 0 * torch.rand_like(g)


class Redrawn(Function):
    """Drops what it likes in forward, and anew in backward."""

    @staticmethod
    def forward(ctx, x, p=0.0):
        ctx.p = p
        return torch.nn.functional.dropout(x, p, p > 0)

    @staticmethod
    def backward(ctx, g):
        return torch.nn.functional.dropout(g, ctx.p, ctx.p > 0), None


class Kept(Redrawn):
    """Keeps what it has drawn."""

    @staticmethod
    def forward(ctx, x, p=0.0):
        mask = torch.nn.functional.dropout(torch.ones_like(x), p, p > 0)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


SQUARE = lambda x: x * x  # noqa: E731

SOUND = {
    "dropout of zero": (Kept, (X,)),
    "drawn in forward": (Dropout, (X,)),
    "restored": (made(SQUARE, restored), (X,)),
    "counts": (Counts, (X,)),
    "declared": (
        made(
            SQUARE, lambda g, x: 2 * x * g + torch.rand_like(g), declares={"nondeterministic": 1.0}
        ),
        (X,),
    ),
}

PLANTED = {
    "dropout of zero": (Redrawn, (X,), "gradient of `x`"),
    "mask": (made(SQUARE, lambda g, x: 2 * x * g * (torch.rand_like(g) > 0.5)), (X,), "of `x`"),
    "for nothing": (made(SQUARE, lambda g, x: 2 * x * g + 0 * torch.rand_like(g)), (X,), "PyTorch"),
    "python": (made(SQUARE, lambda g, x: 2 * x * g * random.random()), (X,), "gradient of `x`"),
    "numpy": (made(SQUARE, lambda g, x: 2 * x * g * np.random.rand()), (X,), "gradient of `x`"),
    "rounding": (
        made(lambda x: x * 4, lambda g, x: (256 * g + torch.rand_like(g)).floor() / 64),
        (X,),
        "gradient of `x`",
    ),
    "rewinds": (Rewinds, (X,), "PyTorch"),
    "seldom": (made(SQUARE, lambda g, x: 2 * x * g * (random.randrange(8) > 0)), (X,), "of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_draw_for_nothing_is_fragile():
    (finding,) = findings(check, *PLANTED["for nothing"][:1], X)

    assert str(finding.weight) == "fragile"


def test_generators_are_left_as_they_were():
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    findings(check, PLANTED["seldom"][0], X)
    after = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()

    assert after == before
