"""The Functions of `examples/my_ops.py`: two are sound, one is wrong on purpose."""

import pytest
import torch

import pullback as pb
from examples import my_ops

INPUTS = {
    "Square": (torch.linspace(-2, 2, 8), 1.5),
    "Gate": (torch.linspace(-2, 2, 8), torch.linspace(0, 3, 8)),
    "Swish": (torch.linspace(-2, 2, 8),),
}


@pytest.mark.parametrize("name", ["Square", "Gate"])
def test_sound_one_has_no_finding(name):
    assert pb.check(getattr(my_ops, name), INPUTS[name], profile="quick").ok


def test_wrong_one_is_found():
    report = pb.check(my_ops.Swish, INPUTS["Swish"], select=["gradient"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-gradient"]


def test_training_looks_as_if_all_were_well():
    losses = my_ops.train()

    assert losses == sorted(losses, reverse=True)
