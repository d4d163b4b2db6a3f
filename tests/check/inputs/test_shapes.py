"""Sizes are symbols: what is equal changes together, and what follows a size follows."""

import torch

from pullback.check.inputs.shapes import (
    broadcast_of,
    empty_of,
    loosened,
    lower_ranks_of,
    many_of,
    oblong_of,
    ranks_of,
    resized,
    shares,
    smaller_of,
    untied,
)
from pullback.judge.example import example_of


def shapes(example):
    return [tuple(arg.shape) for arg in example.args if isinstance(arg, torch.Tensor)]


def test_equal_sizes_change_together():
    example = example_of((torch.randn(3, 4), torch.randn(4, 5)))

    assert shapes(resized(example, {4: 7}, "")) == [(3, 7), (7, 5)]


def test_integers_and_lengths_follow_a_size():
    example = example_of((torch.randn(7, 5), 7, [3, 2, 2]))
    _, number, lengths = resized(example, {7: 12}, "").args

    assert (number, sum(lengths), len(lengths)) == (12, 12, 3)


def test_indices_stay_below_the_new_size():
    example = example_of((torch.randn(6, 2), torch.tensor([5, 0, 3])))
    _, index = resized(example, {6: 2}, "").args

    assert int(index.max()) < 2


def test_shares_sum_to_the_total():
    assert sum(shares(11, 4, [3, 2])) == 11


def test_a_square_is_made_oblong():
    example = example_of((torch.randn(4, 4),))

    assert (4, 7) in [shapes(variant)[0] for variant in untied(example)]


def test_only_a_tensor_that_broadcasts_gets_size_one():
    broad = example_of((torch.randn(4, 5), torch.randn(5)))
    equal = example_of((torch.randn(4, 5), torch.randn(4, 5)))

    assert [shapes(one)[1] for one, _ in broadcast_of(broad)] == [(1,), (4, 1), (1, 5)]
    assert [shapes(written)[1] for _, written in broadcast_of(broad)] == [(5,), (4, 5), (4, 5)]
    assert list(broadcast_of(equal)) == []


def test_rows_with_labels_are_not_loosened():
    free = example_of((torch.randn(4, 5), torch.randn(4, 6)))
    labelled = example_of((torch.randn(4, 5), torch.tensor([0, 2, 1, 1])))

    assert [(8, 5), (4, 6)] in [shapes(variant) for variant in loosened(free)]
    assert list(loosened(labelled)) == []


def test_ranks_grow_but_indices_stay():
    labelled = example_of((torch.randn(3, 4), torch.tensor([0, 2, 1])))
    found = [shapes(variant) for variant in ranks_of(labelled)]

    assert found == [[(2, 3, 4), (3,)], [(4, 3, 4), (3,)], [(2, 3, 3, 4), (3,)]]


def test_lower_ranks_shrink_and_vanish():
    found = [shapes(variant)[0] for variant in lower_ranks_of(example_of((torch.randn(3, 4),)))]

    assert found == [(4,), ()]


def test_a_one_that_broadcasts_keeps_its_size():
    example = example_of((torch.randn(1, 5), torch.randn(5, 1), torch.randn(1)))

    assert shapes(resized(example, {1: 7}, "")) == [(7, 5), (5, 1), (1,)]


def test_only_the_batch_is_made_empty():
    example = example_of((torch.randn(3, 4), torch.randn(4)))

    assert [shapes(variant) for variant in empty_of(example)] == [[(0, 4), (4,)]]


def test_only_stacks_are_made_oblong():
    assert list(oblong_of(example_of((torch.randn(4, 4),)))) == []
    assert next(shapes(v)[0] for v in oblong_of(example_of((torch.randn(2, 4, 4),)))) == (2, 4, 7)


def test_many_has_the_elements_asked_for():
    (variant,) = many_of(example_of((torch.randn(5),)), 1000)

    assert variant.args[0].numel() >= 1000


def test_indices_reach_over_many_rows():
    example = example_of((torch.randn(8, 4), torch.tensor([1, 5, 1])))
    table, index = next(many_of(example, 10_000)).args

    assert len(table) > 2000
    assert int(index.max()) > 100


def test_small_example_is_not_made_smaller():
    assert list(smaller_of(example_of((torch.randn(3, 4),)))) == []
    assert next(smaller_of(example_of((torch.randn(300, 4),)))).size < 300


def test_numbers_for_each_dimension_keep_the_rank():
    grid = torch.rand(1, 4, 5, 2, requires_grad=True)

    assert list(ranks_of(example_of((grid, (5, 6))))) == []
    assert list(ranks_of(example_of((grid, 5))))
