"""Activations, gated units and in-place variants."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, real_floating, same_shape


class MemoryEfficientSwish(Function):
    """x * sigmoid(x) that keeps x only (EfficientNet)."""

    @staticmethod
    def forward(ctx, x):
        real_floating("MemoryEfficientSwish", x)
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_out * (s * (1 + x * (1 - s)))


class MishFn(Function):
    """x * tanh(softplus(x)), with jvp and a hand-written vmap rule."""

    @staticmethod
    def forward(x):
        real_floating("MishFn", x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def slope(x):
        t = torch.tanh(F.softplus(x))
        return t + x * torch.sigmoid(x) * (1 - t * t)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * MishFn.slope(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * MishFn.slope(*ctx.saved_tensors)

    @staticmethod
    def vmap(info, in_dims, x):
        return MishFn.apply(x), in_dims[0]


class SnakeBeta(Function):
    """x + sin(alpha x)^2 / beta per channel of (N, C, T), alpha and beta given as logarithms when `log_scale`."""

    @staticmethod
    def forward(ctx, x, alpha, beta, log_scale=True):
        real_floating("SnakeBeta", x, alpha, beta)
        if x.dim() != 3 or alpha.shape != x.shape[1:2] or beta.shape != alpha.shape:
            raise ValueError("SnakeBeta: x (N, C, T), alpha (C,), beta (C,) expected")
        if log_scale and bool(((alpha.abs() > 10) | (beta.abs() > 10)).any()):
            raise ValueError("SnakeBeta: logarithms within -10 .. 10 expected")
        if not log_scale and bool((beta <= 0).any()):
            raise ValueError("SnakeBeta: beta must be positive when it is no logarithm")
        ctx.save_for_backward(x, alpha, beta)
        ctx.log_scale = log_scale
        a, b = ((p.exp() if log_scale else p)[:, None] for p in (alpha, beta))
        return x + torch.sin(a * x).square() / b

    @staticmethod
    def backward(ctx, grad_out):
        x, alpha, beta = ctx.saved_tensors
        a, b = ((p.exp() if ctx.log_scale else p)[:, None] for p in (alpha, beta))
        gx = ga = gb = None
        wave = torch.sin(2 * a * x)
        if ctx.needs_input_grad[0]:
            gx = grad_out * (1 + a / b * wave)
        if ctx.needs_input_grad[1]:
            ga = grad_out * x * wave / b
            ga = (ga * a if ctx.log_scale else ga).sum((0, 2))
        if ctx.needs_input_grad[2]:
            gb = grad_out * torch.sin(a * x).square() / b
            gb = -(gb if ctx.log_scale else gb / b).sum((0, 2))
        return gx, ga, gb, None


class HardSwishFn(Function):
    """x * relu6(x + 3) / 6; at the two kinks the slope is that of the flat side and of the line, as PyTorch has it."""

    @staticmethod
    def forward(ctx, x):
        real_floating("HardSwishFn", x)
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        middle = grad_out * (x / 3 + 0.5)
        return torch.where(x <= -3, torch.zeros_like(grad_out), torch.where(x < 3, middle, grad_out))


class InplaceLeakyReLU(Function):
    """Leaky ReLU in place (marked dirty); the slope is positive, so the sign of the output tells the branch."""

    @staticmethod
    def forward(ctx, x, slope=0.01):
        real_floating("InplaceLeakyReLU", x)
        if slope <= 0:
            raise ValueError("InplaceLeakyReLU: slope must be positive")
        F.leaky_relu_(x, slope)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        return torch.where(out > 0, grad_out, grad_out * ctx.slope), None


class SquaredReLUInplace(Function):
    """relu(x)^2 written over x; backward takes the root of the output, so first order only."""

    @staticmethod
    def forward(ctx, x):
        real_floating("SquaredReLUInplace", x)
        x.clamp_(min=0).square_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        return 2 * grad_out * out.sqrt()


class SwiGLUPacked(Function):
    """silu(a) * b for a tensor whose last axis packs [a, b]; an odd axis is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(packed):
        real_floating("SwiGLUPacked", packed)
        if packed.dim() == 0 or packed.shape[-1] % 2:
            raise ValueError("SwiGLUPacked: an even last axis expected")
        a, b = packed.chunk(2, -1)
        return F.silu(a) * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors[0].chunk(2, -1)
        s = torch.sigmoid(a)
        return torch.cat((grad_out * b * s * (1 + a * (1 - s)), grad_out * a * s), -1)


class Maxout(Function):
    """Largest of the k pieces along a split last axis; ties share the gradient evenly, as amax does."""

    @staticmethod
    def forward(ctx, x, pieces):
        real_floating("Maxout", x)
        if pieces < 1 or x.dim() == 0 or x.shape[-1] % pieces:
            raise ValueError("Maxout: the last axis must be a multiple of pieces")
        ctx.save_for_backward(x)
        ctx.pieces = pieces
        return x.unflatten(-1, (-1, pieces)).amax(-1) if x.shape[-1] else x.clone()

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        if not x.shape[-1]:
            return torch.zeros_like(x), None
        parts = x.unflatten(-1, (-1, ctx.pieces))
        top = (parts == parts.amax(-1, keepdim=True)).to(grad_out.dtype)
        return (grad_out[..., None] * top / top.sum(-1, keepdim=True)).flatten(-2), None


