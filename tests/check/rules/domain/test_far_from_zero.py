"""Sound functions pass `far-from-zero`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.domain.far_from_zero import check
from tests.check.subjects import findings, made, normal


def normed(x):
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(spread(x) + 1e-5)


def spread(x):
    return x.var(-1, unbiased=False, keepdim=True)


def careless(x):
    return (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2


def pulled(g, x, variance):
    scale = torch.rsqrt(variance + 1e-5)
    y = (x - x.mean(-1, keepdim=True)) * scale
    return scale * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))


SOUND = {
    "variance": (made(normed, lambda g, x: pulled(g, x, spread(x))), lambda: (normal(6, 30),)),
    "power": (made(lambda x: x**3, lambda g, x: 3 * g * x**2), lambda: (normal(6),)),
}
PLANTED = {
    "difference": (
        made(normed, lambda g, x: pulled(g, x, careless(x))),
        lambda: (normal(6, 30),),
        "gradient of `x`",
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_function_has_no_finding(name):
    target, args = SOUND[name]

    assert findings(check, target, *args()) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name):
    target, args, at = PLANTED[name]
    found = findings(check, target, *args())

    assert [at in finding.at for finding in found] == [True]
