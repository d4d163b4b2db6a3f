"""How large the values of a graph are, and how long the sums in it."""

import torch

from pullback.capture.joint import capture
from pullback.judge.sums import elements_in, longest_sum


def terms_of(program, *examples, row):
    graph = capture(program, examples, dynamic=True).joint.graph
    return longest_sum(elements_in(graph, row))


def test_longest_sum_is_that_of_the_row():
    x = torch.randn(3, 5, requires_grad=True)

    assert terms_of(lambda x: x.sum(1), x, row=[x]) == 5
    assert terms_of(lambda x: x.sum(1), x, row=[torch.randn(3, 70)]) == 70


def test_product_of_matrices_adds_up_its_inner_size():
    x, w = torch.randn(3, 40, requires_grad=True), torch.randn(40, 2)

    assert terms_of(torch.matmul, x, w, row=[x, w]) == 40
