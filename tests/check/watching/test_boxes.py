"""A box is a tensor like any other, without memory of its own."""

import torch

from pullback.check.watching.boxes import Box, boxed, opened


def test_operators_give_boxes_again():
    result = boxed(torch.arange(3.0)) * 2 + 1

    assert type(result) is Box
    assert opened(result).tolist() == [1.0, 3.0, 5.0]


def test_autograd_goes_through_boxes():
    x = boxed(torch.arange(3.0)).requires_grad_()
    (grad,) = torch.autograd.grad((x * x).sum(), x)

    assert type(grad) is Box
    assert opened(grad).tolist() == [0.0, 2.0, 4.0]


def test_conjugate_views_are_resolved():
    z = torch.tensor([1 + 2j])

    assert opened(boxed(z).conj() * 1).tolist() == [1 - 2j]
