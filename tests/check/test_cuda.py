"""Functions are checked on a GPU as on the CPU, in this process."""

import pytest
import torch

import pullback as pb
from tests.check import functions as f

pytestmark = pytest.mark.needs_cuda


def on_gpu(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(device="cuda", dtype=dtype).requires_grad_()


@pytest.mark.parametrize("target", [f.Square, f.Relu, f.Surrogate])
def test_sound_function_has_no_finding_on_gpu(target):
    report = pb.check(target, (on_gpu(3, 4),))

    assert report.findings == ()


def test_sound_product_has_no_finding_on_gpu():
    report = pb.check(f.Product, (on_gpu(3, 4), on_gpu(3, 4)))

    assert report.findings == ()


@pytest.mark.parametrize(
    ("target", "rule"),
    [(f.HalfSquare, "wrong-factor"), (f.OneWrong, "wrong-gradient")],
)
def test_wrong_gradient_is_found_on_gpu(target, rule):
    report = pb.check(target, (on_gpu(3, 5),))

    assert rule in {finding.rule.name for finding in report.findings}
    assert "the rules ran in this process" in report.notes[0]
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

    assert "cotangent-layout" in {finding.rule.name for finding in report.findings}
