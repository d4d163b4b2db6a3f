"""Sound functions pass `changed-setting`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.rules.state.changed_setting import check
from tests.check.subjects import normal, rule_tests


@pytest.fixture(autouse=True)
def settings():
    """The settings are put back, whatever the functions under test do."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


class Plain(Function):
    """Sets nothing."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Dtype(Function):
    """Leaves another default dtype."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        torch.set_default_dtype(grad.dtype)
        return 2 * grad


class Threads(Function):
    """Leaves another number of threads."""

    @staticmethod
    def forward(ctx, x):
        torch.set_num_threads(torch.get_num_threads() + 1)
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


SOUND = {
    "plain": (Plain, lambda: (normal(4, 3),)),
}
PLANTED = {
    "dtype": (Dtype, lambda: (normal(4, 3),), "default dtype"),
    "threads": (Threads, lambda: (normal(4, 3),), "number of threads"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
