"""Reasons: one line each, the youngest kept."""

import torch

from pullback.compose.reasons import Reasons, call_text, is_refusal, reason_text
from pullback.errors import CaptureError


def test_reason_is_one_line():
    error = CaptureError("`f` must\n  do so", at="ops.py:3", got="a branch", fix="do it")

    assert reason_text(error) == "`f` must do so: a branch (ops.py:3)"


def test_place_in_written_text_is_left_out():
    assert reason_text(CaptureError("`f` must", at="<sin_exp>:2")) == "`f` must"


def test_errors_of_a_program_are_no_refusals():
    assert is_refusal(CaptureError("no"))
    assert is_refusal(RuntimeError("a leaf Variable that requires grad is being used in-place"))
    assert not is_refusal(RuntimeError("sizes differ"))
    assert not is_refusal(ValueError("no"))


def test_call_is_told_in_words():
    args = (torch.ones(2, 3), [None, 0.5], {"mode": "x" * 30})

    assert call_text(args) == "(float32[2, 3], None, 0.5, str)"


def test_equal_reasons_are_told_once():
    reasons = Reasons()
    for key in range(300):
        reasons.add(key, "(2)", "no")

    assert list(reasons.lines()) == ["nested for (2): no"]
    assert (0 in reasons, 299 in reasons) == (False, True)
