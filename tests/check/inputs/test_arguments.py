"""Other arguments: numbers, switches, masks, indices, one tensor twice."""

import torch

from pullback.check.inputs.arguments import arguments_of, doubled, indices_of
from pullback.judge.example import example_of


def test_numbers_and_switches_change():
    example = example_of((torch.randn(3), 4, True, "mean"))
    found = [variant.args[1:] for variant in arguments_of(example, ("x", "n", "on", "reduction"))]

    assert {(3, True, "mean"), (4, False, "mean"), (4, True, "none")} <= set(found)


def test_mask_gets_zeros():
    example = example_of((torch.randn(6).requires_grad_(), torch.ones(6)))
    (variant,) = arguments_of(example, ("x", "mask"))

    assert 0 < int(variant.args[1].sum()) < 6


def test_order_of_all_elements_is_not_repeated():
    example = example_of((torch.randn(3, 2), torch.tensor([2, 0, 1])))
    found = [variant.args[1] for variant in indices_of(example)]

    assert [index.tolist() for index in found if int(index.min()) >= 0] == []


def test_indices_repeat_below_the_largest():
    example = example_of((torch.randn(6, 2), torch.tensor([4, 0, 2])))
    found = [variant.args[1].tolist() for variant in indices_of(example)]

    assert [4, 4, 4] in found
    assert max(max(index) for index in found) == 4


def test_one_tensor_fills_two_slots():
    ((i, j, same, apart),) = doubled(example_of((torch.randn(3), torch.randn(3))))
    args = same.fresh()

    assert args[i] is args[j]
    assert torch.equal(apart.args[0], apart.args[1])
