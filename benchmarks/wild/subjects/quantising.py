"""Quantisers: forward rounds or takes signs, backward passes the gradient through, or clips it."""

import torch

from benchmarks.wild.subject import Subject, normal

BITORCH = "bitorch.quantizations"
MICRONET = "micronet.compression.quantization"


def weights() -> tuple[object, ...]:
    """The weights of a small convolution."""
    return (normal(4, 3, 2, 2),)


def activations(*more: object) -> tuple[object, ...]:
    """What a layer before would give, and further arguments."""
    return (normal(4, 6), *more)


SUBJECTS = [
    Subject(
        "bitorch",
        "bitorch.layers.pact:PactActFn",
        lambda: (normal(4, 6), torch.tensor(1.5, requires_grad=True), 3),
    ),
    Subject(
        "bitorch",
        "bitorch.layers.qactivation:GradientCancellation",
        lambda: activations(1.3),
    ),
    Subject("bitorch", f"{BITORCH}.approx_sign:ApproxSignFunction", activations),
    Subject("bitorch", f"{BITORCH}.dorefa:WeightDoReFaFunction", lambda: activations(3)),
    Subject("bitorch", f"{BITORCH}.dorefa:InputDoReFaFunction", lambda: activations(2)),
    Subject(
        "bitorch",
        f"{BITORCH}.progressive_sign:ProgressiveSignFunctionTrain",
        lambda: activations(0.5),
    ),
    Subject("bitorch", f"{BITORCH}.swish_sign:SwishSignFunction", lambda: activations(5.0)),
    Subject("micronet", f"{MICRONET}.wbwtab.quantize:BinaryActivation", activations),
    Subject("micronet", f"{MICRONET}.wbwtab.quantize:BinaryWeight", weights),
    Subject("micronet", f"{MICRONET}.wbwtab.quantize:Ternary", weights),
    Subject(
        "micronet",
        f"{MICRONET}.wqaq.iao.quantize:Round",
        lambda: (normal(4, 6, scale=3.0), torch.tensor(-3.0), torch.tensor(3.0), 0),
        "iao.Round",
    ),
    Subject(
        "micronet", f"{MICRONET}.wqaq.dorefa.quantize:Round", lambda: activations(), "dorefa.Round"
    ),
    Subject("pytorchcv", "pytorchcv.models.wrn1bit_cifar:Binarize", weights),
    Subject("botorch", "botorch.utils.rounding:RoundSTE", activations),
    Subject("botorch", "botorch.utils.rounding:OneHotArgmaxSTE", activations),
]
