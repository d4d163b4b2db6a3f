"""The comparison of kernels with their program."""

import torch

from pullback.emit.triton import verify


def test_missing_triton_is_said(monkeypatch):
    monkeypatch.setattr(verify.importlib.util, "find_spec", lambda name: None)

    assert verify.interpreter_absence() == "Triton is not installed"


def test_small_differences_are_small():
    x = torch.tensor([1.0, -2.0, 0.0])

    assert verify._distance(x + 1e-7, x) < 1e-6
    assert verify._distance(x + torch.tensor([0.0, 0.0, 0.5]), x) > 0.1


def test_nan_in_another_place_is_a_difference():
    x = torch.tensor([1.0, float("nan")])

    assert verify._distance(x, x) == 0.0
    assert verify._distance(x.flip(0), x) == float("inf")
    assert verify._distance(torch.tensor([1.0, float("inf")]), torch.ones(2)) == float("inf")
