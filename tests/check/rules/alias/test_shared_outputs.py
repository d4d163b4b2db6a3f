"""Sound functions pass `shared-outputs`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.alias.shared_outputs import check
from tests.check.subjects import findings, made, normal


def halves(y):
    return y[..., :2], y[..., 2:]


def pulled(one, two, x):
    return 2 * torch.cat([one, two], -1)


SOUND = {
    "apart": (
        made(lambda x: (2 * x[..., :2], 2 * x[..., 2:]), pulled),
        lambda: (normal(4, 5),),
    ),
    "one view": (made(lambda x: (x @ x.t())[:, 0], lambda g, x: None), lambda: (normal(4, 5),)),
}
PLANTED = {
    "halves": (made(lambda x: halves(2 * x), pulled), lambda: (normal(4, 5),), "outputs 0 and 1"),
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
