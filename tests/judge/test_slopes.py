"""Slopes of forward along one entry: with their error, and silent where there is none."""

import torch

from pullback.judge.example import Example
from pullback.judge.reference import Reference
from pullback.judge.slopes import Slopes


def slopes_of(program, x):
    example = Example((x,), frozenset({0}))
    return Slopes(Reference(program), example, (torch.ones_like(program(x)),), 0)


def test_entry_is_the_derivative():
    slopes = slopes_of(torch.sin, torch.tensor([0.3, 2.0], dtype=torch.float64))

    assert abs(slopes.entry(1) - float(torch.tensor(2.0).cos())) < 1e-6
    assert slopes.entry(1, certain=1e-4) == slopes.entry(1)


def test_middle_of_a_kink_is_not_certain():
    slopes = slopes_of(torch.abs, torch.tensor([0.0, 2.0], dtype=torch.float64))

    assert abs(slopes.entry(0)) < 1e-6
    assert slopes.entry(0, certain=1e-4) is None


def test_entry_of_complex_input_has_two_parts():
    z = torch.tensor([1 + 2j], dtype=torch.complex128)
    slopes = slopes_of(lambda z: z.abs().square(), z)

    assert abs(slopes.entry(0) - 2 * z.item()) < 1e-6


def test_random_directions_are_the_same_each_time():
    x = torch.tensor([0.3, 2.0], dtype=torch.float64)
    slopes = slopes_of(torch.sin, x)
    pairs = zip(slopes.directions(x), slopes.directions(x), strict=True)

    assert all(torch.equal(one, two) and one.abs().max() == 1 for one, two in pairs)
