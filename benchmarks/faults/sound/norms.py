"""Normalisation: layer, RMS, group, batch and weight norm, with float32 sums in low precision."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real


def accumulation(dtype):
    """The dtype to add in: float32 for half precisions, and the same otherwise."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def rows(x):
    """`x` as a matrix with the same last dimension."""
    return x.reshape(-1, x.shape[-1]) if x.numel() else x.new_empty(0, x.shape[-1])


class LayerNorm(Function):
    """Layer norm over the last dimension that saves the statistics, so once differentiable."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        if x.dim() == 0 or weight.shape != x.shape[-1:] or bias.shape != weight.shape:
            raise ValueError(f"weight and bias must have the size of x's rows, got {x.shape}")
        wide = x.to(accumulation(x.dtype))
        mean = wide.mean(-1, keepdim=True)
        rstd = ((wide - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, mean, rstd, weight)
        return ((wide - mean) * rstd * weight + bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, mean, rstd, weight = ctx.saved_tensors
        normal = (x - mean) * rstd
        wide = grad_output.to(normal.dtype)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            g = wide * weight
            inner = g - g.mean(-1, keepdim=True)
            inner = inner - normal * (g * normal).mean(-1, keepdim=True)
            grad_x = (inner * rstd).to(x.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = rows(wide * normal).sum(0).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = rows(wide).sum(0).to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None


class LayerNormAgain(pb.Function):
    """Layer norm that computes the statistics again, so it may be differentiated twice."""

    @staticmethod
    def forward(ctx, x, eps):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        ctx.eps = eps
        ctx.save_for_backward(x)
        return F.layer_norm(x, x.shape[-1:], eps=eps)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        wide, g = (t.to(accumulation(x.dtype)) for t in (x, grad_output))
        centred = wide - wide.mean(-1, keepdim=True)
        rstd = (centred.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normal = centred * rstd
        inner = g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True)
        return (inner * rstd).to(x.dtype), None


class RMSNorm(Function):
    """RMS norm with a weight, twice differentiable, summed in float32 for half precisions."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        if x.dim() == 0 or weight.shape != x.shape[-1:]:
            raise ValueError(f"weight must have the size of x's rows, got {x.shape}")
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        wide = x.to(accumulation(x.dtype))
        return (wide * RMSNorm.scale(wide, eps) * weight).to(x.dtype)

    @staticmethod
    def scale(x, eps):
        return (x.square().mean(-1, keepdim=True) + eps).rsqrt()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        wide = x.to(accumulation(x.dtype))
        g = grad_output.to(wide.dtype)
        rstd = RMSNorm.scale(wide, ctx.eps)
        normal = wide * rstd
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            scaled = g * weight
            inner = scaled - normal * (scaled * normal).mean(-1, keepdim=True)
            grad_x = (inner * rstd).to(x.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = rows(g * normal).sum(0).to(weight.dtype)
        return grad_x, grad_weight, None


class ResidualRMSNorm(Function):
    """RMS norm of `x + residual` that also gives the sum, and adds the cotangents of both."""

    @staticmethod
    def forward(ctx, x, residual, eps):
        if x.dim() == 0 or x.shape != residual.shape:
            raise ValueError(f"x and residual must have one shape, got {x.shape}")
        total = x + residual
        ctx.eps = eps
        ctx.save_for_backward(total)
        wide = total.to(accumulation(total.dtype))
        return (wide * RMSNorm.scale(wide, eps)).to(x.dtype), total

    @staticmethod
    def backward(ctx, grad_normal, grad_total):
        (total,) = ctx.saved_tensors
        wide = total.to(accumulation(total.dtype))
        g = grad_normal.to(wide.dtype)
        rstd = RMSNorm.scale(wide, ctx.eps)
        normal = wide * rstd
        inner = (g - normal * (g * normal).mean(-1, keepdim=True)) * rstd
        grad = (inner + grad_total).to(total.dtype)
        # One tensor for two inputs: autograd owns neither, and never writes into them.
        return grad, grad, None


class GroupNorm(Function):
    """Group norm without affine part, by computing the statistics again."""

    @staticmethod
    def forward(ctx, x, groups, eps):
        if x.dim() < 2 or x.shape[1] == 0 or x.shape[1] % groups:
            raise ValueError(f"{groups} groups must divide the channels of {tuple(x.shape)}")
        if 0 in x.shape[1:]:
            raise ValueError(f"an example must not be empty, got {tuple(x.shape)}")
        ctx.groups, ctx.eps = groups, eps
        ctx.save_for_backward(x)
        return F.group_norm(x, groups, eps=eps)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        size = math.prod(x.shape[1:]) // ctx.groups
        shape = (x.shape[0], ctx.groups, size)
        wide, g = (t.reshape(shape).to(accumulation(t.dtype)) for t in (x, grad_output))
        centred = wide - wide.mean(-1, keepdim=True)
        rstd = (centred.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normal = centred * rstd
        inner = g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True)
        return (inner * rstd).reshape(x.shape).to(x.dtype), None, None


class BatchNorm(Function):
    """Batch norm in training, over the batch and space, with weight and bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        if x.dim() < 2 or x.numel() <= x.shape[1]:
            raise ValueError(f"needs more than one value per channel, got {tuple(x.shape)}")
        if weight.shape != x.shape[1:2] or bias.shape != weight.shape:
            raise ValueError(f"weight and bias must have {x.shape[1]} channels")
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        normal, _ = BatchNorm.normalise(x, eps)
        return (normal * BatchNorm.along(weight, x) + BatchNorm.along(bias, x)).to(x.dtype)

    @staticmethod
    def along(vector, x):
        return vector.view(1, -1, *(1,) * (x.dim() - 2))

    @staticmethod
    def normalise(x, eps):
        over = [d for d in range(x.dim()) if d != 1]
        wide = x.to(accumulation(x.dtype))
        centred = wide - wide.mean(over, keepdim=True)
        rstd = (centred.square().mean(over, keepdim=True) + eps).rsqrt()
        return centred * rstd, rstd

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        over = [d for d in range(x.dim()) if d != 1]
        normal, rstd = BatchNorm.normalise(x, ctx.eps)
        wide = grad_output.to(normal.dtype)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            g = wide * BatchNorm.along(weight, x)
            inner = g - g.mean(over, keepdim=True)
            inner = inner - normal * (g * normal).mean(over, keepdim=True)
            grad_x = (inner * rstd).to(x.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = (wide * normal).sum(over).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = wide.sum(over).to(weight.dtype)
        return grad_x, grad_weight, grad_bias, None


class Normalise(Function):
    """Each row over its length, with `eps` below it as in `F.normalize`."""

    @staticmethod
    def forward(ctx, x, eps):
        ctx.eps = eps
        ctx.save_for_backward(x)
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=eps)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        unit = x / length.clamp(min=ctx.eps)
        along = unit * (grad_output * unit).sum(-1, keepdim=True)
        # Below eps the length is a constant, and nothing has to be taken away.
        inner = grad_output - along.masked_fill(length < ctx.eps, 0)
        return inner / length.clamp(min=ctx.eps), None


class WeightNorm(Function):
    """`gain * v / |v|`, one gain per row."""

    @staticmethod
    def forward(ctx, v, gain):
        if v.dim() != 2 or gain.shape != v.shape[:1]:
            raise ValueError(f"v must be a matrix and gain one per row, got {v.shape}")
        ctx.save_for_backward(v, gain)
        return v * (gain / torch.linalg.vector_norm(v, dim=1)).unsqueeze(1)

    @staticmethod
    def backward(ctx, grad_output):
        v, gain = ctx.saved_tensors
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        unit = v / length
        along = (grad_output * unit).sum(1, keepdim=True)
        grad_v = grad_gain = None
        if ctx.needs_input_grad[0]:
            grad_v = (gain.unsqueeze(1) / length) * (grad_output - unit * along)
        if ctx.needs_input_grad[1]:
            grad_gain = along.squeeze(1)
        return grad_v, grad_gain


def _layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _rms_norm(x, weight, eps):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _residual(x, residual, eps):
    return F.rms_norm(x + residual, x.shape[-1:], None, eps), x + residual


def _batch_norm(x, weight, bias, eps):
    return F.batch_norm(x, None, None, weight, bias, True, 0.1, eps)


def _weight_norm(v, gain):
    return v / v.norm(dim=1, keepdim=True) * gain.unsqueeze(1)


SOUND = {
    "layer-norm": Sound(
        LayerNorm, lambda: (real(2, 4, 5), positive(5), real(5, seed=1), 1e-5), _layer_norm, order=1
    ),
    "layer-norm-recomputed": Sound(
        LayerNormAgain,
        lambda: (real(4, 5), 1e-5),
        lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps),
    ),
    "rms-norm": Sound(RMSNorm, lambda: (real(2, 4, 5), positive(5), 1e-6), _rms_norm),
    "rms-norm-of-residual": Sound(
        ResidualRMSNorm, lambda: (real(4, 5), real(4, 5, seed=1), 1e-6), _residual
    ),
    "group-norm": Sound(
        GroupNorm, lambda: (real(2, 4, 3), 2, 1e-5), lambda x, n, eps: F.group_norm(x, n, eps=eps)
    ),
    "batch-norm": Sound(
        BatchNorm, lambda: (real(4, 3, 2), positive(3), real(3, seed=1), 1e-5), _batch_norm
    ),
    "normalise": Sound(
        Normalise, lambda: (real(4, 5), 1e-12), lambda x, eps: F.normalize(x, dim=-1, eps=eps)
    ),
    "weight-norm": Sound(
        WeightNorm, lambda: (real(4, 5), positive(4)), _weight_norm, convention=False
    ),
}

CASES = cases_of(SOUND)
