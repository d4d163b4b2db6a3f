"""Layers with quantised or shared weights: products, and what they return for bias and weight."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.wild.subject import Subject, load, normal, uniform

HQQ = "hqq.core.quantize"
NNCF = "nncf.torch.quantization.quantize_functions"
QUANTO = "optimum.quanto.tensor"


class Layer:
    """A layer whose weight is computed when it is needed."""

    def __init__(self) -> None:
        self.weight = normal(3, 4, seed=5, grad=False)

    def dequantize(self) -> Tensor:
        """The weight in the dtype of the product."""
        return self.weight

    def matmul(self, x: Tensor, transpose: bool = True) -> Tensor:
        """The product with the weight, or with its transpose."""
        return x @ (self.weight.t() if transpose else self.weight)


def tokens() -> Tensor:
    """A batch of two sequences of three tokens."""
    return normal(2, 3, 4)


def quanto_linear(*, quantised: bool) -> tuple[Any, ...]:
    """Tokens, a weight, plain or in eight bits, and a bias."""
    weight = normal(3, 4, seed=1)
    if quantised:
        quantise = load("optimum.quanto:quantize_weight")
        scale = weight.detach().abs().amax(1, keepdim=True) / 127
        weight = quantise(weight.detach(), load("optimum.quanto:qint8"), 0, scale, optimized=False)
    return tokens(), weight, normal(3, seed=2)


def quantiser(name: str) -> tuple[Any, ...]:
    """What a quantiser of quanto gets: numbers, a type of eight bits, and scales."""
    base, qtype = normal(3, 4), load("optimum.quanto:qint8")
    if name == "activation":
        return base, qtype, torch.tensor(0.02)
    return base, qtype, 0, base.detach().abs().amax(1, keepdim=True) / 127, None, False


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's own linear layer."""
    return functional.linear(x, weight, bias)


SUBJECTS = [
    Subject(
        "hqq",
        f"{HQQ}:HQQMatmulNoCacheDeq",
        lambda: (tokens(), Layer().dequantize, normal(3, seed=1)),
    ),
    Subject(
        "hqq", f"{HQQ}:HQQMatmulNoCacheMul", lambda: (tokens(), Layer().matmul, normal(3, seed=1))
    ),
    Subject("hqq", f"{HQQ}:HQQMatmulCachedDeq", lambda: (tokens(), Layer(), normal(3, seed=1))),
    Subject(
        "optimum-quanto",
        f"{QUANTO}.function:QuantizedLinearFunction",
        lambda: quanto_linear(quantised=False),
        reference=linear_reference,
    ),
    Subject(
        "optimum-quanto",
        f"{QUANTO}.weights.qbytes:WeightQBytesLinearFunction",
        lambda: quanto_linear(quantised=True),
    ),
    Subject(
        "optimum-quanto",
        f"{QUANTO}.weights.qbytes:WeightQBytesQuantizer",
        lambda: quantiser("weight"),
    ),
    Subject(
        "optimum-quanto",
        f"{QUANTO}.activations.qbytes:ActivationQBytesQuantizer",
        lambda: quantiser("activation"),
    ),
    Subject("nncf", "nncf.torch.functions:STThreshold", lambda: (normal(4, 6), 0.5)),
    Subject(
        "nncf",
        f"{NNCF}:QuantizeSymmetricTorch",
        lambda: (normal(3, 4), (3, 4), uniform(3, 1, low=1.0, high=2.0), -8, 7, 16),
    ),
    Subject(
        "nncf",
        f"{NNCF}:QuantizeAsymmetricTorch",
        lambda: (
            normal(3, 4),
            (3, 4),
            uniform(3, 1, low=-2.0, high=-1.0),
            uniform(3, 1, low=2.0, high=3.0, seed=1),
            0,
            15,
            16,
        ),
    ),
    Subject(
        "nncf",
        f"{NNCF}:TuneRange",
        lambda: (uniform(3, low=-2.0, high=-1.0), uniform(3, low=2.0, high=3.0, seed=1), 16),
    ),
    Subject(
        "torchphysics",
        "torchphysics.models.deeponet.layers:linear",
        lambda: (normal(4, 5), normal(3, 5, seed=1), normal(3, seed=2)),
    ),
    Subject("neuromancer", "neuromancer.slim.linear:IdentityGradReLU", lambda: (normal(4, 6),)),
    Subject(
        "neuromancer",
        "neuromancer.slim.butterfly.complex_utils:Conjugate",
        lambda: (normal(3, 4, 2),),
    ),
    Subject(
        "neuromancer",
        "neuromancer.slim.butterfly.complex_utils:ComplexMul",
        lambda: (normal(3, 4, 2), normal(3, 4, 2, seed=1)),
    ),
    Subject(
        "neuromancer",
        "neuromancer.slim.butterfly.complex_utils:ComplexMatmulNp",
        lambda: (normal(3, 4, 2), normal(4, 3, 2, seed=1)),
    ),
]
