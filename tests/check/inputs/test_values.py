"""Resampled values keep what the example's values are."""

import torch

from pullback.check.inputs.values import is_permutation, resampled


def test_probabilities_stay_probabilities():
    rows = torch.rand(4, 5).softmax(-1)
    new = resampled(rows, (3, 7), 1)

    assert torch.allclose(new.sum(-1), torch.ones(3))


def test_positive_values_stay_positive():
    assert bool((resampled(torch.rand(9) + 0.5, (50,), 1) > 0).all())


def test_definite_matrices_stay_definite():
    root = torch.randn(4, 4, dtype=torch.float64)
    new = resampled(root @ root.mT + torch.eye(4), (6, 6), 1)

    assert bool((torch.linalg.eigvalsh(new) > 0).all())


def test_permutation_stays_a_permutation():
    assert is_permutation(resampled(torch.tensor([2, 0, 1]), (8,), 1))


def test_whole_numbers_stay_whole():
    new = resampled(torch.tensor([1.0, 4.0, 2.0]), (20,), 1)

    assert torch.equal(new, new.round())


def test_one_draw_gives_one_result():
    old = torch.randn(4, 5)

    assert torch.equal(resampled(old, (3, 3), 7), resampled(old, (3, 3), 7))
