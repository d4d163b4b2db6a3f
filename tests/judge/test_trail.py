"""What PyTorch sees of the way from an input to an output."""

import pytest
import torch

from pullback.judge.trail import is_followed
from tests.check.subjects import check_of, findings, normal

check = check_of("cut-gradient")


def through_numpy(x, w):
    """The values of `w` leave PyTorch."""
    return x * torch.as_tensor(w.detach().numpy().copy() ** 2)


def through_detach(x, w):
    """A gradient that is stopped on purpose."""
    return x * w.detach().exp()


def through_buffer(x, w):
    """Written into other memory, by an op."""
    made = torch.empty_like(w)
    made.copy_(w.detach())
    return x * made


def without(x, w):
    """An input that changes nothing."""
    return x * 2


@pytest.mark.parametrize("call", [through_detach, through_buffer])
def test_ops_are_followed(call):
    assert is_followed(call, (normal(3).detach(), normal(3, seed=1).detach()), 1)


@pytest.mark.parametrize("call", [through_numpy, without])
def test_what_leaves_is_not_followed(call):
    assert not is_followed(call, (normal(3).detach(), normal(3, seed=1).detach()), 1)


def test_cut_by_numpy_is_found():
    found = findings(check, through_numpy, normal(3), normal(3, seed=1))

    assert len(found) == 1
    assert "gradient of `w`" in found[0].at


@pytest.mark.parametrize("call", [through_detach, through_buffer, without])
def test_other_ends_are_no_finding(call):
    assert findings(check, call, normal(3), normal(3, seed=1)) == []
