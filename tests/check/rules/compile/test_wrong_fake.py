"""Sound functions pass `wrong-fake`; planted faults are caught, and named."""

import torch

from pullback.check.rules.compile.wrong_fake import check
from tests.check.subjects import normal, rule_tests


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


@torch.library.custom_op("tests_wrong_fake::single", mutates_args=())
def single(x: torch.Tensor) -> torch.Tensor:
    return x.float().sum(-1)


@single.register_fake
def _(x):
    return x.new_empty(x.shape[:-1])


@torch.library.custom_op("tests_wrong_fake::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@turned.register_fake
def _(x):
    return torch.empty_like(x)


def calling(op):
    """A program that calls an op."""
    return lambda x: op(2 * x)


SOUND = {
    "right": (torch.ops.tests_wrong_fake.right, lambda: (normal(4, 3),)),
    "a program with it": (calling(right), lambda: (normal(4, 3),)),
    "a program with one without": (calling(absent), lambda: (normal(4, 3),)),
    "of pytorch": (torch.ops.aten.sum.dim_IntList, lambda: (normal(4, 3), [1])),
}
PLANTED = {
    "another shape": (torch.ops.tests_wrong_fake.wrong, lambda: (normal(4, 3),), "the fake kernel"),
    "none": (torch.ops.tests_wrong_fake.absent, lambda: (normal(4, 3),), "the fake kernel"),
    "another dtype": (single, lambda: (normal(4, 3).float(),), "the fake kernel"),
    "other strides": (turned, lambda: (normal(4, 3),), "the fake kernel"),
    "in a program": (calling(turned), lambda: (normal(4, 3),), "op `tests_wrong_fake::turned`"),
    "a dtype in a program": (
        calling(single),
        lambda: (normal(4, 3).float(),),
        "op `tests_wrong_fake::single`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
