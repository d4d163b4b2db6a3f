"""Sound functions pass `leaked-graph`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.rules.memory.leaked_graph import check
from tests.check.functions import Exp
from tests.check.subjects import findings, normal, rule_tests

X = normal(4)
SEEN = []


class Cycle(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y.detach()


class Ours(pb.Function):
    """The same on a `pb.Function`, which saves what lies on ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class Listed(Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.append(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Cached(Function):
    last = None

    @staticmethod
    def forward(ctx, x):
        Cached.last = x
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class LastPair(Function):
    """Holds the last call only, which does not grow."""

    kept = None

    @staticmethod
    def forward(ctx, x, w):
        LastPair.kept = (x, w)
        return x + w

    @staticmethod
    def backward(ctx, g):
        return g, g


class ByNode(Function):
    """Holds one entry per node for ever."""

    pending = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        ctx.key = id(ctx)
        ByNode.pending[ctx.key] = x
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Detached(Function):
    """Keeps another tensor with the memory of each output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        SEEN.append(y.detach())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


TABLE = torch.arange(8.0)


class Table(Function):
    """Returns a part of one table, besides."""

    @staticmethod
    def forward(ctx, x):
        part = TABLE[: x.shape[0]]
        ctx.mark_non_differentiable(part)
        return 2 * x, part

    @staticmethod
    def backward(ctx, g, _):
        return 2 * g


SOUND = {
    "table": (Table, (X,)),
    "saved": (Exp, (X,)),
    "ours": (Ours, (X,)),
    "only the last": (Cached, (X,)),
    "the last pair": (LastPair, (X, normal(4, seed=1))),
}

PLANTED = {
    "cycle": (Cycle, (X,), "output 0"),
    "list": (Listed, (X,), "input `x`"),
    "by node": (ByNode, (X,), "input `x`"),
    "detached": (Detached, (X,), "output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize(("name", "words"), [("cycle", "collector only"), ("list", "still held")])
def test_kind_of_leak_is_told(name, words):
    (finding,) = findings(check, PLANTED[name][0], X)

    assert words in finding.got
