"""Fresh inputs keep what makes the examples valid, and part sizes that are equal by chance."""

import pytest
import torch

from pullback.capture.joint import capture
from pullback.diagnose.fresh_inputs import drawn_anew, moved, shapes_resized, unlike_shapes
from tests.diagnose.faulty import row


def shapes_of(program, *examples):
    """The shapes that part equal sizes."""
    return unlike_shapes(capture(program, examples, needs=[True] * len(examples)), examples)


def test_values_keep_their_signs():
    x = row(200)

    assert torch.equal(moved(x, 1).sign(), x.sign())
    assert bool((drawn_anew(x.abs(), (50,), 2) > 0).all())
    assert not torch.equal(moved(x, 1), x)


def test_zeros_give_no_domain_to_keep():
    assert bool((moved(torch.zeros(5), 1) != 0).all())


def test_whole_numbers_are_never_moved():
    index = torch.tensor([3, 1, 2])

    assert torch.equal(moved(index, 1), index)
    assert torch.equal(drawn_anew(index, (3,), 2), index)
    with pytest.raises(ValueError, match="have no other shape"):
        drawn_anew(index, (20,), 2)


def test_square_examples_are_no_longer_square():
    (shape,) = shapes_of(lambda x: x.mean(1), row(5, 5))

    assert shape[0] != shape[1]


def test_sizes_that_belong_together_stay_equal():
    one, two = shapes_of(lambda x, w: x @ w, row(4, 4), row(4, 4))

    assert one[1] == two[0]
    assert len({one[0], one[1], two[1]}) == 3


def test_tensors_of_one_shape_change_together():
    one, two = shapes_of(lambda x, y: x * y, row(4, 4), row(4, 4))

    assert one == two
    assert one[0] != one[1]


def test_unequal_sizes_need_no_parting():
    assert shapes_of(lambda x: x.mean(1), row(4, 5)) is None


def test_attention_is_never_given_unlike_sizes():
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (row(1, 1, 4, 4, seed=seed) for seed in (1, 2, 3))

    assert shapes_of(lambda q, k, v: attention(q, k, v), q, k, v) is None


def test_fixed_sizes_have_no_other_shapes():
    captured = capture(lambda x: x * 2, [row(4)], needs=[True], dynamic=False)

    assert shapes_resized(captured, [row(4)], lambda size: size + 1) is None
