"""Trials are the same for one seed, other for another, and keep what examples show."""

import random

import torch

from pullback.candidates.trials import (
    GIVEN,
    LARGE,
    LIKE,
    MANY,
    ZEROS,
    Trial,
    TrialMaker,
    ordinary,
    trials_of,
)
from pullback.judge.example import example_of


def maker(*args):
    return TrialMaker([example_of(args)])


def test_one_seed_gives_the_same_trials():
    one = list(trials_of([[3, 4]], random.Random(5)))

    assert one == list(trials_of([[3, 4]], random.Random(5)))
    assert one != list(trials_of([[3, 4]], random.Random(6)))


def test_trials_have_other_sizes_values_and_layouts():
    trials = list(trials_of([[30, 40]], random.Random(5)))

    assert {GIVEN, LIKE, LARGE, ZEROS} <= {trial.values for trial in trials}
    assert sum(bool(trial.sizes) for trial in trials) >= 4
    assert sum(bool(trial.layout) for trial in trials) >= 2
    assert trials[0].is_ordinary


def test_equal_trials_make_equal_arguments():
    made = maker(torch.randn(4, 5))
    trial = ordinary(random.Random(1))

    assert torch.equal(made.made(trial).args[0], made.made(trial).args[0])
    assert not torch.equal(made.made(trial).args[0], made.made(ordinary(random.Random(2))).args[0])


def test_many_numbers_are_drawn_like_those_given():
    given = torch.rand(MANY + 1) + 2
    (found,) = maker(given).made(ordinary(random.Random(1))).args

    assert float(found.min()) >= 2
    assert float(found.max()) <= 3
    assert not torch.equal(found, given)


def test_weights_of_ones_do_not_stay_ones():
    (found,) = maker(torch.ones(8)).made(ordinary(random.Random(1))).args

    assert len(found.unique()) > 4


def test_sizes_change_together():
    found = maker(torch.randn(4, 6), torch.randn(6, 5)).made(Trial(1, LIKE, {6: 9}))

    assert [tuple(arg.shape) for arg in found.args] == [(4, 9), (9, 5)]


def test_one_hot_targets_stay_one_hot():
    target = torch.eye(6)[torch.randint(6, (20,))]
    made = maker(torch.randn(20, 6), target)
    found = made.made(ordinary(random.Random(3)))

    assert found is None or bool((found.args[1].sum(-1) == 1).all())


def test_zeros_are_zeros():
    found = maker(torch.randn(3), torch.tensor([1, 2])).made(Trial(1, ZEROS))

    assert not found.args[0].any()


def test_layout_keeps_the_values():
    made = maker(torch.randn(6, 8))
    plain, other = made.made(Trial(9, LIKE)), made.made(Trial(9, LIKE, layout=4711))

    assert torch.equal(plain.args[0], other.args[0])
    assert not other.args[0].is_contiguous() or other.args[0].storage_offset()


def test_label_says_what_was_done():
    assert Trial(1, LIKE, {3: 5}).label() == "values like those given, size 3 as 5"
