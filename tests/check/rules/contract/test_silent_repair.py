"""Sound functions pass `silent-repair`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.contract.silent_repair import check
from tests.check.subjects import findings, made, normal, rule_tests

X, BIAS = normal(5, 4), normal(4, seed=1)
ADD = lambda x, bias: x + bias  # noqa: E731

SOUND = {
    "reduced": (made(ADD, lambda g, x, bias: (g, g.sum(0))), (X, BIAS)),
    "absent": (made(ADD, lambda g, x, bias: (g, None)), (X, BIAS)),
    "frozen": (made(ADD, lambda g, x, bias: (g, g)), (X, BIAS.detach())),
    "expanded": (made(lambda x: x.sum(), lambda g, x: g.expand_as(x)), (X,)),
}

PLANTED = {
    "not reduced": (made(ADD, lambda g, x, bias: (g, g)), (X, BIAS), "gradient of `bias`"),
    "narrower": (made(lambda x: x * 2, lambda g, x: (2 * g).float()), (X,), "gradient of `x`"),
    "wider": (
        made(lambda x: x * 2, lambda g, x: (2 * g).double()),
        (X.detach().float(),),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize(
    ("name", "weight"), [("not reduced", "wasteful"), ("narrower", "wrong"), ("wider", "wasteful")]
)
def test_lost_digits_weigh_most(name, weight):
    target, args, _ = PLANTED[name]

    assert str(findings(check, target, *args)[0].weight) == weight


def test_gradcheck_alone_would_miss_the_sum():
    assert torch.autograd.gradcheck(PLANTED["not reduced"][0].apply, (X, BIAS))
