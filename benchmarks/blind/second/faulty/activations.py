"""Activation functions."""
import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class Swish(Function):
    """x * sigmoid(beta * x) with learnable scalar beta."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, g):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        gx = g * (s + x * s * (1 - s))
        gb = (g * x * x * s * (1 - s)).sum()
        return gx, gb


class GeluTanh(Function):
    """Tanh approximation of GELU."""

    @staticmethod
    def forward(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = inputs[0]
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        k = math.sqrt(2 / math.pi)
        t = torch.tanh(k * (x + 0.044715 * x ** 3))
        dt = (1 - t * t) * k * (1 + 0.044715 * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * dt)


class Mish(Function):
    """x * tanh(softplus(x)), recomputed in backward to save memory."""

    @staticmethod
    def forward(x):
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        omega = 4 * (x + 1) + 4 * e * e + e ** 3 + e * (4 * x + 6)
        delta = 2 * e + e * e + 2
        return g * e * omega / (delta * delta)


class ChannelPReLU(Function):
    """PReLU with one slope per channel, input (N, C)."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        gx = gs = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(x > 0, g, slope * g)
            if ctx.needs_input_grad[1]:
                gs = torch.where(x > 0, torch.zeros_like(x), x * g).sum(0)
        return gx, gs


class SwiGLU(Function):
    """silu(gate) * up for a packed projection whose last axis is [gate, up]."""

    @staticmethod
    def forward(x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = inputs[0]
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        s = torch.sigmoid(gate)
        d_gate = g * up * s * (1 + gate * (1 - s))
        d_up = g * gate * s
        return torch.cat((d_up, d_gate), dim=-1)


class HardSwish(Function):
    """x * relu6(x + 3) / 6."""

    @staticmethod
    def forward(x):
        return x * F.relu6(x + 3) / 6

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = inputs[0]
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = torch.where(x < 3, x / 3 + 0.5, torch.ones_like(x))
        return g * slope.masked_fill(x <= -3, 1.0)


class Snake(Function):
    """x + sin(alpha x)^2 / alpha with one alpha per channel."""

    @staticmethod
    def forward(x, alpha):
        return x + torch.sin(alpha * x) ** 2 / alpha

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, alpha = inputs
        ctx.save_for_backward(x, alpha)

    @staticmethod
    def backward(ctx, g):
        x, alpha = ctx.saved_tensors
        s2 = torch.sin(2 * alpha * x)
        ga = (g * x * s2 / alpha).sum(0)
        return g * (1 + s2), ga


class Maxout(Function):
    """Maximum over the last axis (pieces)."""

    @staticmethod
    def forward(ctx, x):
        out = x.amax(-1)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return (x == out.unsqueeze(-1)).to(g.dtype) * g.unsqueeze(-1)


class InplaceLeakyReLU(Function):
    """Leaky ReLU that overwrites its input; the sign is recovered from the output."""

    @staticmethod
    def forward(ctx, x, slope):
        x.mul_(torch.where(x > 0, 1.0, slope).to(x.dtype))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, g, g * ctx.slope), None


class Softplus(Function):
    """log(1 + exp(beta x)) / beta."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.beta = beta
        ctx.save_for_backward(torch.sigmoid(beta * x))
        return F.softplus(x, beta)

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * s, None


def leaky(x, slope):
    return InplaceLeakyReLU.apply(x * 1.0, slope)


def slope_only():
    x = rnd(4, 3, seed=4)
    return (ok(ChannelPReLU, (x, rnd(3, seed=5)))
            and wrong(ChannelPReLU, (x.detach(), rnd(3, seed=5))))


CASES = [
    case("activations_swish_beta", Swish, lambda: (rnd(4, 3, seed=1), ten(1.6)),
         "The derivative of the sigmoid with respect to x lacks the factor beta."),
    case("activations_gelu_tanh_cubic", GeluTanh, lambda: (rnd(3, 4, seed=2, dtype=F32, scale=1.5),),
         "The derivative of the cubic term lacks its factor three."),
    case("activations_mish_overflow", Mish, lambda: (rnd(3, 4, seed=3, dtype=F32),),
         "exp(x) cubed overflows in backward and gives NaN for moderately large inputs.", visible=False,
         evidence=lambda: ok(Mish, (rnd(3, 4, seed=3, dtype=F32),)) and nonfinite(Mish, (ten([1.0, 40.0], F32),)),
         where="float32 inputs above about 30"),
    case("activations_prelu_slope_only", ChannelPReLU, lambda: (rnd(4, 3, seed=4), rnd(3, seed=5)),
         "The slope receives no gradient where the input needs none, the test for it being nested in that for the input.",
         visible=False, evidence=slope_only, where="only the slope requires grad"),
    case("activations_swiglu_order", SwiGLU, lambda: (rnd(3, 6, seed=6),),
         "The two halves of the gradient are concatenated in the opposite order to the packed input."),
    case("activations_hard_swish_floor", HardSwish, lambda: (ten([-4.0, -1.5, 0.3, 2.0, 3.7, -3.2], F32),),
         "Inputs below -3, whose output is zero, get a slope of one in place of zero."),
    case("activations_snake_alpha", Snake, lambda: (rnd(4, 2, seed=7), ten([0.7, 1.4])),
         "The gradient of alpha lacks the term from the division by alpha."),
    case("activations_maxout_ties", Maxout, lambda: (rnd(3, 4, seed=8),),
         "Where several pieces tie for the maximum, each receives the whole gradient.", visible=False,
         twin=lambda x: x.amax(-1), elsewhere=lambda: (ten([[1., 2., 2.], [3., 3., 3.]]),), where="tied maxima"),
    case("activations_inplace_leaky_negative", leaky, lambda: (rnd(3, 4, seed=9), 0.1),
         "The sign of the input is read off the output, which a negative slope makes positive.", visible=False,
         elsewhere=lambda: (rnd(3, 4, seed=9), -0.2), where="a negative slope"),
    case("activations_softplus_double_backward", Softplus, lambda: (rnd(3, 4, seed=10), 1.5),
         "The sigmoid is saved as an intermediate, through which the second derivative is silently lost.", visible=False,
         evidence=lambda: second_wrong(Softplus, (rnd(3, 4, seed=10), 1.5)), where="double backward"),
]
