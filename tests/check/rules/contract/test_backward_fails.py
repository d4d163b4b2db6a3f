"""Sound functions pass `backward-fails`; planted faults are caught, and named."""

from torch.autograd import Function

from pullback.check.rules.contract.backward_fails import check
from tests.check.subjects import findings, made, normal, rule_tests

X, W = normal(3, 4), normal(4, seed=1)


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


SOUND = {
    "product": (made(lambda x, w: x * w, lambda g, x, w: (g * w, (g * x).sum(0))), (X, W)),
    "one too many, which is None": (made(lambda x: x * 2, lambda g, x: (2 * g, None)), (X,)),
    "no gradient at all": (made(lambda x: x.argmax(), lambda g, x: None), (X,)),
}

PLANTED = {
    "too few": (made(lambda x, w: x * w, lambda g, x, w: g * w), (X, W), "backward"),
    "too many": (made(lambda x: x * 2, lambda g, x: (2 * g, g)), (X,), "backward"),
    "shape": (made(lambda x: x.sum(0), lambda g, x: g.expand(5, 4)), (X,), "backward"),
    "raises": (made(lambda x: x * 2, lambda g, x: [][0]), (X,), "backward"),
    "complex": (made(lambda x: x * 2, lambda g, x: g * 2j), (X,), "backward"),
    "none written": (NoBackward, (X,), "backward"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


class Optional(Function):
    """A gradient less than it has arguments, as long as one of them is left out."""

    @staticmethod
    def forward(ctx, x, alpha, weight=None):
        ctx.alpha = alpha
        return x * alpha

    @staticmethod
    def backward(ctx, g):
        return g * ctx.alpha, None


def test_argument_left_out_is_given_as_well():
    (finding,) = findings(check, Optional, X, 0.5)

    assert finding.weight == "fragile"
    assert finding.at == "backward, with `weight` given as by default"


def test_fix_follows_what_engine_says():
    (finding,) = findings(check, PLANTED["too few"][0], X, W)

    assert finding.fix == "return one value per argument of forward, None where none"
