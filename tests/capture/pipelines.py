"""Pipelines of Functions with hand-written backwards, and their inputs for a batch size."""

import torch
from torch import Tensor

import pullback as pb
from tests.capture.cases import normal


class Multiply(pb.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return {"a": g * b, "b": g * a}


class Sigmoid(pb.Function):
    @staticmethod
    def forward(ctx, x):
        y = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class Gelu(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x * 0.7071067811865476))
        pdf = torch.exp(-0.5 * x * x) * 0.3989422804014327
        return g * (cdf + x * pdf)


class Linear(pb.Function):
    @staticmethod
    def forward(ctx, x, w, b=None):
        ctx.save_for_backward(x, w)
        ctx.has_bias = b is not None
        return torch.nn.functional.linear(x, w, b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gradients = {"x": g @ w, "w": g.t() @ x}
        return gradients | ({"b": g.sum(0)} if ctx.has_bias else {})


class LayerNorm(pb.Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).square().mean(-1, keepdim=True)
        scale = torch.rsqrt(var + eps)
        normed = (x - mean) * scale
        ctx.save_for_backward(normed, scale, w)
        return normed * w + b

    @staticmethod
    def backward(ctx, g):
        normed, scale, w = ctx.saved_tensors
        gw = g * w
        gx = gw - gw.mean(-1, keepdim=True) - normed * (gw * normed).mean(-1, keepdim=True)
        return gx * scale, (g * normed).sum(0), g.sum(0), None


class Rotate(pb.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1), None, None


class LogSoftmax(pb.Function):
    @staticmethod
    def forward(ctx, x):
        z = x - x.amax(-1, keepdim=True)
        y = z - z.exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - y.exp() * g.sum(-1, keepdim=True)


class Likelihood(pb.Function):
    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(target)
        ctx.shape = logits.shape
        return -logits.gather(1, target[:, None]).mean()

    @staticmethod
    def backward(ctx, g):
        (target,) = ctx.saved_tensors
        count = ctx.shape[0]
        zeros = torch.zeros(ctx.shape, dtype=g.dtype, device=g.device)
        return zeros.scatter(1, target[:, None], (-g / count).expand(count, 1)), None


class Force(pb.Function):
    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return -k * q.sin()

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        return -g * k * q.cos(), (-g * q.sin()).sum()


def product(x: Tensor, y: Tensor) -> Tensor:
    return Multiply.apply(x, Sigmoid.apply(y))


def gated(x, wg, wu, wd):
    gate = Linear.apply(x, wg)
    gate = Multiply.apply(gate, Sigmoid.apply(gate))
    return Linear.apply(Multiply.apply(gate, Linear.apply(x, wu)), wd)


def perceptron(x, w1, b1, w2, b2):
    return Linear.apply(Gelu.apply(Linear.apply(x, w1, b1)), w2, b2)


def normed(x, w, b):
    return Gelu.apply(LayerNorm.apply(x, w, b, 1e-5)) + x


def rotated(x, w, cos, sin):
    return Rotate.apply(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w, cos, sin)


def entropy(x, target):
    return Likelihood.apply(LogSoftmax.apply(x), target)


def leapfrog(q, p, k):
    for _ in range(3):
        p = p + 0.05 * Force.apply(q, k)
        q = q + 0.1 * p
        p = p + 0.05 * Force.apply(q, k)
    return q, p


def _angles(n, d):
    return normal(n, d // 2, grad=False, seed=9)


# Each with its arguments for two sizes: the batch, and the width.
PIPELINES = {
    "product": (product, lambda n, d: (normal(n, d), normal(n, d, seed=1))),
    "gated": (
        gated,
        lambda n, d: (normal(n, d), *(normal(2 * d, d, seed=s) for s in (1, 2)), normal(d, 2 * d)),
    ),
    "perceptron": (
        perceptron,
        lambda n, d: (normal(n, d), normal(3 * d, d), normal(3 * d), normal(5, 3 * d), normal(5)),
    ),
    "normed": (normed, lambda n, d: (normal(n, d), normal(d, seed=1), normal(d, seed=2))),
    "rotated": (
        rotated,
        lambda n, d: (normal(n, d), normal(d, seed=1), _angles(n, d).cos(), _angles(n, d).sin()),
    ),
    "entropy": (entropy, lambda n, d: (normal(n, d), torch.arange(n) % d)),
    "leapfrog": (leapfrog, lambda n, d: (normal(n), normal(n, seed=1), normal(seed=2))),
}
