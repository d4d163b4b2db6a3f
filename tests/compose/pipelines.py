"""Programs to compose: Functions as people write them, and pipelines of them with their inputs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import pullback as pb
from benchmarks.pipelines import (
    Add,
    Axpy,
    Exp,
    Gelu,
    LayerNorm,
    Linear,
    LogSoftmax,
    MeanNegative,
    Mul,
    PendulumForce,
    RMSNorm,
    Rope,
    Silu,
    Sin,
    Square,
    Tanh,
)

# ---- more units ----


class Slope(pb.Function):
    """`(1 - z * z) * 0.7` at `z = y + step * k`; `k` may be None. Saves an intermediate, too."""

    @staticmethod
    def forward(ctx, y, k, step):
        z = y if k is None else y + step * k
        ctx.save_for_backward(z * 1, y, k)
        ctx.step = None if k is None else step
        return (1 - z * z) * 0.7

    @staticmethod
    def backward(ctx, cotangent):
        z, _, _ = ctx.saved_tensors
        along = cotangent * -1.4 * z
        return along, None if ctx.step is None else ctx.step * along, None


class Mix(pb.Function):
    """One step by four slopes."""

    @staticmethod
    def forward(ctx, y, a, b, c, d, step):
        ctx.step = step
        return y + step / 6 * (a + 2 * b + 2 * c + d)

    @staticmethod
    def backward(ctx, g):
        part = ctx.step / 6 * g
        return g, part, 2 * part, 2 * part, part, None


class Scores(pb.Function):
    """`q @ k.mT * scale`."""

    @staticmethod
    def forward(ctx, q, k, scale):
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        return q @ k.mT * scale

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        return g @ k * ctx.scale, g.mT @ q * ctx.scale, None


class Softmax(pb.Function):
    """Softmax over the last dimension; saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class MatMul(pb.Function):
    """`a @ b`."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g


class Round(pb.Function):
    """Rounds, and lets gradients straight through: a surrogate."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class SinCos(pb.Function):
    """Two outputs, each of them saved."""

    @staticmethod
    def forward(ctx, x):
        s, c = x.sin(), x.cos()
        ctx.save_for_backward(s, c)
        return s, c

    @staticmethod
    def backward(ctx, of_s, of_c):
        s, c = ctx.saved_tensors
        return of_s * c - of_c * s


class Largest(pb.Function):
    """The largest two of each row, and their places: integers."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.topk(2, -1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return values, places

    @staticmethod
    def backward(ctx, g, _):
        (places,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, places, g)


class TorchSigmoid(torch.autograd.Function):
    """A Function of PyTorch's that saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class TorchSilu(torch.autograd.Function):
    """A Function of PyTorch's that saves an intermediate: its second derivative is wrong."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s))


# ---- pipelines ----


def square_sin(x, y):
    return Mul.apply(Square.apply(x), Sin.apply(y))


def chain(x, y):
    return Mul.apply(Tanh.apply(Exp.apply(Sin.apply(x))), y)


def norm_gelu(x, weight, bias, scale):
    return Add.apply(Mul.apply(Gelu.apply(LayerNorm.apply(x, weight, bias, 1e-5)), scale), x)


def mlp(x, w1, b1, w2, b2):
    return Linear.apply(Gelu.apply(Linear.apply(x, w1, b1)), w2, b2)


def swiglu(x, gate, up, down):
    return Linear.apply(Mul.apply(Silu.apply(Linear.apply(x, gate)), Linear.apply(x, up)), down)


def cross_entropy(x, target):
    return MeanNegative.apply(LogSoftmax.apply(x), target)


def rms_rope(x, weight, cos, sin):
    return Rope.apply(RMSNorm.apply(x, weight, 1e-6), cos, sin)


def leapfrog(q, p, k):
    p = Axpy.apply(p, PendulumForce.apply(q, k), 0.05)
    q = Axpy.apply(q, p, 0.1)
    return q, Axpy.apply(p, PendulumForce.apply(q, k), 0.05)


def runge_kutta(y, step):
    a = Slope.apply(y, None, 0.0)
    b = Slope.apply(y, a, step / 2)
    c = Slope.apply(y, b, step / 2)
    d = Slope.apply(y, c, step)
    return Mix.apply(y, a, b, c, d, step)


def attention(q, k, v):
    return MatMul.apply(Softmax.apply(Scores.apply(q, k, 0.5)), v)


def quantized(x, y):
    return Mul.apply(Sin.apply(Square.apply(Round.apply(x))), y)


def trig(x, y):
    s, c = SinCos.apply(x)
    return Mul.apply(s, y), c, Exp.apply(s)


def largest(x, y):
    values, places = Largest.apply(x)
    return Sin.apply(values) * y.gather(-1, places), places


def optional(x, w, bias, factor):
    y = Linear.apply(x, w, bias)
    return {"y": Axpy.apply(y, Tanh.apply(y), factor), "factor": factor, "none": None}


def plain_ops(x, y):
    with torch.no_grad():
        mask = x > 0
    return F.silu(x).masked_fill(mask, 0.5) * torch.stack([y, Sin.apply(y)]).sum(0)


def foreign(x, y):
    return Mul.apply(TorchSigmoid.apply(x * 2), y).exp()


def split_whole(x):
    a, b = torch.chunk(x, 2, -1)
    return torch.cat([Tanh.apply(a), b * Square.apply(b)], -1)


@dataclass(frozen=True)
class Pipeline:
    """A program and what draws its arguments."""

    program: Callable
    draw: Callable


def _normal(*shape, grad=True):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


PIPELINES = {
    "square_sin": Pipeline(square_sin, lambda: (_normal(3, 2), _normal(3, 2))),
    "chain": Pipeline(chain, lambda: (_normal(5), _normal(5))),
    "norm_gelu": Pipeline(
        norm_gelu, lambda: (_normal(3, 4), _normal(4), _normal(4), _normal(3, 4))
    ),
    "mlp": Pipeline(
        mlp, lambda: (_normal(3, 4), _normal(5, 4), _normal(5), _normal(2, 5), _normal(2))
    ),
    "swiglu": Pipeline(
        swiglu, lambda: (_normal(3, 4), _normal(5, 4), _normal(5, 4), _normal(2, 5))
    ),
    "cross_entropy": Pipeline(cross_entropy, lambda: (_normal(3, 4), torch.tensor([1, 0, 3]))),
    "rms_rope": Pipeline(
        rms_rope,
        lambda: (_normal(3, 4), _normal(4), _normal(3, 2, grad=False), _normal(3, 2, grad=False)),
    ),
    "leapfrog": Pipeline(leapfrog, lambda: (_normal(4), _normal(4), _normal())),
    "runge_kutta": Pipeline(runge_kutta, lambda: (_normal(4), 0.1)),
    "attention": Pipeline(attention, lambda: (_normal(3, 4), _normal(5, 4), _normal(5, 2))),
    "quantized": Pipeline(quantized, lambda: (_normal(4), _normal(4))),
    "trig": Pipeline(trig, lambda: (_normal(4), _normal(4))),
    "largest": Pipeline(largest, lambda: (_normal(3, 4), _normal(3, 4))),
    "optional": Pipeline(optional, lambda: (_normal(3, 4), _normal(2, 4), None, 0.3)),
    "plain_ops": Pipeline(plain_ops, lambda: (_normal(4), _normal(4))),
    "foreign": Pipeline(foreign, lambda: (_normal(4), _normal(4))),
    "split_whole": Pipeline(split_whole, lambda: (_normal(2, 4),)),
}
