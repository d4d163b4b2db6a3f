"""What the emitted C++ says, and what cannot be said in it: nothing here is compiled."""

import re

import pytest
import torch

import pullback as pb
from pullback.emit.cpp import project
from pullback.emit.cpp.op import emit_cpp
from pullback.emit.cpp.values import literal, quoted
from pullback.emit.subject import subject_of
from pullback.errors import CaptureError, UnsupportedOpError
from pullback.judge.tensor_specs import tensor_spec_of


def row(*shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def text_of(program, *examples):
    return next(iter(emit_cpp(subject_of(program, examples)).values()))


LITERALS = {
    "1": 1,
    "-3": -3,
    "INT64_C(4294967296)": 2**32,
    "INT64_MIN": -(2**63),
    "0.1": 0.1,
    "1e-05": 1e-5,
    "2.0": 2.0,
    "true": True,
    "-std::numeric_limits<double>::infinity()": float("-inf"),
    "std::numeric_limits<double>::quiet_NaN()": float("nan"),
    "c10::complex<double>(1.0, -2.0)": 1 - 2j,
}


@pytest.mark.parametrize("text", LITERALS)
def test_numbers_are_written_exactly(text):
    assert literal(LITERALS[text]) == text


def test_strings_are_quoted():
    assert quoted('a "b"\n') == '"a \\"b\\"\\n"'


INPUTS = {
    "at::tensor(std::vector<double>{1.5, -2.0}).to(at::kFloat).reshape({2})": [1.5, -2.0],
    "spread({1000}, -1.0, 3.0).to(at::kFloat)": torch.linspace(-1, 3, 1000),
    "spread({1000}, 2.0, 9.0 + 1).floor().to(at::kLong)": torch.arange(1000) % 8 + 2,
}


@pytest.mark.parametrize("text", INPUTS)
def test_few_values_are_written_and_many_drawn(text):
    assert project._made(tensor_spec_of(torch.as_tensor(INPUTS[text]))) == text


def test_order_of_sums_is_kept():
    """Another order would be another rounding."""
    text = text_of(lambda x, y: x + (y + x.sin()), row(3), row(3))

    assert "x + (y + x.sin())" in text


def test_new_tensor_has_the_options_of_one_that_is_like_it():
    def ramp(x):
        return x * torch.arange(4, dtype=x.dtype, device=x.device)

    assert "at::arange(4, x.options())" in text_of(ramp, row(4))


def test_names_of_the_user_are_kept():
    def program(x, new):
        double = x * new
        return double.exp()

    text = text_of(program, row(3), row(3))

    assert "const at::Tensor& new_" in text
    assert "auto double_ = x * new_;" in text


def test_choice_by_size_is_checked():
    def program(x):
        return x.sin() if x.shape[0] < 5 else x.cos()

    text = text_of(program, row(3))

    assert (
        'TORCH_CHECK(x.sym_size(0) < 5, "Program: emitted for sizes with x.size(0) < 5");' in text
    )


def test_choice_at_size_one_is_checked():
    def program(x):
        return x.sin() if x.shape[0] != 1 else x.cos()

    text = text_of(program, row(3, 4))

    assert "x.sym_size(0) >= 2" in text


def test_choice_by_dtype_is_checked():
    def program(x):
        return x.sin() if x.dtype == torch.float32 else x.cos()

    text = text_of(program, row(3))

    assert '"Program: x must be float32, got "' in text


def test_fixed_size_is_checked():
    text = text_of(lambda x: x.sum(0), row(1, 4))

    assert "x.sym_size(0) == 1" in text


def test_tensor_of_numbers_is_made_by_ops():
    text = text_of(lambda x: x * torch.tensor([1.0, 2.5]), row(3, 2))

    assert "at::stack({at::scalar_tensor(1.0, x.options().dtype(at::kFloat))" in text


def test_tensor_from_around_is_an_argument():
    weight = row(3)
    text = text_of(lambda x: x * weight, row(3))

    assert re.search(r'm.def\("\w+\(Tensor x, Tensor weight\) -> Tensor"\);', text)


def test_returned_input_is_copied():
    text = text_of(lambda x: (x, x.sin()), row(3))

    assert "auto x_copy = x.clone();  // an op must not return an alias" in text


def test_saved_tensors_are_unpacked_before_the_guard():
    """`checkpoint` runs forward again when they are, which must pass through autograd."""
    backward = text_of(lambda x: x.sin(), row(3)).partition("backward(")[2]

    assert backward.index("get_saved_variables") < backward.index("guard")


# ---- what is refused ----


def test_size_among_outputs_is_refused():
    with pytest.raises(UnsupportedOpError) as caught:
        text_of(lambda x: (x.sin(), x.shape[0] * 2), row(3))

    assert str(caught.value) == (
        "E302 unsupported-op: an output that is no tensor must be left out to be emitted as C++\n"
        "  got:      `<lambda>` returns a size\n"
        '  fix:      emit it as Python: pb.emit(..., "python")'
    )


def test_large_constant_is_refused():
    with pytest.raises(UnsupportedOpError, match="must be small to be emitted"):
        text_of(lambda x: x * torch.tensor([float(i) for i in range(100)]), row(2, 100))


def test_nested_outputs_are_refused():
    with pytest.raises(CaptureError, match="must return a tensor or a tuple of tensors"):
        text_of(lambda x: {"y": x.sin()}, row(3))


def test_refusal_writes_nothing(tmp_path):
    with pytest.raises(UnsupportedOpError):
        pb.emit(lambda x: (x, 3), "cpp", examples=(row(3),), path=tmp_path / "out")

    assert list(tmp_path.iterdir()) == []


def test_one_of_several_results_is_taken_by_its_place():
    assert "std::get<1>(" in text_of(lambda x: torch.var_mean(x, 0)[1] * 2, row(3, 2))


def one_of_two(x, a=None, b=None):
    if a is None and b is None:
        raise ValueError("one of them must be given")
    made = x if a is None else x * a
    return made if b is None else made + b


def test_optional_tensors_that_cannot_both_be_absent_are_checked():
    text = text_of(one_of_two, row(3), row(3), row(3))

    assert 'TORCH_CHECK(has_a, "one_of_two: a must be given here");' in text
    assert "has_x" not in text
