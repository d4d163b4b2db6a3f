"""Sound functions pass `mixed-dtypes`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.dtype.mixed_dtypes import check
from tests.check.subjects import findings, made, normal


def right(g, x, w):
    return g * w, (g * x).sum_to_size(w.shape).to(w.dtype)


def rounded(g, x, w):
    return g * w, (g * x).sum_to_size(w.shape).to(x.dtype).to(w.dtype)


def promoted(x, w):
    """The product in the wider dtype."""
    dtype = torch.promote_types(x.dtype, w.dtype)
    return x.to(dtype) @ w.to(dtype)


def outer(g, x, w):
    return g @ w, x @ g


SOUND = {
    "by promotion alone": (
        made(lambda x, w: x[:, None] * w, outer),
        lambda: (normal(6), normal(8, seed=1)),
    ),
    "right": (made(lambda x, w: x * w, right), lambda: (normal(6, 8), normal(8, seed=1))),
}
PLANTED = {
    "promoted in forward alone": (
        made(promoted, lambda g, x, w: (g @ w.mT, x.mT @ g)),
        lambda: (normal(6, 8), normal(8, 3, seed=1)),
        "backward, for inputs of several dtypes",
    ),
    "rounded": (
        made(lambda x, w: x * w, rounded),
        lambda: (normal(6, 8), normal(8, seed=1)),
        "gradient of `w`",
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
