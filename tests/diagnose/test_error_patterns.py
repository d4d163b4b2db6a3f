"""Each pattern holds for the error it is named by, and for no sound gradient."""

from types import SimpleNamespace

import pytest
import torch

from pullback.diagnose import error_patterns as patterns
from pullback.diagnose.error_patterns import WrongGradient, shape_repairs, wrong_elements
from pullback.diagnose.gradient_trial import GradientTrial


def evidence_of(rows, place=0, names=("x", "y"), inputs=None):
    """The evidence of gradients that are given: rows of expected and got, one per trial."""
    all_ = []
    for number, (expected, got) in enumerate(rows):
        tensors = inputs[number] if inputs else tuple(torch.ones(4, 3) for _ in expected)
        cotangents = (torch.ones(4, 3, dtype=torch.float64),)
        all_.append(GradientTrial(number, tensors, cotangents, tuple(expected), tuple(got)))
    trials = SimpleNamespace(all=all_, names=list(names), input_names=list(names))
    return WrongGradient(trials, place, ("g",))


def drawn_anew(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def pairs(change, *shape, dtype=torch.float64):
    """Two trials of one gradient, and of another that is right."""
    rows = []
    for seed in (1, 2):
        right, other = drawn_anew(*shape, seed=seed, dtype=dtype), drawn_anew(*shape, seed=9 + seed)
        rows.append(((right, other), (change(right), other)))
    return evidence_of(rows)


FOUND = {
    "none": (
        patterns.missing_gradient,
        lambda e: None,
        "`None` is returned where a gradient flows",
    ),
    "sign": (patterns.constant_multiple, lambda e: -e, "the sign is wrong"),
    "factor": (patterns.constant_multiple, lambda e: e * 3 / 2, "3/2 times what it should be"),
    "zero": (patterns.constant_multiple, torch.zeros_like, "zero where a gradient flows"),
    "transposed": (patterns.permuted_gradient, lambda e: e.t(), "transposed"),
    "reversed": (patterns.permuted_gradient, lambda e: e.flip(1), "reversed along dimension 1"),
    "shifted": (
        patterns.permuted_gradient,
        lambda e: e.roll(1, 0),
        "shifted by 1 along dimension 0",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_pattern_names_its_error(name):
    pattern, change, words = FOUND[name]

    assert pattern(pairs(change, 4, 4)) == words


@pytest.mark.parametrize("name", FOUND)
def test_pattern_is_silent_about_noise(name):
    pattern, _, _ = FOUND[name]

    assert pattern(pairs(lambda e: e + drawn_anew(4, 4, seed=77), 4, 4)) == ""


def test_factor_that_follows_a_size_is_named():
    rows = [((drawn_anew(n, 3, seed=n),), (drawn_anew(n, 3, seed=n) / n,)) for n in (4, 5)]
    inputs = [(torch.ones(n, 3),) for n in (4, 5)]

    evidence = evidence_of(rows, names=("x",), inputs=inputs)

    assert patterns.constant_multiple(evidence) == "`1 / x.shape[0]` times what it should be"


def test_factor_that_changes_is_no_constant():
    rows = [((drawn_anew(4, seed=n),), (drawn_anew(4, seed=n) * n,)) for n in (2, 7)]

    assert patterns.constant_multiple(evidence_of(rows, names=("x",))) == ""
    assert patterns.constant_factor(evidence_of(rows, names=("x",))) is None


def test_one_wrong_element_is_no_factor():
    expected = drawn_anew(4)
    got = expected.clone()
    got[2] *= 5

    assert patterns.constant_multiple(evidence_of([((expected,), (got,))], names=("x",))) == ""


def test_conjugate_is_named():
    evidence = pairs(lambda e: e.conj(), 5, dtype=torch.complex128)

    assert patterns.conjugated_gradient(evidence) == "the conjugate of what it should be"


def test_gradient_where_none_flows_is_named():
    rows = [((torch.zeros(4),), (drawn_anew(4).float(),))]

    words = patterns.unexpected_gradient(evidence_of(rows, names=("x",)))

    assert words == "a gradient is returned where none flows"


def test_swapped_gradients_are_named_both_ways():
    a, b = drawn_anew(5, seed=1), drawn_anew(5, seed=2)
    rows = [((a, b), (b, a))]

    assert patterns.swapped_gradient(evidence_of(rows, 0)) == "swapped with the gradient of `y`"
    assert patterns.swapped_gradient(evidence_of(rows, 1)) == "swapped with the gradient of `x`"
    assert patterns.swapped_with(evidence_of(rows, 1)) == 0


def test_copied_gradient_is_not_swapped():
    a, b = drawn_anew(5, seed=1), drawn_anew(5, seed=2)
    evidence = evidence_of([((a, b), (b, b))])

    assert patterns.swapped_gradient(evidence) == ""
    assert patterns.copied_gradient(evidence) == "the gradient of `y` is returned for it"


def test_missing_sum_is_named():
    expected = drawn_anew(4, 3).sum(1, keepdim=True).expand(4, 3).clone()
    evidence = evidence_of([((expected,), (drawn_anew(4, 3),))], names=("x",))

    assert patterns.unreduced_gradient(evidence) == "the sum over dimension 1 is missing"


REPAIRS = {
    "transposed": (lambda e: e.t(), "transposed: the shape is [3, 4] instead of [4, 3]"),
    "expanded": (lambda e: e[0], "the shape is [3] instead of [4, 3]"),
    "outer": (
        lambda e: e.unsqueeze(2).expand(4, 3, 2) / 2,
        "a reduction is missing: the shape is [4, 3, 2] instead of [4, 3]",
    ),
    "mean": (
        lambda e: torch.stack([e, e], 2),
        "a reduction is missing: the shape is [4, 3, 2] instead of [4, 3]",
    ),
    "reshaped": (lambda e: e.reshape(12), "not reshaped: the shape is [12] instead of [4, 3]"),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_wrong_shape_is_explained(name):
    change, words = REPAIRS[name]

    assert patterns.misshapen_gradient(pairs(change, 4, 3)) == words


def test_repair_makes_gradient_right():
    evidence = pairs(lambda e: e.t(), 4, 3)
    expected, got = evidence.pairs[0]

    (_, repair), *_ = shape_repairs(evidence)

    assert torch.equal(repair(got, expected.shape), expected)


def masked(mask):
    return lambda expected: torch.where(mask, expected, 2 * expected)


def test_wrong_elements_are_located_by_condition():
    mask = torch.tensor([True, False, True, True, False])
    evidence = pairs(masked(mask), 5)
    conditions = [("kept", {0: mask, 1: mask}), ("~kept", {0: ~mask, 1: ~mask})]

    assert wrong_elements(evidence, conditions) == ", only where `~kept`"


def test_wrong_elements_are_located_by_sign():
    x = torch.tensor([1.0, -1.0, 2.0, 3.0, -4.0], dtype=torch.float64)
    rows = [((drawn_anew(5),), (masked(x > 0)(drawn_anew(5)),))]

    evidence = evidence_of(rows, names=("x",), inputs=[(x,)])

    assert wrong_elements(evidence, []) == ", only where `x < 0`"


def test_wrong_elements_are_located_by_index():
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[:, 2] = False

    assert wrong_elements(pairs(masked(mask), 4, 3), []) == ", only at index 2 of dimension 1"


def test_wrong_everywhere_needs_no_location():
    assert wrong_elements(pairs(lambda e: 2 * e, 4, 3), []) == ""
