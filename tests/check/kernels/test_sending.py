"""Triton kernels are sent to another process by value, with their source."""

import pickle
import subprocess
import sys
import textwrap

import pytest
import torch

from pullback.check.kernels.sending import sent_by_value

triton = pytest.importorskip("triton")

SCRIPT = """
    import os, sys
    os.environ["TRITON_INTERPRET"] = "1"
    import torch, triton, triton.language as tl
    from pullback.check.kernels.sending import sent_by_value

    @triton.jit
    def twice(x, y, n, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    def doubled(x):
        y = torch.empty_like(x)
        twice[(1,)](x, y, x.numel(), 64)
        return y

    open(sys.argv[1], "wb").write(sent_by_value(doubled))
"""


def test_kernel_of_a_script_works_elsewhere(tmp_path, monkeypatch):
    script, sent = tmp_path / "script.py", tmp_path / "sent"
    script.write_text(textwrap.dedent(SCRIPT))
    subprocess.run([sys.executable, str(script), str(sent)], check=True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    doubled = pickle.loads(sent.read_bytes())

    assert doubled(torch.tensor([1.0, 2.5])).tolist() == [2.0, 5.0]


def test_kernel_that_can_be_imported_is_named():
    from benchmarks.faults.kernels.elementwise import square

    sent = sent_by_value(lambda: square)

    assert len(sent) < 1000
    assert pickle.loads(sent)() is square
