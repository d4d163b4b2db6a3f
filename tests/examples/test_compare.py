"""The comparison finds the element that differs most, and counts nan as the worst."""

import pytest
import torch

from examples.compare import Difference, columns_of, compare, pull, text_of, verdict_on, worst_of

X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def point():
    return {"x": X.clone().requires_grad_()}


def test_equal_computations_do_not_differ():
    output, gradient = compare(torch.sin, torch.sin, point())

    assert (output.what, output.size) == ("output", 0)
    assert (gradient.what, gradient.size) == ("gradient of `x`", 0)


def test_worst_element_is_named():
    bump = torch.tensor([0.0, 0.5, 0.25], dtype=torch.float64)
    output, gradient = compare(lambda x: x + bump, lambda x: x.clone(), point())

    assert output == Difference("output", (1,), 2.0, 2.5, 3)
    assert gradient.size == 0


def test_gradient_of_another_element_shows():
    _, gradient = compare(lambda x: x.sum() * X, lambda x: x * X.sum(), point())

    assert gradient.size > 0.1


def test_not_a_number_is_the_worst():
    hole = torch.tensor([0.0, 0.0, float("nan")], dtype=torch.float64)
    output, _ = compare(lambda x: x + hole, lambda x: x + 0, point())

    assert output.index == (2,)
    assert output.size == float("inf")


def test_other_shape_is_refused():
    with pytest.raises(ValueError, match=r"expected shape \(3,\), got \(1, 3\)"):
        compare(lambda x: x[None], lambda x: x + 0, point())


def test_inputs_without_grad_get_none():
    pulled = pull(torch.mul, point() | {"y": X})

    assert list(pulled) == ["output", "gradient of `x`"]
    assert pulled["gradient of `x`"].tolist() == X.tolist()


def test_worst_of_several_is_the_largest():
    small, large = Difference("a", (0,), 1.0, 1.5, 1), Difference("b", (0,), 1.0, 0.0, 1)

    assert worst_of([small, large]) is large


def test_columns_line_up_and_drop_negative_zero():
    text = columns_of({"x": torch.tensor([-0.00001, 2.0]), "a long name": X[:2]})

    assert text.splitlines() == [
        "          x  a long name",
        "     0.0000       1.0000",
        "     2.0000       2.0000",
    ]


def test_verdict_counts_what_was_compared():
    line = verdict_on(compare(torch.sin, torch.sin, point()))

    assert line == "Largest difference from PyTorch: 0 (6 float64 values and gradients)."


def test_size_has_two_digits():
    assert text_of(1.2345e-16) == "1.2e-16"
