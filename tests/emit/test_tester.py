"""What emitted files give, seen in a process of their own."""

import pytest
import torch

from pullback.emit.tester import FileCall, FileFailedError, seen_of_file
from pullback.judge.observed import TOGETHER, Wanted

SQUARE = """
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, times):
        ctx.save_for_backward(x)
        ctx.times = times
        return times * x**2

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.times * ctx.saved_tensors[0] * g, None
"""

X = torch.tensor([1.0, 2.0])
CALL = FileCall("Square", [X], Wanted(needs=(True,)), [(0, None), (None, 3)])


def seen_of(text, tmp_path, call=CALL):
    (tmp_path / "it.py").write_text(text, encoding="utf-8")
    return seen_of_file(tmp_path / "it.py", [call], tmp_path)


def test_outputs_and_gradients_are_seen(tmp_path):
    (seen,) = seen_of(SQUARE, tmp_path)

    assert seen.error == ""
    assert seen.outputs[0].tolist() == [3.0, 12.0]
    assert (seen.first[TOGETHER][0] / X).unique().numel() == 2  # the cotangents are no ones


def test_what_a_call_raises_is_seen(tmp_path):
    (seen,) = seen_of(SQUARE.replace("2 * ctx", "2 * ct"), tmp_path)

    assert seen.error_type == "NameError"


def test_process_that_dies_is_an_error(tmp_path):
    with pytest.raises(FileFailedError, match="a process that ended with 3: no word"):
        seen_of("import os; os._exit(3)", tmp_path)
