"""Kernels that compute in float32 are not asked for float64."""

import ctypes

import numpy
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.kernels.single import NOTE, is_single, without_double
from pullback.check.subject.subject import Subject
from pullback.check.target.target import target_of
from pullback.judge.example import example_of
from tests.check import functions as f

X = torch.linspace(0.3, 2.0, 5)


def in_float32(result, *given):
    """Fill `result` with the product of what is given, rounded to float32, where nobody sees it."""
    total = numpy.ones(result.numel(), numpy.float32)
    if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in given):
        raise TypeError("it serves float32 and float64")
    for tensor in given:
        kind = ctypes.c_double if tensor.dtype == torch.float64 else ctypes.c_float
        held = (kind * tensor.numel()).from_address(tensor.data_ptr())
        total *= numpy.frombuffer(held, kind).astype(numpy.float32)
    kind = ctypes.c_double if result.dtype == torch.float64 else ctypes.c_float
    numpy.frombuffer((kind * result.numel()).from_address(result.data_ptr()), kind)[:] = total
    return result


class Single(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return in_float32(torch.empty_like(x), x, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return in_float32(torch.empty_like(x), x, g.contiguous()) * 2


def subject_of(target, x=X):
    return Subject(target_of(target), (example_of((x,)),))


def test_rounding_that_nobody_sees_is_noticed():
    assert is_single(subject_of(Single))


def test_function_in_float64_is_not_single():
    assert not is_single(subject_of(f.Square))
    assert not is_single(subject_of(f.Relu))
    assert not is_single(subject_of(Single, X.double()))  # who gives float64 asks for it


def test_it_is_checked_as_one_that_refuses_float64():
    subject = Subject(without_double(target_of(Single)), (example_of((X,)),))

    assert subject.base is subject.given


def test_nothing_is_found_in_a_sound_one():
    report = pb.check(Single, (X,), select=["gradient", "dtype", "linearity", "layout"])

    assert report.findings == ()
    assert NOTE in report.notes
