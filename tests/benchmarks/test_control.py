"""The control group agrees with the operators that it is made of."""

import inspect

import pytest
import torch

from benchmarks.faults import case, control
from benchmarks.faults.control import CASES
from tests.benchmarks.twin import (
    LAYOUTS,
    assert_equal,
    cotangents_for,
    floating,
    gradients,
    laid_out,
    leaves_of,
    needing,
    run,
    second,
    sliced,
    transposed,
    variants_of,
)

every_case = pytest.mark.parametrize("wrapped", CASES, ids=lambda c: c.name)

# PyTorch writes 1/6 as a float32 number in this backward, whatever the dtype.
ROUGH = {"aten-Hardsigmoid": 1e-7, "aten-Hardswish": 1e-7}


def tolerance(wrapped):
    """How far from each other two runs may be in float64."""
    return {"rtol": ROUGH.get(wrapped.name, 1e-9), "atol": ROUGH.get(wrapped.name, 1e-11)}


def reference_of(wrapped):
    """The operator with its own derivative, floating outputs alone."""
    return lambda *args: floating(run(wrapped.reference, args))


@every_case
def test_outputs_are_those_of_operator(wrapped):
    args = wrapped.inputs()
    ours, theirs = (run(call, args) for call in (wrapped.call, wrapped.reference))

    assert_equal([y.detach() for y in ours], [y.detach() for y in theirs][: len(ours)])
    assert any(y.requires_grad for y in ours)


@every_case
def test_gradients_are_those_of_operator(wrapped):
    args = wrapped.inputs()
    for layout in LAYOUTS:
        cotangents = cotangents_for(run(wrapped.reference, args), layout)
        before = [c.clone() for c in cotangents]
        ours = gradients(wrapped.call, args, cotangents)

        assert_equal(ours, gradients(reference_of(wrapped), args, cotangents), **tolerance(wrapped))
        assert_equal(cotangents, before, rtol=0, atol=0)


@every_case
def test_inputs_of_any_layout_work(wrapped):
    for layout in (transposed, sliced):
        args = laid_out(wrapped.inputs(), layout)
        cotangents = cotangents_for(run(wrapped.reference, args))
        ours = gradients(wrapped.call, args, cotangents)

        assert_equal(ours, gradients(reference_of(wrapped), args, cotangents), **tolerance(wrapped))


@every_case
def test_other_sizes_agree_where_taken(wrapped):
    for args in variants_of(wrapped.inputs()):
        try:
            # Ours comes first: it refuses sizes at which PyTorch's own kernel crashes.
            cotangents = cotangents_for(run(wrapped.call, args), seed=2)
            ours = gradients(wrapped.call, args, cotangents)
            theirs = gradients(reference_of(wrapped), args, cotangents)
        except (RuntimeError, IndexError, ValueError):
            continue

        assert_equal(ours, theirs, **tolerance(wrapped))


@every_case
def test_each_input_alone_agrees(wrapped):
    args = wrapped.inputs()
    for i in range(len(leaves_of(args))):
        some = needing(args, {i})
        cotangents = cotangents_for(run(wrapped.reference, some))
        ours = gradients(wrapped.call, some, cotangents)

        assert_equal(ours, gradients(reference_of(wrapped), some, cotangents), **tolerance(wrapped))


@every_case
def test_second_order_agrees_or_is_refused(wrapped):
    args = wrapped.inputs()
    cotangents = cotangents_for(run(wrapped.reference, args))
    try:
        theirs = second(reference_of(wrapped), args, cotangents)
        ours = second(wrapped.call, args, cotangents)
    except RuntimeError as refusal:
        if "derivative for" not in str(refusal) and "not implemented" not in str(refusal):
            raise
        return

    assert_equal(ours, theirs, rtol=1e-7, atol=1e-7)


@every_case
def test_nothing_given_is_changed(wrapped):
    args = wrapped.inputs()
    gradients(wrapped.call, args, cotangents_for(run(wrapped.reference, args)))

    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    fresh = [x for x in wrapped.inputs() if isinstance(x, torch.Tensor)]
    assert_equal([x.detach() for x in tensors], [x.detach() for x in fresh], rtol=0, atol=0)


def test_group_is_as_large_as_promised():
    names = [c.name for c in CASES]

    assert len(names) >= 70
    assert len(names) == len(set(names))
    assert [c.name for c in case.control()] == names


def test_many_call_a_builtin_backward():
    assert inspect.getsource(control).count("_backward(") >= 35
