"""Sound functions pass `wrong-at-mask`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.domain.wrong_at_mask import check
from tests.check.subjects import findings, made, normal


def mean(x, m):
    return (x * m).sum() / m.sum().clamp(min=1)


SOUND = {
    "guarded": (
        made(mean, lambda g, x, m: (g * m / m.sum().clamp(min=1), None)),
        lambda: (normal(6), torch.tensor([True, False, True, True, False, True])),
    ),
    "neither": (
        made(lambda x, m: (x * m).sum() / m.sum(), lambda g, x, m: (g * m / m.sum(), None)),
        lambda: (normal(6), torch.tensor([True, False, True, True, False, True])),
    ),
}
PLANTED = {
    "empty": (
        made(mean, lambda g, x, m: (g * m / m.sum(), None)),
        lambda: (normal(6), torch.tensor([True, False, True, True, False, True])),
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
