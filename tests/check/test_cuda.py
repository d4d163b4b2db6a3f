"""Functions are checked on a GPU as on the CPU, by workers whose GPU may be lost."""

import subprocess
import sys
import textwrap

import pytest
import torch

import pullback as pb
from tests.check import functions as f

pytestmark = pytest.mark.needs_cuda


def on_gpu(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(device="cuda", dtype=dtype).requires_grad_()


def names(report):
    return {finding.rule.name for finding in report.findings}


def still_works():
    return float(torch.ones(8, device="cuda").sum()) == 8.0


@pytest.mark.parametrize("target", [f.Square, f.Relu, f.Surrogate])
def test_sound_function_has_no_finding_on_gpu(target):
    report = pb.check(target, (on_gpu(3, 4),))

    assert report.findings == ()
    assert not any("in this process" in note for note in report.notes)
    assert not [skip for skip in report.skips if "itself failed" in skip.reason]


def test_sound_product_has_no_finding_on_gpu():
    report = pb.check(f.Product, (on_gpu(3, 4), on_gpu(3, 4)))

    assert report.findings == ()


@pytest.mark.parametrize(
    ("target", "rule"),
    [(f.HalfSquare, "wrong-factor"), (f.OneWrong, "wrong-gradient")],
)
def test_wrong_gradient_is_found_on_gpu(target, rule):
    report = pb.check(target, (on_gpu(3, 5),))

    assert rule in names(report)
    assert "on cuda" in next(x.inputs for x in report.findings if x.rule.name == rule)


def test_kernel_that_reads_memory_as_dense_is_found_on_gpu():
    class Dense(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            flat = torch.as_strided(g, (g.numel(),), (1,), g.storage_offset())
            return 2 * flat.reshape(g.shape)

    report = pb.check(Dense, (on_gpu(3, 4),), select=["layout"])

    assert "cotangent-layout" in names(report)


class Asserts(torch.autograd.Function):
    """A backward that reads beyond its tensor, which the device itself notices."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g.flatten()[torch.full((g.numel(),), 10**7, device=g.device)].view(g.shape)


class Endless(torch.autograd.Function):
    """A backward whose kernel takes hours."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        torch.cuda._sleep(1 << 50)
        return 2 * g


@pytest.mark.parametrize("target", [Asserts, Endless])
def test_lost_gpu_is_a_finding_and_the_caller_goes_on(target):
    report = pb.check(target, (on_gpu(3, 4),), select=["wrong-gradient", "mutated-input"])

    assert names(report) == {"crash"}
    assert report.lost
    assert not report.ok
    assert "could be tried" in report.summary()
    assert still_works()


KERNEL = """
    import torch, triton, triton.language as tl
    import pullback as pb

    @triton.jit
    def stray(g, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(g + at + n.to(tl.int64) * (1 << 30), 1.0)  # 1 TiB away

    class Stray(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            stray[(1,)](g, 1 << 8, 16)
            return 2 * g

    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    report = pb.check(Stray, (x,), select=["wrong-gradient", "mutated-input"])
    print(report)
    print("caller:", float(torch.ones(8, device="cuda").sum()))
"""


def test_stray_kernel_of_a_script_is_named(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KERNEL))

    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    )

    assert "X901 crash" in done.stdout, done.stdout + done.stderr
    assert "kernel:   `stray` (" in done.stdout
    assert "script.py:19" in done.stdout  # where it is launched
    assert "caller: 8.0" in done.stdout
