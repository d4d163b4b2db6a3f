"""Which plain arguments of an op are free, and what is refused: nothing here is compiled."""

import math
import re

import pytest
import torch

from pullback.emit.cpp.op import emit_cpp
from pullback.emit.cpp.watched import Notes, Watched, value_at
from pullback.emit.subject import subject_of


def row(*shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel()).double().reshape(shape).requires_grad_()


def text_of(program, *examples):
    return next(iter(emit_cpp(subject_of(program, examples)).values()))


def schema_of(text):
    return re.search(r'm\.def\("\w+(.*?) -> Tensor"\);', text)[1]


# ---- free ----


def clamped(x, low=-1.0, high=1.0):
    return x.clamp(low, high)


def between(x, share, y):
    return share * x + (1 - share) * y


def leaky(x, slope=0.01):
    return torch.nn.functional.leaky_relu(x, slope)


FREE = {
    "clamped": (
        clamped,
        (row(5), -0.5, 0.5),
        "(Tensor x, float low=-1.0, float high=1.0)",
        ["x.clamp(std::optional<at::Scalar>(low), std::optional<at::Scalar>(high))"],
    ),
    "between": (
        between,
        (row(5), 0.25, row(5)),
        "(Tensor x, float share, Tensor y)",
        ["x * number(share, x) + y * number(1 - share, x)", 'ctx->saved_data["share"] = share;'],
    ),
    "leaky": (leaky, (row(5), 0.1), "(Tensor x, float slope=0.01)", ["at::leaky_relu(x, slope)"]),
}


@pytest.mark.parametrize("name", FREE)
def test_number_that_goes_into_ops_is_free(name):
    program, examples, schema, lines = FREE[name]
    text = text_of(program, *examples)

    assert schema_of(text) == schema
    assert [line for line in lines if line not in text] == []
    assert "alone" not in text


def test_comparison_becomes_a_condition():
    def program(x, factor=2.0):
        return x * max(factor, 1.0)

    text = text_of(program, row(5), 2.0)

    assert (
        'TORCH_CHECK(factor >= 1.0, "Program: emitted for arguments with factor >= 1.0");' in text
    )
    assert "x * number(factor, x)" in text


# ---- fixed ----


def by_size(x, count):
    return x * count if count > x.shape[0] else x - count


def by_root(x, number):
    return x * math.sqrt(number)


def by_power(x, exponent):
    """Autograd has other formulas for some exponents."""
    return x.abs() ** exponent


def by_lower_precision(x, factor):
    return x * torch.tensor(factor, dtype=torch.float32)


def by_shape(x, times):
    return x.repeat(times)


FIXED = {
    "by_size": (by_size, 9),
    "by_root": (by_root, 3),
    "by_power": (by_power, 3.0),
    "by_lower_precision": (by_lower_precision, 0.5),
    "by_shape": (by_shape, 3),
}


@pytest.mark.parametrize("name", FIXED)
def test_number_with_another_use_is_fixed(name):
    program, value = FIXED[name]
    text = " ".join(text_of(program, row(5), value).split())

    assert f"= {value!r} alone, got " in text
    assert re.search(r"// Written for \w+ = .*: other values are refused\.", text)


def test_fixed_argument_with_another_default_has_none():
    def program(x, dim=0):
        return x.sum(dim)

    assert schema_of(text_of(program, row(3, 4), 1)) == "(Tensor x, int dim)"


# ---- watched numbers ----


def test_watched_number_tells_its_formula():
    notes = Notes()
    a = Watched(0.5, "a", frozenset("a"), notes)
    found = 2 * (1 - a) / 3

    assert found.formula == "(double((2 * (1 - a))) / 3)"
    assert value_at(found.formula, {"a": 0.25}) == 0.5
    assert isinstance(a, float)
    assert notes == Notes()


def test_watched_number_notes_decisions_and_escapes():
    notes = Notes()
    a, b = (Watched(value, name, frozenset(name), notes) for name, value in (("a", 2), ("b", 0.5)))

    assert (a > 5, bool(b)) == (False, True)
    assert math.sqrt(b * 8) == 2
    assert list(notes.conditions) == ["a <= 5", "b != 0"]
    assert notes.escaped == {"b"}
