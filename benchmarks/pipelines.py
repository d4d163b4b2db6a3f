"""The pipelines that benchmarks measure, each as plain ops and as nested hand-written Functions.

`PIPELINES[name].plain` and `.nested` compute the same; `make_inputs(name, elements)` gives tensors
for both, about `elements` of them in the largest activation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pullback as pb

# ---- the units: hand-written Functions as people write them ----


class Square(pb.Function):
    """`x * x`; saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * 2 * x


class Sin(pb.Function):
    """`sin(x)`; saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * x.cos()


class Exp(pb.Function):
    """`exp(x)`; saves its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return cotangent * y


class Tanh(pb.Function):
    """`tanh(x)`; saves its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return cotangent * (1 - y * y)


class Mul(pb.Function):
    """`a * b`; saves both."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        a, b = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        return cotangent * b if needs_a else None, cotangent * a if needs_b else None


class Add(pb.Function):
    """`a + b`; saves nothing."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent, cotangent


class Axpy(pb.Function):
    """`y + factor * x` with a plain number; saves no tensor."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return y + factor * x

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent, ctx.factor * cotangent, None


class Linear(pb.Function):
    """`x @ weight.T + bias`; saves input and weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        rows = cotangent.flatten(0, -2)
        return (
            cotangent @ weight if needs[0] else None,
            rows.t() @ x.flatten(0, -2) if needs[1] else None,
            rows.sum(0) if ctx.has_bias and needs[2] else None,
        )


class Gelu(pb.Function):
    """The exact gelu; saves its input and computes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x * 0.7071067811865476))
        pdf = torch.exp(-0.5 * x * x) * 0.3989422804014327
        return cotangent * (cdf + x * pdf)


class Silu(pb.Function):
    """`x * sigmoid(x)`; saves its input and an intermediate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        x, s = ctx.saved_tensors
        return cotangent * (s * (1 + x * (1 - s)))


class LayerNorm(pb.Function):
    """Layer norm over the last dimension; saves two intermediates and the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        normed = centred * rstd
        ctx.save_for_backward(normed, rstd, weight)
        return normed * weight + bias

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        normed, rstd, weight = ctx.saved_tensors
        scaled = cotangent * weight
        mean = scaled.mean(-1, keepdim=True)
        along = (scaled * normed).mean(-1, keepdim=True)
        rows = list(range(cotangent.dim() - 1))
        of_x = rstd * (scaled - mean - normed * along)
        return of_x, (cotangent * normed).sum(rows), cotangent.sum(rows), None


class RMSNorm(pb.Function):
    """RMS norm over the last dimension; saves its inputs and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, rstd, weight)
        return x * rstd * weight

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, rstd, weight = ctx.saved_tensors
        scaled = cotangent * weight
        along = (scaled * x).mean(-1, keepdim=True)
        of_weight = (cotangent * x * rstd).sum(list(range(cotangent.dim() - 1)))
        return rstd * scaled - x * rstd.pow(3) * along, of_weight, None


class Rope(pb.Function):
    """Rotates the halves of the last dimension; saves the two tables."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return rotate(cotangent, cos, -sin), None, None


class LogSoftmax(pb.Function):
    """Log-softmax over the last dimension; saves its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        shifted = x - x.amax(-1, keepdim=True)
        y = shifted - shifted.exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return cotangent - y.exp() * cotangent.sum(-1, keepdim=True)


class MeanNegative(pb.Function):
    """Minus the mean of what `target` picks from each row; saves `target`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(target)
        ctx.shape = x.shape
        return -x.gather(1, target[:, None]).mean()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (target,) = ctx.saved_tensors
        rows = ctx.shape[0]
        zeros = cotangent.new_zeros(ctx.shape)
        return zeros.scatter(1, target[:, None], (-cotangent / rows).expand(rows, 1)), None


class PendulumForce(pb.Function):
    """`-k * sin(q)`; saves both."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        return -k * q.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        q, k = ctx.saved_tensors
        needs_k = ctx.needs_input_grad[1]
        of_k = (-cotangent * q.sin()).sum_to_size(k.shape) if needs_k else None
        return -cotangent * k * q.cos(), of_k


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs (first half, second half) of the last dimension, turned by an angle each."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


# ---- the pipelines ----


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One function, written with torch's ops and written with the units above."""

    plain: Callable[..., Any]
    nested: Callable[..., Any]


def sqsin(x: Tensor, y: Tensor) -> Tensor:
    """A square times a sine."""
    return x * x * y.sin()


def sqsin_nested(x: Tensor, y: Tensor) -> Tensor:
    """A square times a sine, of three Functions."""
    return Mul.apply(Square.apply(x), Sin.apply(y))


def swiglu_core(gate: Tensor, up: Tensor) -> Tensor:
    """The pointwise part of a SwiGLU layer."""
    return F.silu(gate) * up


