"""Losses, adapters and covariance pooling: gradients that are computed ahead or by hand."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.wild.subject import Subject, integers, linear, load, normal, uniform


def focal() -> tuple[Any, ...]:
    """Logits of three classes, the labels as indices, and all of them valid."""
    return normal(2, 3, 4), integers(3, 2, 1, 4), torch.ones(2, 1, 4, dtype=torch.bool)


def log_probability(pred: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """The log probability of the label, by PyTorch's own operators."""
    return pred.log_softmax(1).gather(1, target)


def weighted_loss(invar: Tensor, outvar: Tensor, area: Tensor) -> Tensor:
    """The mean squared error, weighted by the area of a cell."""
    return (((invar - outvar) ** 2).mean((0, 1)) * area).mean()


def log_det() -> tuple[Any, ...]:
    """A contractive net, an estimator of the log determinant, and the net's parameters."""
    net = torch.nn.Sequential(linear(3, 3, 1), torch.nn.Tanh())
    with torch.no_grad():
        net[0].weight.mul_(0.3)
    estimator = load("normflows.flows.residual:basic_logdet_estimator")
    noise = normal(4, 3, seed=2, grad=False)
    return (estimator, net, normal(4, 3), 3, noise, lambda k: 1.0, True, *net.parameters())


def covariances() -> Tensor:
    """Covariance matrices, as the pooling before gives them."""
    x = normal(2, 3, 8, grad=False)
    return (x @ x.mT / 8).requires_grad_()


SUBJECTS = [
    Subject("kornia", "kornia.losses.focal:_TargetLogSoftmax", focal, reference=log_probability),
    Subject(
        "kornia",
        "kornia.geometry.epipolar.essential:_NullSpaceBasis",
        lambda: (normal(2, 5, 9).detach().double().requires_grad_(),),
    ),
    Subject(
        "peft",
        "peft.tuners.c3a.utils:BlockCircularConvolution",
        lambda: (normal(3, 8), normal(2, 2, 4, seed=1)),
    ),
    Subject(
        "peft",
        "peft.tuners.lora.velora:VeloraFunction",
        lambda: (
            normal(3, 8),
            normal(4, 8, seed=1),
            normal(4, seed=2),
            functional.normalize(normal(4, seed=3, grad=False), dim=0),
            2,
            1.0,
        ),
    ),
    Subject("geomloss", "geomloss._legacy.kernel_samples:DoubleGrad", lambda: (normal(4, 3),)),
    Subject(
        "catalyst",
        "catalyst.contrib.losses.recsys:WARP",
        lambda: (normal(3, 5), functional.one_hot(torch.tensor([1, 0, 3]), 5).float(), None),
    ),
    Subject(
        "mmaction2",
        "mmaction.models.losses.ohem_hinge_loss:OHEMHingeLoss",
        lambda: (normal(6, 3), torch.tensor([1, 2, 3, 1, 2, 3]), 1, 0.5, 3),
    ),
    Subject(
        "nvidia-modulus",
        "modulus.utils.graphcast.loss:CustomCellAreaWeightedLossAutogradFunction",
        lambda: (
            normal(1, 2, 3, 4),
            normal(1, 2, 3, 4, seed=1, grad=False),
            uniform(3, 4, low=0.5, high=1.5, grad=False),
        ),
        reference=weighted_loss,
    ),
    Subject("normflows", "normflows.flows.residual:MemoryEfficientLogDetEstimator", log_det),
    Subject("pytorchcv", "pytorchcv.models.isqrtcovresnet:CovPool", lambda: (normal(2, 3, 4, 4),)),
    Subject(
        "pytorchcv", "pytorchcv.models.isqrtcovresnet:NewtonSchulzSqrt", lambda: (covariances(), 5)
    ),
    Subject("pytorchcv", "pytorchcv.models.isqrtcovresnet:Triuvec", lambda: (normal(2, 4, 4),)),
    Subject(
        "torchlens", "torchlens.attribution._guided:_GuidedReluFunction", lambda: (normal(4, 6),)
    ),
    Subject(
        "torchlens", "torchlens.attribution._guided:_DeconvReluFunction", lambda: (normal(4, 6),)
    ),
    Subject(
        "torchquantum",
        "torchquantum.util.quantization.clifford_quantization:QuantizeFunction",
        lambda: (normal(4, 6, scale=3.0),),
    ),
    Subject("fairscale", "fairscale.nn.pipe.dependency:Fork", lambda: (normal(3, 4),)),
    Subject(
        "fairscale",
        "fairscale.nn.pipe.dependency:Join",
        lambda: (normal(3, 4), torch.empty(0, requires_grad=True)),
    ),
]
