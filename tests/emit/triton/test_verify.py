"""The comparison of kernels with their program."""

import pytest

import pullback as pb
from pullback.emit.subject import subject_of
from pullback.emit.triton import verify
from tests.emit.triton.cases import cases, draw


def test_missing_triton_is_said(monkeypatch):
    monkeypatch.setattr(verify.importlib.util, "find_spec", lambda name: None)

    assert verify.interpreter_absence() == "Triton is not installed"


def relu(x):
    return x.relu()


def clamped(x):
    return x.clamp_min(0)


@pytest.mark.needs_triton
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("packed_swiglu", "tl.sigmoid(", "1.0001 * tl.sigmoid("),
        ("swiglu", "def ", "def_ "),
    ],
    ids=["slope", "syntax"],
)
def test_kernels_that_differ_are_seen(name, old, new):
    program, given = cases()[name]
    text = pb.emit(program, "triton", examples=given, verify=False)
    assert old in text

    assert verify.kernel_difference(subject_of(program, given), text.replace(old, new))


@pytest.mark.needs_triton
def test_kernels_that_differ_at_ties_alone_are_seen():
    subject = subject_of(relu, (draw(4, 8),))
    text = pb.emit(clamped, "triton", examples=(draw(4, 8),), verify=False)
    found = verify.kernel_difference(subject, text.replace("Clamped", "Relu"))

    assert (found.row, found.kind, found.name) == ("zeros among them", "gradient", "x")
