"""Tensors like a given one, the same for the same seed."""

import pytest
import torch

from pullback.capture.seeds import moved_a_little, normal, picked

GRID = torch.arange(1.0, 7.0).reshape(2, 3)


@pytest.mark.parametrize("make", [normal, moved_a_little, lambda t, seed: picked(t, (4, 5), seed)])
def test_numbers_follow_from_the_seed(make):
    first, state = make(GRID, 3), torch.random.get_rng_state()

    assert torch.equal(make(GRID, 3), first)
    assert not torch.equal(make(GRID, 4), first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_near_numbers_are_within_a_tenth():
    moved = moved_a_little(GRID.t(), 1)

    assert bool(((moved - GRID.t()).abs() <= 0.1 * GRID.t()).all())
    assert moved.stride() == GRID.t().stride()


def test_numbers_without_gradient_stay_as_they_are():
    counts = torch.tensor([1, 2])

    assert moved_a_little(counts, 1) is counts


def test_picked_elements_come_from_the_tensor():
    found = picked(GRID, (2, 2, 2), 1)

    assert found.shape == (2, 2, 2)
    assert set(found.flatten().tolist()) <= set(GRID.flatten().tolist())
    assert picked(torch.empty(0), (2,), 1).tolist() == [1, 1]
