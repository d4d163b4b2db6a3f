"""Less kept than autograd keeps: recomputation, chunks, packed masks, implicit functions."""

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.sound.arithmetic import GatedLinearUnit, Multiply
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real
from benchmarks.faults.sound.products import Linear

# ---- Functions ----


class RecomputedMLP(Function):
    """Two layers of which nothing but the inputs is kept; backward runs autograd inside."""

    @staticmethod
    def forward(ctx, x, up, down):
        if x.dim() != 2 or up.dim() != 2 or down.dim() != 2:
            raise ValueError(f"takes matrices, got {x.shape}, {up.shape} and {down.shape}")
        ctx.save_for_backward(x, up, down)
        return RecomputedMLP.layers(x, up, down)

    @staticmethod
    def layers(x, up, down):
        return torch.tanh(x @ up.t()) @ down.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        needs = ctx.needs_input_grad
        inputs = [
            t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, needs, strict=True)
        ]
        with torch.enable_grad():
            y = RecomputedMLP.layers(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        grads = iter(torch.autograd.grad(y, wanted, grad_output))
        return tuple(next(grads) if need else None for need in needs)


class ChunkedMLP(Function):
    """A gated layer computed a few rows at a time, in both directions."""

    @staticmethod
    def forward(ctx, x, weight, chunk):
        if x.dim() != 2 or weight.dim() != 2 or chunk < 1:
            raise ValueError(f"takes matrices and a chunk of 1 or more, got {x.shape}")
        ctx.chunk = chunk
        ctx.save_for_backward(x, weight)
        return torch.cat([F.silu(rows @ weight.t()) for rows in x.split(chunk)])

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grads_x, grad_weight = [], torch.zeros_like(weight)
        for rows, g in zip(x.split(ctx.chunk), grad_output.split(ctx.chunk), strict=True):
            z = rows @ weight.t()
            s = torch.sigmoid(z)
            pulled = g * s * (1 + z * (1 - s))
            if ctx.needs_input_grad[0]:
                grads_x.append(pulled @ weight)
            if ctx.needs_input_grad[1]:
                grad_weight = grad_weight + pulled.t() @ rows
        return (
            torch.cat(grads_x) if ctx.needs_input_grad[0] else None,
            grad_weight if ctx.needs_input_grad[1] else None,
            None,
        )


class PackedReLU(Function):
    """ReLU whose mask is kept as bits, eight to a byte."""

    @staticmethod
    def forward(ctx, x):
        kept = x > 0
        ctx.shape = x.shape
        ctx.save_for_backward(PackedReLU.packed(kept))
        return torch.where(kept, x, 0.0)

    @staticmethod
    def packed(mask):
        flat = F.pad(mask.reshape(-1), (0, -mask.numel() % 8)).view(-1, 8).to(torch.uint8)
        weights = 2 ** torch.arange(8, dtype=torch.uint8, device=mask.device)
        return (flat * weights).sum(1).to(torch.uint8)

    @staticmethod
    def unpacked(bits, shape):
        places = torch.arange(8, dtype=torch.uint8, device=bits.device)
        return ((bits.unsqueeze(1) >> places) & 1).bool().view(-1)[: shape.numel()].view(shape)

    @staticmethod
    def backward(ctx, grad_output):
        (bits,) = ctx.saved_tensors
        return torch.where(PackedReLU.unpacked(bits, ctx.shape), grad_output, 0.0)


class CubeRoot(Function):
    """The real cube root by its definition, differentiated implicitly; infinite slope at 0."""

    @staticmethod
    def forward(ctx, x):
        y = x.sign() * x.abs() ** (1 / 3)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (3 * y * y)


class FixedPoint(Function):
    """The `y` with `y = tanh(y / 2) + x`, found by Newton and differentiated implicitly."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        for _ in range(30):
            t = torch.tanh(y / 2)
            y = y - (y - t - x) / (1 - (1 - t * t) / 2)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        t = torch.tanh(y / 2)
        return grad_output / (1 - (1 - t * t) / 2)


# ---- plain callables, which are checked as Functions are ----


def gated_mlp(x, gate, up, down):
    """A gated layer of three Functions."""
    hidden = GatedLinearUnit.apply(Linear.apply(x, gate), Linear.apply(x, up))
    return Linear.apply(hidden, down)


def squared_by_product(x):
    """One tensor in both slots of a Function."""
    return Multiply.apply(x, x)


def checkpointed_cube(x):
    """A Function under activation checkpointing."""
    return checkpoint(lambda t: Multiply.apply(Multiply.apply(t, t), t), x, use_reentrant=False)


def residual(x, weight):
    """A Function beside the identity, so that its cotangent is a sum's."""
    return x + torch.tanh(Linear.apply(x, weight, None))


def loss_of_parts(x):
    """A Function on parts of a tensor, put together by `cat`: strided cotangents."""
    left, right = x.chunk(2, 0) if x.shape[0] > 1 else (x, x)
    return torch.cat((Multiply.apply(left, left), Multiply.apply(right, left[: len(right)])), 0)


def _fixed_point(x):
    y = x
    for _ in range(80):
        y = torch.tanh(y / 2) + x
    return y


def _parts(x):
    left, right = x.chunk(2, 0) if x.shape[0] > 1 else (x, x)
    return torch.cat((left * left, right * left[: len(right)]), 0)


def _mlp_inputs():
    return real(3, 4), real(5, 4, seed=1), real(2, 5, seed=2)


SOUND = {
    "recomputed-mlp": Sound(
        RecomputedMLP, _mlp_inputs, lambda x, u, d: torch.tanh(x @ u.t()) @ d.t(), order=1
    ),
    "chunked-mlp": Sound(
        ChunkedMLP,
        lambda: (real(7, 4), real(5, 4, seed=1), 3),
        lambda x, w, _: F.silu(x @ w.t()),
    ),
    "relu-with-packed-mask": Sound(PackedReLU, lambda: (real(3, 7),), torch.relu),
    "cube-root": Sound(
        CubeRoot, lambda: (positive(4, 5),), lambda x: x ** (1 / 3), convention=False
    ),
    "fixed-point": Sound(FixedPoint, lambda: (real(4, 5),), _fixed_point, low=False),
    "gated-mlp": Sound(
        gated_mlp,
        lambda: (real(3, 4), real(5, 4, seed=1), real(5, 4, seed=2), real(2, 5, seed=3)),
        lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
    ),
    "one-tensor-twice": Sound(squared_by_product, lambda: (real(4, 5),), torch.square),
    "checkpointed-cube": Sound(checkpointed_cube, lambda: (real(4, 5),), lambda x: x**3),
    "residual-block": Sound(
        residual, lambda: (real(3, 4), real(4, 4, seed=1)), lambda x, w: x + (x @ w.t()).tanh()
    ),
    "product-of-parts": Sound(loss_of_parts, lambda: (real(4, 5),), _parts),
}

CASES = cases_of(SOUND)