def swiglu_core_nested(gate: Tensor, up: Tensor) -> Tensor:
    """The pointwise part of a SwiGLU layer, of two Functions."""
    return Mul.apply(Silu.apply(gate), up)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A SwiGLU layer with its three linear maps."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def swiglu_nested(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A SwiGLU layer, of five Functions."""
    return Linear.apply(Mul.apply(Silu.apply(Linear.apply(x, gate)), Linear.apply(x, up)), down)


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Two linear maps with a gelu between."""
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def mlp_nested(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Two linear maps with a gelu between, of three Functions."""
    return Linear.apply(Gelu.apply(Linear.apply(x, w1, b1)), w2, b2)


def layernorm_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm, gelu, and the input added back."""
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)) + x


def layernorm_gelu_nested(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm, gelu, and the input added back, of three Functions."""
    return Add.apply(Gelu.apply(LayerNorm.apply(x, weight, bias, 1e-5)), x)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy with class indices."""
    return F.cross_entropy(x, target)


def cross_entropy_nested(x: Tensor, target: Tensor) -> Tensor:
    """Softmax cross-entropy, of two Functions."""
    return MeanNegative.apply(LogSoftmax.apply(x), target)


def rmsnorm_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMS norm, then rotary position embedding."""
    return rotate(F.rms_norm(x, x.shape[-1:], weight, 1e-6), cos, sin)


def rmsnorm_rope_nested(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMS norm, then rotary position embedding, of two Functions."""
    return Rope.apply(RMSNorm.apply(x, weight, 1e-6), cos, sin)


STEPS, STEP = 10, 0.05


def leapfrog(q: Tensor, p: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Ten leapfrog steps of a pendulum."""
    for _ in range(STEPS):
        p = p + 0.5 * STEP * (-k * q.sin())
        q = q + STEP * p
        p = p + 0.5 * STEP * (-k * q.sin())
    return q, p


def leapfrog_nested(q: Tensor, p: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Ten leapfrog steps of a pendulum, of fifty Functions."""
    for _ in range(STEPS):
        p = Axpy.apply(p, PendulumForce.apply(q, k), 0.5 * STEP)
        q = Axpy.apply(q, p, STEP)
        p = Axpy.apply(p, PendulumForce.apply(q, k), 0.5 * STEP)
    return q, p


def chain(x: Tensor, y: Tensor) -> Tensor:
    """Sine, exponential, tanh, and a product."""
    return x.sin().exp().tanh() * y


def chain_nested(x: Tensor, y: Tensor) -> Tensor:
    """Sine, exponential, tanh, and a product, of four Functions."""
    return Mul.apply(Tanh.apply(Exp.apply(Sin.apply(x))), y)


PIPELINES = {
    "sqsin": Pipeline(sqsin, sqsin_nested),
    "swiglu_core": Pipeline(swiglu_core, swiglu_core_nested),
    "swiglu": Pipeline(swiglu, swiglu_nested),
    "mlp": Pipeline(mlp, mlp_nested),
    "layernorm_gelu": Pipeline(layernorm_gelu, layernorm_gelu_nested),
    "cross_entropy": Pipeline(cross_entropy, cross_entropy_nested),
    "rmsnorm_rope": Pipeline(rmsnorm_rope, rmsnorm_rope_nested),
    "leapfrog": Pipeline(leapfrog, leapfrog_nested),
    "chain": Pipeline(chain, chain_nested),
}

# ---- their inputs ----


def make_inputs(name: str, elements: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Inputs of the pipeline `name`; the same ones for the same arguments."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0, grad: bool = True) -> Tensor:
        values = torch.randn(*shape, dtype=dtype, generator=generator) * scale
        return values.requires_grad_(grad)

    if name in {"sqsin", "swiglu_core", "chain"}:
        return draw(elements), draw(elements)
    if name == "mlp":
        return (
            draw(max(1, elements // 256), 64),
            draw(256, 64, scale=0.125),
            draw(256),
            draw(64, 256, scale=0.06),
            draw(64),
        )
    if name == "swiglu":
        return (
            draw(max(1, elements // 128), 64),
            draw(128, 64, scale=0.125),
            draw(128, 64, scale=0.125),
            draw(64, 128, scale=0.1),
        )
    if name == "layernorm_gelu":
        width = min(256, elements)
        return draw(max(1, elements // width), width), draw(width), draw(width)
    if name == "cross_entropy":
        classes = 128 if elements >= 128 else 4
        rows = max(1, elements // classes)
        return draw(rows, classes), torch.randint(classes, (rows,), generator=generator)
    if name == "rmsnorm_rope":
        width = 64 if elements >= 64 else 4
        rows = max(1, elements // width)
        angle = draw(rows, width // 2, grad=False)
        return draw(rows, width), draw(width), angle.cos(), angle.sin()
    if name == "leapfrog":
        k = torch.tensor(1.3, dtype=dtype, requires_grad=True)
        return draw(elements), draw(elements), k
    raise KeyError(f"no pipeline {name!r}; there are {', '.join(PIPELINES)}")
