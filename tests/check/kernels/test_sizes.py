"""Sizes that no block divides."""

import torch

from pullback.check.kernels.sizes import ODD, odd_sizes
from pullback.check.subject.subject import Subject
from pullback.check.target.target import target_of
from pullback.judge.example import example_of
from tests.check import functions as f


def test_every_size_is_another_one_first():
    subject = Subject(target_of(f.Square), (example_of((torch.ones(8, 16),)),))

    first, *rest = (tuple(example.args[0].shape) for example in odd_sizes(subject))

    assert first == ODD[:2]
    assert (8, 129) in rest
    assert all(set(shape) & set(ODD) for shape in rest)
