"""Sound functions pass `mixed-cotangent`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.linearity.mixed_cotangent import check
from tests.check.subjects import made, normal, rule_tests

X = normal(3, 6)


def cumsum(x):
    return x.cumsum(-1)


def reversed_sum(g):
    return g.flip(-1).cumsum(-1).flip(-1)


SOUND = {
    "cumulative sum": (made(cumsum, lambda g, x: reversed_sum(g)), (X,)),
    "prefix of squares": (
        made(lambda x: (x * x).cumsum(-1), lambda g, x: 2 * x * reversed_sum(g)),
        (X,),
    ),
    "softmax": (
        made(
            lambda x: x.softmax(-1),
            lambda g, x: x.softmax(-1) * (g - (g * x.softmax(-1)).sum(-1, keepdim=True)),
        ),
        (X,),
    ),
    "a number": (made(lambda x: x.sum(), lambda g, x: g.expand_as(x)), (X,)),
    "surrogate on purpose": (
        made(
            cumsum,
            lambda g, x: g.sum(-1, keepdim=True) - g.cumsum(-1) + g,
            declares={"surrogate": "x"},
        ),
        (X,),
    ),
}

PLANTED = {
    "total less the prefix": (
        made(cumsum, lambda g, x: g.sum(-1, keepdim=True) - g.cumsum(-1) + g),
        (X,),
        "large at its start",
    ),
    "total less the suffix": (
        made(
            lambda x: reversed_sum(x),
            lambda g, x: g.sum(-1, keepdim=True) - reversed_sum(g) + g,
        ),
        (X,),
        "large at its end",
    ),
    "neighbours by difference": (
        made(lambda x: x * x, lambda g, x: 2 * x * (g.cumsum(0) - (g.cumsum(0) - g))),
        (X,),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)


@pytest.mark.parametrize("name", PLANTED)
def test_gradcheck_alone_would_miss_it(name):
    target, args, _ = PLANTED[name]

    assert torch.autograd.gradcheck(target.apply, args)
