"""Structured prediction and transport: semirings that sample, alignment, values with gradients."""

from functools import partial
from typing import Any

import torch

from benchmarks.wild.subject import Subject, load, normal, positive_definite, uniform

SAMPLE = "torch_struct.semirings.sample"


def logits(dim: int = -1) -> tuple[Any, ...]:
    """Scores, and the dimension that is summed over."""
    return normal(3, 5), dim


def semiring(maker: str, **options: Any) -> Any:
    """A product of matrices of log potentials, as a semiring of the package computes it."""
    log = load("torch_struct:LogSemiring")
    return load(f"torch_struct.semirings.checkpoint:{maker}")(log, **options).matmul


def gumbel(name: str) -> Any:
    """A sum of a semiring that draws."""
    return load(f"{SAMPLE}:{name}")(0.5).sum


SUBJECTS = [
    Subject("torch-struct", f"{SAMPLE}:_SampledLogSumExp", logits),
    Subject("torch-struct", f"{SAMPLE}:_MultiSampledLogSumExp", logits),
    Subject(
        "torch-struct", partial(gumbel, "GumbelMaxSemiring"), lambda: (normal(3, 5),), "GumbelMax"
    ),
    Subject(
        "torch-struct", partial(gumbel, "GumbelCRFSemiring"), lambda: (normal(3, 5),), "GumbelCRF"
    ),
    Subject("torch-struct", "torch_struct.semirings.sparse_max:_SimplexProject", logits),
    Subject(
        "torch-struct",
        "torch_struct.semirings.sparse_max:_SparseMaxGrad",
        lambda: (torch.softmax(normal(3, 5, grad=False), -1).requires_grad_(), torch.tensor(-1)),
    ),
    Subject(
        "torch-struct",
        partial(semiring, "CheckpointSemiring", min_size=0),
        lambda: (normal(1, 2, 3, 4), normal(1, 2, 4, 3, seed=1)),
        "CheckpointSemiring.matmul",
    ),
    Subject(
        "torch-struct",
        partial(semiring, "CheckpointShardSemiring", max_size=8),
        lambda: (normal(1, 2, 3, 4), normal(1, 2, 4, 3, seed=1)),
        "CheckpointShardSemiring.matmul",
    ),
    Subject(
        "pysdtw",
        "pysdtw.sdtw_cpu:SoftDTWcpu",
        lambda: (uniform(2, 4, 5), torch.tensor([[4, 5], [4, 5]]), 1.0, 0),
    ),
    Subject(
        "pot",
        lambda: load("ot.backend:TorchBackend")().MatrixSqrtFunction.apply,
        lambda: (positive_definite(3, 3),),
        "MatrixSqrtFunction",
    ),
    Subject(
        "pot",
        lambda: load("ot.backend:TorchBackend")().ValFunction.apply,
        lambda: (torch.tensor(2.0), (normal(3, seed=1, grad=False),), normal(3)),
        "ValFunction",
    ),
]
