"""A program runs again on the random numbers that it drew before."""

import torch

from pullback.derive.draws import draws_now


def test_same_numbers_come_again():
    then = draws_now()
    first = torch.rand(3)
    with then.again():
        again = torch.rand(3)

    assert torch.equal(again, first)


def test_numbers_of_now_go_on_afterwards():
    torch.manual_seed(1)
    then = draws_now()
    torch.rand(3)
    expected = torch.get_rng_state()
    with then.again():
        torch.rand(7)

    assert torch.equal(torch.get_rng_state(), expected)


def test_drawing_is_noticed():
    then = draws_now()
    before = then.is_now()
    torch.rand(1)

    assert before
    assert not then.is_now()
