"""What a call gives, what of it differs from a program, and the rows of inputs that show it."""

from dataclasses import replace

import pytest
import torch

from pullback.capture.joint import capture
from pullback.judge.comparison import Comparison
from pullback.judge.tensor_specs import tensor_specs_of
from pullback.judge.trial_rows import drawn_row, op_rows, value_rows


def row(*shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def compared_with(program, *examples):
    return Comparison(capture(program, examples), program, tensor_specs_of(examples))


def called(program):
    return lambda given: program(*given)


def two(x, y):
    return x.sin() * y, y * y


def test_gradients_of_each_output_alone_are_seen():
    comparison = compared_with(two, row(3), row(3))
    wanted = replace(comparison.wanted, is_alone=True, is_twice=True)
    found = comparison.observe(called(two), comparison.rows[0], wanted)

    assert list(found.first) == ["output 0", "output 1", "all outputs"]
    assert found.first["output 1"][0] is None
    assert found.live == [True, True]
    assert found.alone == {0: [True, False], 1: [True, True]}
    assert len(found.second) == 4


def test_what_a_call_raises_is_seen_with_its_outputs():
    def broken(given):
        y = given[0] * 2
        y.register_hook(lambda g: 1 / 0)
        return [y]

    comparison = compared_with(lambda x: x * 2, row(3))
    found = comparison.observe(broken, comparison.rows[0])

    assert (found.error_type, found.error) == ("ZeroDivisionError", "division by zero")
    assert torch.equal(found.outputs[0], 2 * row(3))


# ---- what differs ----

OTHERS = {
    "output": (lambda x, y: (x.sin() * y + 1e-3, y * y), "output", 0),
    "count": (lambda x, y: (x.sin() * y,), "what is returned", 0),
    "history": (lambda x, y: (x.sin() * y, (y * y).detach()), "output", 1),
    "gradient": (lambda x, y: (x.sin() * y, y * y.detach()), "gradient", 1),
    "error": (lambda x, y: x.reshape(7), "the call", 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_first_difference_is_named(name):
    other, kind, place = OTHERS[name]
    found = compared_with(two, row(3), row(3)).difference(called(other))

    assert (found.kind, found.place, found.row) == (kind, place, "the example")


def test_same_formula_does_not_differ():
    def other(x, y):
        return y * x.sin(), y.square()

    comparison = compared_with(two, row(3), row(3))

    assert comparison.difference(called(other)) is None
    assert comparison.is_same_twice(called(other))


def steep(x):
    """The slope of the second output is infinite at zero: zeros times it are not a number."""
    return x * 2, x.abs().sum().sqrt()


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return steep(x)

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 2 * g + h * x.sign() / (2 * x.abs().sum().sqrt())


@pytest.mark.parametrize("fills_absent", [True, False])
def test_infinite_slope_of_another_output_differs_where_zeros_may_not_show(fills_absent):
    comparison = compared_with(steep, torch.zeros(3, requires_grad=True))
    comparison.rows = [replace(one, fills_absent=fills_absent) for one in comparison.rows]
    comparison.sizes = []

    found = comparison.difference(lambda given: Steep.apply(*given))
    assert (found is None) is fills_absent


# ---- rows for an op ----


def test_op_gets_the_values_of_a_text_and_more():
    captured, specs = capture(two, (row(2, 20), row(2, 20))), tensor_specs_of((row(2, 20),) * 2)
    example, *rows = op_rows(captured, specs, is_double=True, numbers={1: 3})
    values = [one.what for one in value_rows(captured, specs)]

    more = ["inputs of shape [3, 21], [3, 21]", "other numbers in the arguments"]
    assert [one.what for one in (example, *rows)] == [*values, *more]
    assert [one.what for one in rows if one.may_refuse] == more
    assert example.tensors[0].dtype == torch.float32
    assert {one.tensors[0].dtype for one in rows} == {torch.float64}
    assert rows[-1].numbers == {1: 3}


def test_row_too_large_is_not_drawn():
    captured = capture(two, (row(2), row(2)))
    specs = tensor_specs_of((row(2), row(2)))

    assert drawn_row(captured, specs, [(1 << 12, 1 << 12)] * 2) is None
    assert drawn_row(captured, specs, [(4, 3)] * 2).tensors[1].shape == (4, 3)


# ---- rows that a capture does not serve ----


def test_unserved_rows_are_right_or_wrong():
    def shifted(given):
        (x,) = given
        return [x * 2 + (len(x) != 3)]

    def refusing(given):
        raise ValueError("another size")

    comparison = compared_with(lambda x: x * 2, row(3))
    usual = comparison.rows[0]
    served = replace(usual, tensors=(row(4),))
    rows = [replace(served, is_served=False), replace(usual, is_served=False), served]

    assert comparison.misled(shifted, rows) == (rows[:1], rows[1:2])
    assert comparison.misled(refusing, rows) == (rows[:2], [])
    assert comparison.misled(refusing, [replace(rows[0], is_odd=True)]) == ([], [])


# ---- by the same formulas, in other steps ----


def total(x):
    return x.exp().sum(-1)


@pytest.mark.parametrize(("factor", "is_seen"), [(1.0, False), (1.0001, True)])
def test_measured_comparison_sees_less_than_half_the_digits(factor, is_seen):
    comparison = compared_with(total, torch.randn(4, 50, requires_grad=True))
    example = comparison.rows[0]

    def in_other_order(given):
        return [factor * given[0].flip(-1).exp().sum(-1)]

    expected = comparison.expected(example)
    found = comparison.observe(in_other_order, example)
    assert comparison.apart(expected, found, example) is None
    assert (comparison.measurably_apart(expected, found, example) is not None) is is_seen


def test_inputs_that_were_not_asked_for_have_no_gradient():
    x, y = row(2, 3), row(2, 3)
    captured = capture(two, (x, y))
    comparison = Comparison(captured, two, tensor_specs_of((x, y)), needs=(True, False))

    first = comparison.expected(comparison.rows[0]).first
    assert {len(gradients) for gradients in first.values()} == {1}
