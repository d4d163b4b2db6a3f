"""Sound functions pass `wrong-fake`; planted faults are caught, and named."""

import pytest
import torch

from pullback.check.rules.compile.wrong_fake import check
from tests.check.subjects import findings, normal


@torch.library.custom_op("tests_wrong_fake::right", mutates_args=())
def right(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


@right.register_fake
def _(x):
    return x.new_empty(x.shape[:-1])


@torch.library.custom_op("tests_wrong_fake::wrong", mutates_args=())
def wrong(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


@wrong.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("tests_wrong_fake::absent", mutates_args=())
def absent(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


SOUND = {
    "right": (torch.ops.tests_wrong_fake.right, lambda: (normal(4, 3),)),
    "of pytorch": (torch.ops.aten.sum.dim_IntList, lambda: (normal(4, 3), [1])),
}
PLANTED = {
    "another shape": (torch.ops.tests_wrong_fake.wrong, lambda: (normal(4, 3),), "the fake kernel"),
    "none": (torch.ops.tests_wrong_fake.absent, lambda: (normal(4, 3),), "the fake kernel"),
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
