"""Activation functions and elementwise curves with a hand-written derivative."""

import torch
from torch.nn import functional

from benchmarks.wild.subject import Subject, normal, uniform

ECHO = "echoAI.Activation.Torch"
TOOLBELT = "pytorch_toolbelt.modules.activations"


def numbers() -> tuple[object, ...]:
    """What a layer before would give."""
    return (normal(4, 6),)


def cdf(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """The normal distribution function."""
    return torch.distributions.Normal(0.0, sigma, validate_args=False).cdf(x)


def power(x: torch.Tensor, n: int) -> torch.Tensor:
    """A power of the rectifier."""
    return functional.relu(x) ** n


SUBJECTS = [
    Subject(
        "echoai",
        f"{ECHO}.apl:apl_function",
        lambda: (normal(4, 5), normal(2, 5, seed=1), normal(2, 5, seed=2)),
    ),
    Subject("echoai", f"{ECHO}.brelu:BReLU", numbers),
    Subject("echoai", f"{ECHO}.maxout:Maxout", lambda: (normal(2, 8, 3, 3),)),
    Subject("pytorch-toolbelt", f"{TOOLBELT}:SwishFunction", numbers, reference=functional.silu),
    Subject("pytorch-toolbelt", f"{TOOLBELT}:MishFunction", numbers, reference=functional.mish),
    Subject(
        "pytorch-toolbelt",
        "pytorch_toolbelt.losses.bitempered_loss:ComputeNormalization",
        lambda: (normal(4, 6), 1.4, 10),
    ),
    Subject(
        "monai",
        "monai.networks.blocks.activation:SwishImplementation",
        numbers,
        reference=functional.silu,
    ),
    Subject("monai", "monai.visualize.gradient_based:_AutoGradReLU", numbers),
    Subject(
        "pytorchvideo",
        "pytorchvideo.layers.swish:SwishFunction",
        numbers,
        reference=functional.silu,
    ),
    Subject(
        "torchattacks",
        "robustbench.model_zoo.architectures.dm_wide_resnet:_Swish",
        numbers,
        reference=functional.silu,
    ),
    Subject(
        "torchphysics",
        "torchphysics.models.activation_fn:relu_n",
        lambda: (normal(4, 6), 3),
        reference=power,
    ),
    Subject("e3nn", "e3nn.math._soft_unit_step:_SoftUnitStep", numbers),
    Subject(
        "diffsort", "diffsort.functional:NormalCDF", lambda: (normal(4, 6), 0.5), reference=cdf
    ),
    Subject(
        "difftopk", "difftopk.functional:NormalCDF", lambda: (normal(4, 6), 0.5), reference=cdf
    ),
    Subject(
        "deel-torchlip",
        "deel.torchlip.utils.sqrt_eps:SqrtEpsGrad",
        lambda: (uniform(4, 6, low=0.1, high=2.0), 1e-6),
    ),
    Subject("kymatio", "kymatio.backend.torch_backend:ModulusStable", lambda: (normal(3, 4, 2),)),
    Subject(
        "auto-lirpa",
        "auto_LiRPA.operators.clampmult:ClampedMultiplication",
        lambda: (normal(2, 3, 4), *(uniform(2, 3, 4, seed=s) for s in (1, 2, 3, 4)), False),
    ),
    Subject(
        "pytorchcv",
        "pytorchcv.models.shakeshakeresnet_cifar:ShakeShake",
        lambda: (normal(2, 3, 4, 4), normal(2, 3, 4, 4, seed=1), uniform(2, 1, 1, 1, grad=False)),
    ),
    Subject(
        "pytorchcv",
        "pytorchcv.models.shakedropresnet_cifar:ShakeDrop",
        lambda: (normal(2, 3, 4, 4), torch.tensor(1.0), uniform(2, 1, 1, 1, grad=False)),
    ),
]
