"""Refusals that an author meant, and accidents."""

import pytest
import torch

from pullback.check.subject.refusal import is_accident, is_meant


def raised(work):
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def refuses():
    raise RuntimeError("no second derivative")


def not_there():
    raise NotImplementedError


def bare():
    raise AssertionError


def as_pytest_writes():
    raise AssertionError("assert not True\n +  where True = g.requires_grad")


MEANT = {"with words": refuses, "not implemented": not_there}
ACCIDENTS = {
    "a bare assertion": bare,
    "a bare assertion under pytest": as_pytest_writes,
    "no such attribute": lambda: torch.ones(2).not_there,
    "too few values": lambda: [x for (x, _) in [(1,)]],
}


@pytest.mark.parametrize("name", MEANT)
def test_refusal_is_meant(name):
    error = raised(MEANT[name])

    assert is_meant(error)
    assert not is_accident(error)


@pytest.mark.parametrize("name", ACCIDENTS)
def test_accident_is_not_meant(name):
    error = raised(ACCIDENTS[name])

    assert is_accident(error)
    assert not is_meant(error)


def test_what_pytorch_says_is_neither():
    error = raised(lambda: torch.ones(2) @ torch.ones(3))

    assert not is_meant(error)
    assert not is_accident(error)
