"""The control group: PyTorch's own operators as Functions whose backward is PyTorch's own.

Nobody here wrote a derivative: each line of the table calls the built-in `*_backward`, or repeats
the formula of `derivatives.yaml`. A finding of severity "wrong" on one of them is a false alarm.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.faults.case import Case
from benchmarks.faults.sound.entry import coins, imaginary, positive, real, whole

aten = torch.ops.aten

CASES: list[Case] = []


def control(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Callable[[], tuple[Any, ...]],
    *,
    keeps: str = "inputs",
    gives: int | None = None,
    op: Callable[..., Any] | None = None,
) -> None:
    """Make a Function of an operator and its backward, and a case of it.

    Arguments:
        name: of the class, which is put into this module.
        forward: the operator, of tensors alone.
        backward: from the cotangents and what is kept to one gradient per input. What it calls
            `_`, or `_b`, it does not read, and that is not kept.
        inputs: makes the inputs.
        keeps: what is kept for backward: "inputs", "outputs", "both", or the inputs' "shapes".
        gives: how many of forward's results are outputs, when the others are for backward only.
        op: the operator with torch's own derivative, when that is not `forward` itself.
    """

    def run(ctx: Any, *args: Any) -> Any:
        results = forward(*args)
        every = results if isinstance(results, tuple) else (results,)
        outputs = every[:gives]
        kept = {
            "inputs": args,
            "outputs": every,
            "both": (*args, *every),
            "shapes": (),
        }[keeps]
        ctx.shapes = [x.shape for x in args] if keeps == "shapes" else []
        unread = _unread(backward, len(outputs), len(kept))
        ctx.save_for_backward(*(None if i in unread else x for i, x in enumerate(kept)))
        ctx.mark_non_differentiable(*(y for y in outputs if not _is_differentiable(y)))
        return outputs if len(outputs) > 1 else outputs[0]

    def pull(ctx: Any, *cotangents: Tensor) -> Any:
        outputs = cotangents[: gives or len(cotangents)]
        return backward(*outputs, *ctx.saved_tensors, *ctx.shapes)

    methods = {"forward": staticmethod(run), "backward": staticmethod(pull)}
    about = {"__module__": __name__, "__qualname__": name, "__doc__": f"`{name}` of PyTorch."}
    globals()[name] = cls = type(name, (Function,), methods | about)
    CASES.append(Case(f"aten-{name}", cls, inputs, reference=op or forward))


def _unread(backward: Callable[..., Any], cotangents: int, kept: int) -> set[int]:
    """The places of what is kept that `backward` does not read, by the names it gives them."""
    try:
        parameters = list(inspect.signature(backward).parameters.values())
    except (TypeError, ValueError):  # an operator of PyTorch
        return set()
    names = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    rest = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
    names = names[cotangents:] + rest * (kept + cotangents - len(names))
    return {i for i, name in enumerate(names) if name.startswith("_")}


def _is_differentiable(y: Tensor) -> bool:
    return y.is_floating_point() or y.is_complex()


def _x() -> tuple[Tensor]:
    return (real(4, 5),)


def _up() -> tuple[Tensor]:
    return (positive(4, 5),)


def _two() -> tuple[Tensor, Tensor]:
    return real(4, 5), real(4, 5, seed=1)


def _row() -> tuple[Tensor]:
    return (real(2, 3, 6),)


def _image() -> tuple[Tensor]:
    return (real(2, 3, 4, 6),)


# ---- activations ----

control("Gelu", aten.gelu, aten.gelu_backward, _x)
control(
    "GeluTanh",
    lambda x: aten.gelu(x, approximate="tanh"),
    lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    _x,
)
control("Silu", aten.silu, aten.silu_backward, _x)
control("Mish", aten.mish, aten.mish_backward, _x)
control(
    "Softplus",
    lambda x: aten.softplus(x, 2, 20),
    lambda g, x: aten.softplus_backward(g, x, 2, 20),
    _x,
)
control(
    "Elu",
    lambda x: aten.elu(x, 0.7),
    lambda g, x: aten.elu_backward(g, 0.7, 1, 1, False, x),
    _x,
)
control(
    "EluFromResult",
    lambda x: aten.elu(x, 0.7),
    lambda g, y: aten.elu_backward(g, 0.7, 1, 1, True, y),
    _x,
    keeps="outputs",
)
control("Hardswish", aten.hardswish, aten.hardswish_backward, _x)
control("Hardsigmoid", aten.hardsigmoid, aten.hardsigmoid_backward, _x)
control("Hardtanh", aten.hardtanh, lambda g, x: aten.hardtanh_backward(g, x, -1, 1), _x)
control(
    "LeakyRelu",
    lambda x: aten.leaky_relu(x, 0.1),
    lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    _x,
)
control(
    "LogSigmoid",
    aten.log_sigmoid_forward,
    lambda g, x, _, buffer: aten.log_sigmoid_backward(g, x, buffer),
    _x,
    keeps="both",
    gives=1,
    op=F.logsigmoid,
)
control("Relu", aten.relu, lambda g, y: aten.threshold_backward(g, y, 0), _x, keeps="outputs")
control(
    "Threshold",
    lambda x: aten.threshold(x, 0.2, -1),
    lambda g, x: aten.threshold_backward(g, x, 0.2),
    _x,
)
control(
    "Softshrink",
    lambda x: aten.softshrink(x, 0.4),
    lambda g, x: aten.softshrink_backward(g, x, 0.4),
    _x,
)
control(
    "Hardshrink",
    lambda x: aten.hardshrink(x, 0.4),
    lambda g, x: aten.hardshrink_backward(g, x, 0.4),
    _x,
)
control(
    "Glu",
    lambda x: aten.glu(x, -1),
    lambda g, x: aten.glu_backward(g, x, -1),
    lambda: (real(3, 6),),
)
control("Tanh", aten.tanh, aten.tanh_backward, _x, keeps="outputs")
control("Sigmoid", aten.sigmoid, aten.sigmoid_backward, _x, keeps="outputs")
control(
    "Logit",
    lambda x: aten.logit(x, 0.1),
    lambda g, x: aten.logit_backward(g, x, 0.1),
    lambda: ((positive(4, 5).detach() / 2).requires_grad_(),),
)
control(
    "PReluKernel",
    aten._prelu_kernel,
    aten._prelu_kernel_backward,
    lambda: (real(4, 5), positive(4, 5)),
)

# ---- element by element, the formulas of derivatives.yaml ----

control("Sqrt", torch.sqrt, lambda g, y: g / (2 * y), _up, keeps="outputs")
control("Rsqrt", torch.rsqrt, lambda g, y: -0.5 * g * y.pow(3), _up, keeps="outputs")
control("Exp", torch.exp, lambda g, y: g * y, _x, keeps="outputs")
control("Log", torch.log, lambda g, x: g.div(x), _up)
control("Abs", torch.abs, lambda g, x: g * x.sgn(), _x)
control("Sin", torch.sin, lambda g, x: g * x.cos(), _x)
control("Reciprocal", torch.reciprocal, lambda g, y: -g * (y * y), _up, keeps="outputs")
control("Erf", torch.erf, lambda g, x: 2 / math.sqrt(math.pi) * torch.exp(-(x.pow(2))) * g, _x)
control("Lgamma", torch.lgamma, lambda g, x: g * torch.digamma(x), _up)
control(
    "Clamp",
    lambda x: x.clamp(-0.5, 0.8),
    lambda g, x: torch.where((x >= -0.5) & (x <= 0.8), g, 0.0),
    _x,
)
control("Mul", torch.mul, lambda g, a, b: (g * b, g * a), _two)
control(
    "Div",
    torch.div,
    lambda g, a, b: (g / b, -g * ((a / b) / b)),
    lambda: (real(4, 5), positive(4, 5)),
)
control(
    "Atan2",
    torch.atan2,
    lambda g, y, x: (g * x / (x * x + y * y), g * -y / (x * x + y * y)),
    _two,
)
control(
    "Logaddexp",
    torch.logaddexp,
    lambda g, a, b: (g / (1 + torch.exp(b - a)), g / (1 + torch.exp(a - b))),
    _two,
)
control(
    "Maximum",
    torch.maximum,
    lambda g, a, b: (
        torch.where(a == b, g / 2, g).masked_fill(a < b, 0),
        torch.where(a == b, g / 2, g).masked_fill(a > b, 0),
    ),
    _two,
)
control(
    "Lerp",
    lambda a, b: torch.lerp(a, b, 0.3),
    lambda g, _a, _b: (g * (1 - 0.3), g * 0.3),
    _two,
)
control(
    "Addcmul",
    lambda x, a, b: torch.addcmul(x, a, b, value=0.5),
    lambda g, _, a, b: (g, g * (b * 0.5), g * (a * 0.5)),
    lambda: (*_two(), real(4, 5, seed=2)),
)
control(
    "MaskedFill",
    lambda x, mask: x.masked_fill(mask, 1.5),
    lambda g, _, mask: (g.masked_fill(mask, 0), None),
    lambda: (real(4, 5), coins(4, 5)),
)
control(
    "Where",
    torch.where,
    lambda g, mask, *_: (None, torch.where(mask, g, 0.0), torch.where(mask, 0.0, g)),
    lambda: (coins(4, 5), *_two()),
)
control(
    "NativeDropout",
    lambda x: torch.native_dropout(x, 0.4, True),
    lambda g, _, mask: aten.native_dropout_backward(g, mask, 1 / 0.6),
    _x,
    keeps="outputs",
    gives=1,
    op=lambda x: torch.native_dropout(x, 0.4, True)[0],
)

# ---- softmax and norms ----

control(
    "Softmax",
    lambda x: torch.softmax(x, -1),
    lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype),
    _x,
    keeps="outputs",
)
control(
    "LogSoftmax",
    lambda x: torch.log_softmax(x, 0),
    lambda g, y: aten._log_softmax_backward_data(g, y, 0, y.dtype),
    _x,
    keeps="outputs",
)
control(
    "LayerNorm",
    lambda x, w, b: aten.native_layer_norm(x, [5], w, b, 1e-5),
    lambda g, x, w, b, _, mean, rstd: aten.native_layer_norm_backward(
        g, x, [5], mean, rstd, w, b, [True, True, True]
    ),
    lambda: (real(4, 5), positive(5), real(5, seed=1)),
    keeps="both",
    gives=1,
    op=lambda x, w, b: F.layer_norm(x, [5], w, b),
)
control(
    "GroupNorm",
    lambda x, w, b: aten.native_group_norm(
        x.contiguous(), w.contiguous(), b.contiguous(), *_groups(x, w, b), 2, 1e-5
    ),
    lambda g, x, w, b, _, mean, rstd: aten.native_group_norm_backward(
        g.contiguous(),
        x.contiguous(),
        mean,
        rstd,
        w.contiguous(),
        *_groups(x, w, b),
        2,
        [True, True, True],
    ),
    lambda: (real(2, 4, 3), positive(4), real(4, seed=1)),
    keeps="both",
    gives=1,
    op=lambda x, w, b: F.group_norm(x, 2, w, b),
)
control(
    "BatchNorm",
    lambda x, w, b: aten.native_batch_norm(*_channels(x, w, b), None, None, True, 0.1, 1e-5),
    lambda g, x, w, _b, _, mean, rstd: aten.native_batch_norm_backward(
        g, x, w, None, None, mean, rstd, True, 1e-5, [True, True, True]
    ),
    lambda: (real(4, 3, 2), positive(3), real(3, seed=1)),
    keeps="both",
    gives=1,
    op=lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
)
control(
    "WeightNorm",
    lambda v, g: aten._weight_norm_interface(*_gains(v, g), 0),
    lambda grad, v, g, _, norms: aten._weight_norm_interface_backward(
        grad.contiguous(), *_gains(v, g), norms, 0
    ),
    lambda: (real(4, 5), positive(4, 1)),
    keeps="both",
    gives=1,
    op=lambda v, g: torch._weight_norm(v, g, 0),
)


# The operators below `group_norm`, `batch_norm` and `weight_norm` trust the sizes that those have
# checked, and read past the end of wrong ones: a wrapper has to check them too.


def _groups(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[int, int, int]:
    if x.dim() < 2 or x.shape[1] % 2 or not weight.shape == bias.shape == x.shape[1:2]:
        raise ValueError(f"takes (n, even channels, ...), got {x.shape} and {weight.shape}")
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


def _channels(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if x.dim() < 2 or not weight.shape == bias.shape == x.shape[1:2]:
        raise ValueError(f"takes (n, channels, ...), got {x.shape} and {weight.shape}")
    if x.numel() <= x.shape[1]:
        raise ValueError(f"needs more than one value per channel, got {x.shape}")
    return x, weight, bias


def _gains(v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    if v.dim() == 0 or not v.numel() or g.shape != (v.shape[0], *(1,) * (v.dim() - 1)):
        raise ValueError(f"takes v and one gain per row of it, got {v.shape} and {g.shape}")
    return v.contiguous(), g.contiguous()


# ---- convolution, pooling, resampling, padding ----

control(
    "Convolution",
    lambda x, w, b: aten.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    lambda g, x, w, b: aten.convolution_backward(
        g, x, w, [b.shape[0]], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
    ),
    lambda: (real(2, 3, 4, 6), real(4, 3, 3, 3, seed=1), real(4, seed=2)),
)
control(
    "MaxPool2d",
    lambda x: aten.max_pool2d_with_indices(x, [2, 2]),
    lambda g, x, _, places: aten.max_pool2d_with_indices_backward(
        g, x, [2, 2], [], [0, 0], [1, 1], False, places
    ),
    _image,
    keeps="both",
    gives=1,
    op=lambda x: F.max_pool2d(x, 2),
)
control(
    "AvgPool2d",
    lambda x: aten.avg_pool2d(x, [2, 2]),
    lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [], [0, 0], False, True, None),
    _image,
)
control(
    "AdaptiveAvgPool2d",
    lambda x: aten._adaptive_avg_pool2d(x, [2, 3]),
    aten._adaptive_avg_pool2d_backward,
    _image,
)
control(
    "AdaptiveMaxPool2d",
    lambda x: aten.adaptive_max_pool2d(x, [2, 3]),
    lambda g, x, _, places: aten.adaptive_max_pool2d_backward(g, x, places),
    _image,
    keeps="both",
    gives=1,
    op=lambda x: F.adaptive_max_pool2d(x, (2, 3)),
)
control(
    "UpsampleNearest1d",
    lambda x: aten.upsample_nearest1d(x, [9]),
    lambda g, shape: aten.upsample_nearest1d_backward(g, [9], shape),
    _row,
    keeps="shapes",
)
control(
    "UpsampleLinear1d",
    lambda x: aten.upsample_linear1d(x, [9], False),
    lambda g, shape: aten.upsample_linear1d_backward(g, [9], shape, False),
    _row,
    keeps="shapes",
)
control(
    "UpsampleNearest2d",
    lambda x: aten.upsample_nearest2d(x, [5, 9]),
    lambda g, shape: aten.upsample_nearest2d_backward(g, [5, 9], shape),
    _image,
    keeps="shapes",
)
control(
    "UpsampleBilinear2d",
    lambda x: aten.upsample_bilinear2d(x, [5, 9], True),
    lambda g, shape: aten.upsample_bilinear2d_backward(g, [5, 9], shape, True),
    _image,
    keeps="shapes",
)
control(
    "UpsampleBicubic2d",
    lambda x: aten.upsample_bicubic2d(x, [5, 9], False),
    lambda g, shape: aten.upsample_bicubic2d_backward(g, [5, 9], shape, False),
    _image,
    keeps="shapes",
)
control(
    "GridSampler2d",
    lambda x, grid: aten.grid_sampler_2d(x, grid, 0, 0, False),
    lambda g, x, grid: aten.grid_sampler_2d_backward(g, x, grid, 0, 0, False, [True, True]),
    lambda: (real(2, 3, 4, 6), (real(2, 3, 2, 2, seed=1).detach() / 3).requires_grad_()),
)
control(
    "ReflectionPad1d",
    lambda x: aten.reflection_pad1d(x, [2, 1]),
    lambda g, x: aten.reflection_pad1d_backward(g, x, [2, 1]),
    _row,
)
control(
    "ReflectionPad2d",
    lambda x: aten.reflection_pad2d(x, [2, 1, 1, 1]),
    lambda g, x: aten.reflection_pad2d_backward(g, x, [2, 1, 1, 1]),
    _image,
)
control(
    "ReplicationPad1d",
    lambda x: aten.replication_pad1d(x, [2, 1]),
    lambda g, x: aten.replication_pad1d_backward(g, x, [2, 1]),
    _row,
)
control(
    "ReplicationPad2d",
    lambda x: aten.replication_pad2d(x, [2, 1, 1, 1]),
    lambda g, x: aten.replication_pad2d_backward(g, x, [2, 1, 1, 1]),
    _image,
)
control(
    "ConstantPad",
    lambda x: aten.constant_pad_nd(x, [2, 1], 3),
    lambda g, _: aten.constant_pad_nd(g, [-2, -1], 0),
    _x,
    keeps="shapes",
)
control(
    "Im2col",
    lambda x: aten.im2col(x, [2, 2], [1, 1], [0, 0], [1, 1]),
    lambda g, shape: aten.col2im(g, shape[-2:], [2, 2], [1, 1], [0, 0], [1, 1]),
    _image,
    keeps="shapes",
)
control(
    "Col2im",
    lambda x: aten.col2im(x, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
    lambda g, _: aten.im2col(g, [2, 2], [1, 1], [0, 0], [2, 2]),
    lambda: (real(2, 8, 4),),
    keeps="shapes",
)
control(
    "PixelShuffle",
    lambda x: torch.pixel_shuffle(x, 2),
    lambda g, _: torch.pixel_unshuffle(g, 2),
    lambda: (real(2, 4, 3, 2),),
    keeps="shapes",
)

# ---- losses ----

control(
    "NllLoss",
    lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100),
    lambda g, x, t, _, total: (aten.nll_loss_backward(g, x, t, None, 1, -100, total), None),
    lambda: (real(6, 5), whole(6, high=5)),
    keeps="both",
    gives=1,
    op=F.nll_loss,
)
control(
    "MseLoss",
    aten.mse_loss,
    lambda g, x, t: (aten.mse_loss_backward(g, x, t, 1), aten.mse_loss_backward(g, t, x, 1)),
    _two,
)
control(
    "SmoothL1Loss",
    lambda x, t: aten.smooth_l1_loss(x, t, 0, 0.5),
    lambda g, x, t: (
        aten.smooth_l1_loss_backward(g, x, t, 0, 0.5),
        aten.smooth_l1_loss_backward(g, t, x, 0, 0.5),
    ),
    _two,
)
control(
    "HuberLoss",
    lambda x, t: aten.huber_loss(x, t, 2, 0.5),
    lambda g, x, t: (
        aten.huber_loss_backward(g, x, t, 2, 0.5),
        aten.huber_loss_backward(g, t, x, 2, 0.5),
    ),
    _two,
)
control(
    "BinaryCrossEntropy",
    lambda x, t: aten.binary_cross_entropy(x, t, None, 0),
    lambda g, x, t: (aten.binary_cross_entropy_backward(g, x, t, None, 0), None),
    lambda: ((positive(4, 5).detach() / 2).requires_grad_(), positive(4, 5, seed=1).detach() / 2),
)
control(
    "SoftMarginLoss",
    lambda x, t: aten.soft_margin_loss(x, t, 1),
    lambda g, x, t: (aten.soft_margin_loss_backward(g, x, t, 1), None),
    lambda: (real(4, 5), 2 * coins(4, 5).double() - 1),
)

# ---- indexing ----

control(
    "Embedding",
    aten.embedding,
    lambda g, table, rows: (aten.embedding_dense_backward(g, rows, len(table), -1, False), None),
    lambda: (real(6, 3), whole(2, 5, high=6)),
)
control(
    "IndexSelect",
    lambda x, rows: x.index_select(0, rows),
    lambda g, x, rows: (aten.index_select_backward(g, x.shape, 0, rows), None),
    lambda: (real(4, 5), whole(7, high=4)),
)
control(
    "Gather",
    lambda x, index: x.gather(1, index),
    lambda g, x, index: (aten.gather_backward(g, x, 1, index, False), None),
    lambda: (real(4, 5), whole(4, 7, high=5)),
)
control(
    "ScatterAdd",
    lambda x, index, source: x.scatter_add(1, index, source),
    lambda g, _, index, __: (g, None, g.gather(1, index)),
    lambda: (real(4, 5), whole(4, 7, high=5), real(4, 7, seed=1)),
)
control(
    "IndexAdd",
    lambda x, rows, source: x.index_add(0, rows, source),
    lambda g, _, rows, __: (g, None, g.index_select(0, rows)),
    lambda: (real(4, 5), whole(7, high=4), real(7, 5, seed=1)),
)
control(
    "MaskedSelect",
    torch.masked_select,
    lambda g, x, mask: (aten.masked_select_backward(g, x, mask), None),
    lambda: (real(4, 5), coins(4, 5)),
)
control(
    "Unfold",
    lambda x: x.unfold(1, 3, 2).clone(),
    lambda g, shape: aten.unfold_backward(g, shape, 1, 3, 2),
    lambda: (real(3, 9),),
    keeps="shapes",
)
control(
    "Select",
    lambda x: x.select(1, 2).clone(),
    lambda g, shape: aten.select_backward(g, shape, 1, 2),
    _x,
    keeps="shapes",
)
control(
    "Slice",
    lambda x: x[:, 1:4:2].clone(),
    lambda g, shape: aten.slice_backward(g, shape, 1, 1, 4, 2),
    _x,
    keeps="shapes",
)
control(
    "Diagonal",
    lambda x: x.diagonal(1).clone(),
    lambda g, shape: aten.diagonal_backward(g, shape, 1, 0, 1),
    _x,
    keeps="shapes",
)
control("Tril", torch.tril, lambda g, _: g.tril(), lambda: (real(4, 4),), keeps="shapes")
control("Flip", lambda x: x.flip(1), lambda g, _: g.flip(1), _x, keeps="shapes")
control("Roll", lambda x: x.roll(2, 1), lambda g, _: g.roll(-2, 1), _x, keeps="shapes")
control("Trace", torch.trace, aten.trace_backward, lambda: (real(4, 4),), keeps="shapes")
control(
    "Repeat",
    lambda x: x.repeat(2, 1),
    lambda g, shape: g.unflatten(0, (2, -1)).sum(0).reshape(shape),
    _x,
    keeps="shapes",
)

# ---- the chosen ones: max, sort, median and their kin ----


def _selected(g: Tensor, x: Tensor, places: Tensor) -> Tensor:
    return aten.value_selecting_reduction_backward(g, -1, places, x.shape, True)


control(
    "MaxDim",
    lambda x: torch.max(x, -1, keepdim=True),
    lambda g, _, x, _y, i: _selected(g, x, i),
    _x,
    keeps="both",
)
control(
    "MedianDim",
    lambda x: torch.median(x, -1, keepdim=True),
    lambda g, _, x, _y, i: _selected(g, x, i),
    _x,
    keeps="both",
)
control(
    "Kthvalue",
    lambda x: torch.kthvalue(x, 2, -1, keepdim=True),
    lambda g, _, x, _y, i: _selected(g, x, i),
    _x,
    keeps="both",
)
control(
    "TopK",
    lambda x: torch.topk(x, 2),
    lambda g, _, x, _y, i: _selected(g, x, i),
    _x,
    keeps="both",
)
control(
    "Sort",
    lambda x: torch.sort(x, dim=-1, stable=True),
    lambda g, _, x, _y, i: _selected(g, x, i),
    _x,
    keeps="both",
)

# ---- reductions and scans ----

control(
    "Sum", lambda x: x.sum(1), lambda g, shape: g.unsqueeze(1).expand(shape), _x, keeps="shapes"
)
control(
    "Cumsum",
    lambda x: x.cumsum(1),
    lambda g, _: g.flip(1).cumsum(1).flip(1),
    _x,
    keeps="shapes",
)
control(
    "Cumprod",
    lambda x: x.cumprod(1),
    lambda g, x, y: aten.cumprod_backward(g, x, 1, y),
    _x,
    keeps="both",
)
control(
    "Logsumexp",
    lambda x: torch.logsumexp(x, 1),
    lambda g, x, y: g.unsqueeze(1) * (x - y.unsqueeze(1)).exp(),
    _x,
    keeps="both",
)
control(
    "Var",
    lambda x: x.var(1),
    lambda g, x: _twice_over(x) * g.unsqueeze(1) * (x - x.mean(1, keepdim=True)),
    _x,
)


def _twice_over(x: Tensor) -> float:
    # As in C++, a single value has an infinite factor, and its gradient is nan.
    return 2 / (x.shape[1] - 1) if x.shape[1] != 1 else math.inf


control(
    "Std",
    lambda x: x.std(1),
    lambda g, x, y: (
        (g / (y * (x.shape[1] - 1))).masked_fill(y == 0, 0).unsqueeze(1)
        * (x - x.mean(1, keepdim=True))
    ),
    _x,
    keeps="both",
)
control(
    "Norm",
    lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
    lambda g, x, y: x * (g / y).masked_fill(y == 0, 0),
    _x,
    keeps="both",
)
control(
    "Cdist",
    lambda a, b: aten._cdist_forward(a, b, 2.0, 2),
    lambda g, a, b, y: (
        aten._cdist_backward(g.contiguous(), a, b, 2.0, y),
        aten._cdist_backward(g.mT.contiguous(), b, a, 2.0, y.mT.contiguous()),
    ),
    lambda: (real(3, 4), real(5, 4, seed=1)),
    keeps="both",
    op=lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist"),
)
control(
    "Pdist",
    lambda x: aten._pdist_forward(_points(x), 2.0),
    lambda g, x, y: aten._pdist_backward(g, _points(x), 2.0, y),
    _x,
    keeps="both",
    op=F.pdist,
)


def _points(x: Tensor) -> Tensor:
    # The kernel divides by the number of columns.
    if x.dim() != 2 or x.shape[0] < 2 or not x.shape[1]:
        raise ValueError(f"takes two or more points that have coordinates, got {x.shape}")
    return x.contiguous()


# ---- products and linear algebra ----

control(
    "Mm",
    torch.mm,
    lambda g, a, b: (g.mm(b.t()), a.t().mm(g)),
    lambda: (real(3, 4), real(4, 5, seed=1)),
)
control(
    "Bmm",
    torch.bmm,
    lambda g, a, b: (g.bmm(b.mT), a.mT.bmm(g)),
    lambda: (real(2, 3, 4), real(2, 4, 5, seed=1)),
)
control(
    "Addmm",
    torch.addmm,
    lambda g, _, a, b: (g, g.mm(b.t()), a.t().mm(g)),
    lambda: (real(3, 5), real(3, 4, seed=1), real(4, 5, seed=2)),
)
control(
    "Mv",
    torch.mv,
    lambda g, a, v: (torch.outer(g, v), a.t().mv(g)),
    lambda: (real(3, 4), real(4, seed=1)),
)
control("Dot", torch.dot, lambda g, a, b: (g * b, g * a), lambda: (real(5), real(5, seed=1)))
control(
    "Inverse",
    torch.linalg.inv,
    lambda g, y: -y.mH @ (g @ y.mH),
    lambda: (_regular(3),),
    keeps="outputs",
)
control(
    "Det",
    torch.linalg.det,
    lambda g, a, y: (g * y) * torch.linalg.inv(a).mT,
    lambda: (_regular(3),),
    keeps="both",
)
control(
    "Solve",
    torch.linalg.solve,
    lambda g, a, _, x: (
        -torch.linalg.solve(a.mT, g) @ x.mT,
        torch.linalg.solve(a.mT, g),
    ),
    lambda: (_regular(3), real(3, 2, seed=1)),
    keeps="both",
)
control(
    "Kron",
    lambda a, b: torch.kron(*_matrices(a, b)),
    lambda g, a, b: (
        torch.einsum("ikjl,kl->ij", _blocks(g, a, b), b),
        torch.einsum("ikjl,ij->kl", _blocks(g, a, b), a),
    ),
    lambda: (real(2, 3), real(3, 2, seed=1)),
)


def _matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.dim() != 2 or b.dim() != 2:
        raise ValueError(f"takes two matrices, got {a.shape} and {b.shape}")
    return a, b


def _blocks(g: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return g.reshape(a.shape[0], b.shape[0], a.shape[1], b.shape[1])


def _regular(size: int) -> Tensor:
    noise = real(size, size).detach() * 0.3
    return (2 * torch.eye(size, dtype=torch.float64) + noise).requires_grad_()


# ---- complex ----

control(
    "FftC2c",
    lambda z: aten._fft_c2c(z, [z.dim() - 1], 0, True),
    lambda g, _: aten._fft_c2c(g, [g.dim() - 1], 0, False),
    lambda: (imaginary(3, 6),),
    keeps="shapes",
    op=torch.fft.fft,
)
control("ComplexAbs", torch.abs, lambda g, z: g * z.sgn(), lambda: (imaginary(4, 5),))
control(
    "ComplexMul",
    torch.mul,
    lambda g, a, b: (g * b.conj(), g * a.conj()),
    lambda: (imaginary(4, 5), imaginary(4, 5, seed=1)),
)