class ChannelPReLU(Function):
    """PReLU on axis 1 with one slope for all or one per channel."""

    @staticmethod
    def forward(ctx, x, slope):
        real_floating("ChannelPReLU", x, slope)
        if x.dim() < 2 or slope.dim() != 1 or slope.numel() not in (1, x.shape[1]):
            raise ValueError("ChannelPReLU: x (N, C, *) and one slope or C slopes expected")
        ctx.save_for_backward(x, slope)
        return torch.where(x > 0, x, x * ChannelPReLU.spread(slope, x))

    @staticmethod
    def spread(slope, x):
        return slope.reshape(1, -1, *[1] * (x.dim() - 2))

    @staticmethod
    def backward(ctx, grad_out):
        x, slope = ctx.saved_tensors
        gx = gs = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(x > 0, grad_out, grad_out * ChannelPReLU.spread(slope, x))
        if ctx.needs_input_grad[1]:
            gs = torch.where(x > 0, torch.zeros_like(x), grad_out * x)
            gs = gs.sum_to_size(ChannelPReLU.spread(slope, x).shape).reshape(slope.shape)
        return gx, gs


class GeluTanh(Function):
    """Tanh approximation of GELU, both modes of differentiation, generated vmap rule."""

    generate_vmap_rule = True
    scale, cubic = math.sqrt(2 / math.pi), 0.044715

    @staticmethod
    def forward(x):
        real_floating("GeluTanh", x)
        return 0.5 * x * (1 + torch.tanh(GeluTanh.scale * (x + GeluTanh.cubic * x ** 3)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def slope(x):
        t = torch.tanh(GeluTanh.scale * (x + GeluTanh.cubic * x ** 3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GeluTanh.scale * (1 + 3 * GeluTanh.cubic * x * x)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * GeluTanh.slope(ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * GeluTanh.slope(ctx.saved_tensors[0])


def kinked(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def leaky_copy(x, slope=0.01):
    return InplaceLeakyReLU.apply(x.clone(), slope)


CASES = [
    case("memory_efficient_swish", MemoryEfficientSwish, lambda: (rand(3, 4, dtype=torch.float32),), "Keeps the input only.", more=[lambda: (rand(),), lambda: (rand(0),)]),
    case("mish_fn", MishFn, lambda: (rand(2, 5, scale=2),), "jvp and vmap staticmethods.", jvp=True, vmap=True, more=[lambda: (rand(0, 3),)]),
    case("snake_beta", SnakeBeta, lambda: (rand(2, 3, 4), rand(3, seed=1), rand(3, seed=2)), "Scales given as logarithms by default, positive otherwise.",
         more=[lambda: (rand(2, 3, 2), uniform(3), uniform(3, seed=2, low=0.5), False), lambda: (rand(0, 2, 2), rand(2), rand(2))], loose16=True,
         refuses=[lambda: (rand(1, 1, 1), rand(1), torch.zeros(1, dtype=torch.float64), False)]),
    case("hard_swish_fn", HardSwishFn, lambda: (rand(3, 5, scale=3),), "Kinks at -3 and 3 follow PyTorch's hardswish."),
    case("inplace_leaky_relu", leaky_copy, lambda: (rand(3, 4), 0.2), "In place on a copy, marked dirty; saves its output.", more=[lambda: (rand(0),)]),
    case("squared_relu_inplace", SquaredReLUInplace, lambda: (rand(3, 4).clone(),), "Overwrites its input (marked dirty), so the input must be no leaf; the one given is a clone.",
         second="refused", inplace=(0,)),
    case("swiglu_packed", SwiGLUPacked, lambda: (rand(2, 3, 6),), "Gate and value packed in an even last axis.", vmap=True, more=[lambda: (rand(2),), lambda: (rand(2, 0),)], refuses=[lambda: (rand(3),)]),
    case("maxout", Maxout, lambda: (rand(2, 6), 3), "Ties share the gradient evenly.", more=[lambda: (rand(2, 3), 1), lambda: (rand(2, 0), 2), lambda: (rand(0, 4), 2)]),
    case("channel_prelu", ChannelPReLU, lambda: (rand(2, 3, 4), uniform(3, seed=1)), "One slope or one per channel, input of any rank from 2.",
         more=[lambda: (rand(4, 3), uniform(1)), lambda: (rand(2, 1, 1, 2), uniform(1)), lambda: (rand(0, 2), uniform(2))]),
    case("gelu_tanh", GeluTanh, lambda: (rand(4, 3, scale=2),), "New-style forward with jvp and generate_vmap_rule.", jvp=True, vmap=True),
]
