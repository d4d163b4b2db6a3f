"""`pb.check` runs with the reference, and its findings come as plain data."""

import torch

from pullback.candidates.checker import _check
from pullback.candidates.sources import sendable
from pullback.judge.example import example_of


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def test_wrong_gradients_are_found(tmp_path):
    torch.save([example_of((torch.randn(3),))], tmp_path / "examples.pt")
    reference = sendable(lambda x: 2 * x, "reference")
    said = _check(
        sendable(Doubled, "candidate"),
        reference,
        str(tmp_path / "examples.pt"),
        None,
        "quick",
        20.0,
    )

    assert said["findings"][0]["severity"] == "wrong"
    assert said["rules"] > 10
    assert said["left"] == 0


def test_no_rule_begins_when_enough_was_computed(tmp_path):
    torch.save([example_of((torch.randn(3),))], tmp_path / "examples.pt")
    doubled, reference = sendable(Doubled, "candidate"), sendable(lambda x: 2 * x, "reference")
    said = _check(doubled, reference, str(tmp_path / "examples.pt"), None, "quick", 0.0)

    assert said["left"] == said["rules"] > 10
    assert said["findings"] == []
