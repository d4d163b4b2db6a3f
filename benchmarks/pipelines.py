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


class Scale(pb.Function):
    """`x * weight` with one weight for each place of the last dimension; saves both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return cotangent * weight, (cotangent * x).sum(list(range(cotangent.dim() - 1)))


class Softmax(pb.Function):
    """Softmax over the last dimension; saves its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y * (cotangent - (cotangent * y).sum(-1, keepdim=True))


class Matmul(pb.Function):
    """`a @ b` of matrices in batches; saves both."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return cotangent @ b.mT, a.mT @ cotangent


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs (first half, second half) of the last dimension, turned by an angle each."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


# ---- the pipelines ----


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One function, written with torch's ops and written with the units above.

    `by_hand` is the same as one hand-written Function, where there is one.
    """

    plain: Callable[..., Any]
    nested: Callable[..., Any]
    by_hand: Callable[..., Any] | None = None


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


def norm_block(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """Layer norm, gelu, a scale, and the input added back."""
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)) * scale + x


def norm_block_nested(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """Layer norm, gelu, a scale, and the input added back, of four Functions."""
    return Add.apply(Scale.apply(Gelu.apply(LayerNorm.apply(x, weight, bias, 1e-5)), scale), x)


def runge_kutta(q: Tensor, k: Tensor) -> Tensor:
    """One step of the classical Runge-Kutta method for `q' = -k sin(q)`."""
    a = -k * q.sin()
    b = -k * (q + 0.5 * STEP * a).sin()
    c = -k * (q + 0.5 * STEP * b).sin()
    d = -k * (q + STEP * c).sin()
    return q + STEP / 6 * (a + 2 * b + 2 * c + d)


def runge_kutta_nested(q: Tensor, k: Tensor) -> Tensor:
    """One step of the classical Runge-Kutta method, of eleven Functions."""
    a = PendulumForce.apply(q, k)
    b = PendulumForce.apply(Axpy.apply(q, a, 0.5 * STEP), k)
    c = PendulumForce.apply(Axpy.apply(q, b, 0.5 * STEP), k)
    d = PendulumForce.apply(Axpy.apply(q, c, STEP), k)
    for slope, weight in ((a, 1), (b, 2), (c, 2), (d, 1)):
        q = Axpy.apply(q, slope, STEP / 6 * weight)
    return q


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, written out."""
    return torch.softmax(q @ k.mT * 0.125, -1) @ v


def attention_nested(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, of three Functions."""
    return Matmul.apply(Softmax.apply(Matmul.apply(q, k.mT * 0.125)), v)


def chain12(x: Tensor, y: Tensor) -> Tensor:
    """Three rounds of sine, exponential, tanh, and a product."""
    for _ in range(3):
        x = x.sin().exp().tanh() * y
    return x


def chain12_nested(x: Tensor, y: Tensor) -> Tensor:
    """Three rounds of sine, exponential, tanh, and a product, of twelve Functions."""
    for _ in range(3):
        x = Mul.apply(Tanh.apply(Exp.apply(Sin.apply(x))), y)
    return x


# ---- written as one Function by hand, as an expert would ----


class SquareSin(torch.autograd.Function):
    """`x * x * sin(y)` in one Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * x * y.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, y = ctx.saved_tensors
        along = cotangent * x
        return 2 * along * y.sin(), along * x * y.cos()


class SwigluCore(torch.autograd.Function):
    """`silu(gate) * up` in one Function."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        s = gate.sigmoid()
        return cotangent * up * s * (1 + gate * (1 - s)), cotangent * gate * s


class SinExpTanhMul(torch.autograd.Function):
    """`tanh(exp(sin(x))) * y` in one Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        e = x.sin().exp()
        t = e.tanh()
        ctx.save_for_backward(x, y, e, t)
        return t * y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, y, e, t = ctx.saved_tensors
        return cotangent * y * (1 - t * t) * e * x.cos(), cotangent * t


class CrossEntropy(torch.autograd.Function):
    """Softmax cross-entropy in one Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        y = x.log_softmax(-1)
        ctx.save_for_backward(y, target)
        return -y.gather(1, target[:, None]).mean()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        y, target = ctx.saved_tensors
        p = y.exp()
        p.scatter_add_(1, target[:, None], p.new_full((len(p), 1), -1.0))
        return p * (cotangent / len(p)), None


PIPELINES = {
    "sqsin": Pipeline(sqsin, sqsin_nested, SquareSin.apply),
    "swiglu_core": Pipeline(swiglu_core, swiglu_core_nested, SwigluCore.apply),
    "swiglu": Pipeline(swiglu, swiglu_nested),
    "mlp": Pipeline(mlp, mlp_nested),
    "layernorm_gelu": Pipeline(layernorm_gelu, layernorm_gelu_nested),
    "cross_entropy": Pipeline(cross_entropy, cross_entropy_nested, CrossEntropy.apply),
    "rmsnorm_rope": Pipeline(rmsnorm_rope, rmsnorm_rope_nested),
    "leapfrog": Pipeline(leapfrog, leapfrog_nested),
    "chain": Pipeline(chain, chain_nested, SinExpTanhMul.apply),
    "norm_block": Pipeline(norm_block, norm_block_nested),
    "runge_kutta": Pipeline(runge_kutta, runge_kutta_nested),
    "attention": Pipeline(attention, attention_nested),
    "chain12": Pipeline(chain12, chain12_nested),
}

# ---- their inputs ----


def make_inputs(
    name: str, elements: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[Tensor, ...]:
    """Inputs of the pipeline `name`; the same ones for the same arguments."""
    made = _inputs(name, elements, dtype)
    return tuple(x.detach().to(device).requires_grad_(x.requires_grad) for x in made)


def _inputs(name: str, elements: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0, grad: bool = True) -> Tensor:
        values = torch.randn(*shape, dtype=dtype, generator=generator) * scale
        return values.requires_grad_(grad)

    if name in {"sqsin", "swiglu_core", "chain", "chain12"}:
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
    if name == "norm_block":
        width = min(256, elements)
        return draw(max(1, elements // width), width), draw(width), draw(width), draw(width)
    if name == "attention":
        width, rows = min(64, elements), max(1, min(128, elements // 64))
        heads = max(1, elements // (width * rows))
        return draw(heads, rows, width), draw(heads, rows, width), draw(heads, rows, width)
    if name == "runge_kutta":
        return draw(elements), torch.tensor(1.3, dtype=dtype, requires_grad=True)
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
