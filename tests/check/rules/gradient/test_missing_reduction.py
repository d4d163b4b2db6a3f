"""Sound functions pass `missing-reduction`; planted faults are caught, and named."""

import pytest

from pullback.check.rules.gradient.missing_reduction import check
from tests.check.subjects import findings, made, normal

X, BIAS = normal(6, 4), normal(4, seed=1)

SOUND = {
    "bias": (made(lambda x, bias: x + bias, lambda g, x, bias: (g, g.sum(0))), (X, BIAS)),
    "mean": (
        made(lambda x: x.mean(0), lambda g, x: (g / len(x)).expand_as(x)),
        (X,),
    ),
}

PLANTED = {
    "mean for sum": (
        made(lambda x, bias: x + bias, lambda g, x, bias: (g, g.mean(0))),
        (X, BIAS),
        "gradient of `bias`",
    ),
    "one number for all": (
        made(lambda x, bias: x + bias, lambda g, x, bias: (g, g.sum().expand(4) / 4)),
        (X, BIAS),
        "gradient of `bias`",
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_function_has_no_finding(name):
    target, args, *_ = SOUND[name]

    assert findings(check, target, *args) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name):
    target, args, at = PLANTED[name]

    found = findings(check, target, *args)

    assert [finding.rule.name for finding in found] == ["missing-reduction"] * len(found)
    assert at in found[0].at
