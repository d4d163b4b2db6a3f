"""The test at the end of a file of kernels: small, and in double precision where it can be."""

import torch

from pullback.emit.subject import subject_of
from pullback.emit.triton.self_test import few_of, kernel_test
from tests.emit.triton.cases import cases, draw


def test_large_examples_are_tested_small():
    program, _ = cases()["softmax"]
    subject = subject_of(program, (draw(512, 1024),))

    test = kernel_test(subject, ("x",))

    assert [like.shape for like in test.inputs.specs] == [(64, 64)]


def test_sizes_that_indices_point_into_stay():
    program, _ = cases()["cross_entropy"]
    given = draw(256, 512), torch.arange(256)
    subject = subject_of(program, given)

    test = kernel_test(subject, ("logits", "target"))

    assert [like.shape for like in test.inputs.specs] == [(64, 512), (64,)]


def test_half_types_are_recorded_in_double_precision():
    program, given = cases()["swiglu"]

    test = kernel_test(subject_of(program, given), ("gate", "up"))

    assert {value.dtype for value in test.recorded.values()} == {torch.float64}


def test_sums_see_every_element():
    y = torch.arange(20.0)
    moved = y.clone()
    moved[13] += 1

    assert not torch.equal(few_of(y), few_of(moved))
