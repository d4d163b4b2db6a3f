"""Rows of inputs for comparisons: from the example, with zeros and ties, and at other sizes."""

import pytest
import torch

from pullback.capture.joint import capture
from pullback.derive.backward import derive_function
from pullback.judge.tensor_specs import fitted, tensor_spec_of, tensor_specs_of
from pullback.judge.trial_rows import op_rows, size_rows, value_rows
from pullback.judge.unchecked_kernels import is_unchecked, points_unchecked


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def product(x, y):
    return x * y


def shapes_of(rows):
    return [[tuple(t.shape) for t in row.tensors] for row in rows]


def test_values_have_zeros_and_ties():
    x, y = normal(4, 3), normal(4, 3)
    rows = {
        row.what: row.tensors
        for row in value_rows(capture(product, (x, y)), tensor_specs_of((x, y)))
    }

    assert torch.equal(rows["the example"][0], x.detach())
    assert int((rows["zeros among them"][0] == 0).sum()) == 4
    assert rows["ties among them"][0].unique().numel() == 3
    assert torch.equal(*rows["equal inputs"])


def test_few_numbers_tie_too():
    x = normal(2)
    rows = value_rows(capture(torch.sin, (x,)), tensor_specs_of((x,)))
    (ties,) = (row.tensors[0] for row in rows if row.what == "ties among them")

    assert ties.unique().numel() == 1


def test_sizes_that_are_equal_grow_together():
    x, y = normal(4, 3), normal(4, 3)
    rows = size_rows(capture(product, (x, y)), tensor_specs_of((x, y)))
    shapes = shapes_of(row for row in rows if not row.is_odd)

    assert [(5, 4), (5, 4)] in shapes
    assert all(a == b for a, b in shapes)


def test_odd_sizes_are_broadcast():
    x, y = normal(4, 3), normal(4, 3)
    rows = size_rows(capture(product, (x, y)), tensor_specs_of((x, y)))
    odd = [row for row in rows if row.is_odd]

    assert [(1, 3), (4, 3)] in shapes_of(odd)
    assert not any(row.is_served for row in odd)


def test_unchecked_kernel_gets_its_own_sizes_only():
    def program(x, lengths):
        return torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True)

    x, lengths = normal(6), torch.tensor([2, 1, 3])
    captured = capture(program, (x, lengths))

    assert is_unchecked(captured)
    assert size_rows(captured, tensor_specs_of((x, lengths))) == []


@pytest.mark.parametrize(
    "lengths",
    [lambda: torch.tensor([2, 1, 3]), lambda: torch.full((3,), 2), lambda: torch.arange(1, 4)],
    ids=["constant", "filled", "counted"],
)
def test_lengths_of_the_program_s_own_are_given_no_other_sizes(lengths):
    """Shorter inputs would be read, and their gradients written, beyond their end."""

    def program(x):
        return torch.segment_reduce(x, "sum", lengths=lengths(), unsafe=True)

    x = normal(6)
    captured, specs = capture(program, (x,)), tensor_specs_of((x,))
    rows = op_rows(captured, (*specs, *tensor_specs_of(_constants(captured))), **PLAIN)

    assert points_unchecked(captured)
    assert size_rows(captured, specs) == []
    assert {row.tensors[0].shape for row in rows} == {(6,)}


def test_attention_is_tried_at_other_sizes():
    def program(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    q = normal(1, 1, 4, 4)
    captured = capture(program, (q,))

    assert is_unchecked(captured)
    assert not points_unchecked(captured)
    assert (
        len({row.tensors[0].shape for row in op_rows(captured, tensor_specs_of((q,)), **PLAIN)}) > 1
    )


PLAIN = {"is_double": False, "numbers": {}}


def _constants(captured):
    return tuple(one.tensor for one in captured.inputs if one.tensor is not None)


def test_text_of_an_unchecked_kernel_checks_the_size_that_stands_in_it():
    def spectrum(x):
        return torch.fft.hfft(x, n=10)

    space: dict = {}
    exec(derive_function(spectrum, normal(5, 6)).source(), space)

    with pytest.raises(ValueError, match=r"x.shape\[1\] must be 6, got 19"):
        space["Spectrum"].apply(normal(5, 19))


def test_large_example_becomes_a_corner():
    x = normal(500, 400)
    (row, *_) = value_rows(capture(torch.sin, (x,)), tensor_specs_of((x,)))
    (small,) = row.tensors

    assert small.numel() < 1000
    assert torch.equal(small, x.detach()[: small.shape[0], : small.shape[1]])


def test_fitted_repeats_and_crops():
    like = tensor_spec_of(torch.tensor([[1, 2, 3], [4, 5, 6]]))

    assert fitted(like, (3, 2)).tolist() == [[1, 2], [4, 5], [1, 2]]


def test_numbers_that_a_kernel_takes_for_places_stay_finite():
    def sampled(image, grid):
        return torch.nn.functional.grid_sample(image, grid, align_corners=False)

    def bags(table, places):
        return torch.nn.functional.embedding_bag(places.long(), table)

    def given(table, places):
        return torch.nn.functional.embedding_bag(places, table)

    image, grid = normal(1, 1, 4, 4), normal(1, 2, 2, 2)
    table, places = normal(5, 2), torch.tensor([[0.0, 4.0]])
    for program, examples in ((sampled, (image, grid)), (bags, (table, places))):
        rows = value_rows(capture(program, examples), tensor_specs_of(examples))
        numbers = [row.tensors[1] for row in rows]
        assert len(rows) > 2
        assert all(
            set(x.flatten().tolist()) <= {0.0, *examples[1].flatten().tolist()} for x in numbers
        )
    examples = table, places.long()
    rows = value_rows(capture(given, examples), tensor_specs_of(examples))
    assert any(row.has_nan for row in rows)
