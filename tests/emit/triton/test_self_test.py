"""The test at the end of a file of kernels: small, and in double precision where it can be."""

import os
import subprocess
import sys

import pytest
import torch

import pullback as pb
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


BENCH = """
import runpy, sys, torch, triton
sys.modules["pullback"] = None  # an import of it raises
space = runpy.run_path(sys.argv[1])

def do_bench(timed, return_mode):
    space["bench"].__globals__["cotangent"] = None  # a call of it raises
    timed()
    return 1.0

triton.testing.do_bench = do_bench
space["bench"]("cpu")
"""


@pytest.mark.needs_triton
def test_benchmark_times_kernels_alone_and_counts_what_they_move(tmp_path):
    program, given = cases()["softmax"]
    text = pb.emit(program, "triton", examples=given, verify=False)
    text = text.replace("2**26", "2**12").replace("2**29", "2**24")
    (tmp_path / "softmax.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", BENCH, str(tmp_path / "softmax.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    moved = 5 * given[0].nbytes  # input, output and what is kept of it, cotangent, gradient

    said = f"Softmax: 1.000 ms, {2 * 2**24 / moved:.2f} times the time to move its bytes\n"
    assert done.stdout == said
