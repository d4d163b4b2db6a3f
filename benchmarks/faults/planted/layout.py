"""Backwards and forwards that depend on how a tensor lies in memory."""

# ruff: noqa: D101, RUF059

import ctypes

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import channels_last, differs, expanded, offset, sliced, transposed

CASES = Cases()


def memory_of(tensor, count):
    """The first `count` numbers from where a tensor starts, as a C kernel would read them."""
    flat = torch.as_strided(tensor, (count,), (1,), tensor.storage_offset())
    return flat.clone()


# ---- cotangents ----


class ScaleKernel(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g = torch.as_strided(grad, x.shape, x.stride(), grad.storage_offset())
        return g * w, g * x


CASES.add(
    ScaleKernel,
    lambda: (normal(4, 6), normal(4, 6, seed=1)),
    fault="cotangent-strides-ignored",
    where="The cotangent is read with the input's strides.",
    reference=torch.mul,
    evidence=differs(cotangents=transposed),
    cites="FA#355",
)


class CausalConvKernel(Function):
    @staticmethod
    def forward(ctx, x, taps):
        ctx.save_for_backward(x, taps)
        return F.conv1d(F.pad(x, (2, 0)), taps[:, None], groups=x.shape[1])

    @staticmethod
    def backward(ctx, grad):
        x, taps = ctx.saved_tensors
        b, d, n = grad.shape
        dy = grad.as_strided((b, d, n), (d * n, n, 1))
        padded = F.pad(dy, (0, 2))
        dx = sum(taps[:, 2 - i, None] * padded[..., i : i + n] for i in range(3))
        history = F.pad(x, (2, 0))
        dt = torch.stack([(dy * history[..., i : i + n]).sum((0, 2)) for i in range(3)], -1)
        return dx, dt


CASES.add(
    CausalConvKernel,
    lambda: (normal(2, 3, 8), normal(3, 3, seed=1)),
    fault="cotangent-strides-ignored",
    where="The cotangent is read with hard-coded strides.",
    reference=lambda x, t: F.conv1d(F.pad(x, (2, 0)), t[:, None], groups=x.shape[1]),
    evidence=differs(cotangents=sliced),
    cites="fla#871",
)


class CrossEntropyKernel(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        return F.cross_entropy(logits, labels, reduction="none")

    @staticmethod
    def backward(ctx, grad):
        logits, labels = ctx.saved_tensors
        d = torch.softmax(logits, -1) - F.one_hot(labels, logits.shape[-1])
        kind = ctypes.c_float if grad.dtype == torch.float32 else ctypes.c_double
        count = grad.untyped_storage().nbytes() // grad.element_size()
        store = (kind * count).from_address(grad.untyped_storage().data_ptr())
        first = grad.storage_offset()
        rows = [store[first + i] if first + i < count else 1e30 for i in range(len(d))]
        return d * torch.tensor(rows, dtype=d.dtype)[:, None], None


CASES.add(
    CrossEntropyKernel,
    lambda: (normal(5, 4), integers(4, 5)),
    fault="stride-zero-cotangent",
    where="A cotangent of stride 0 is read past its one entry.",
    reference=lambda x, y: F.cross_entropy(x, y, reduction="none"),
    evidence=differs(cotangents=expanded),
    cites="ROCm/TransformerEngine#623",
)


class RaggedSum(Function):
    @staticmethod
    def forward(ctx, values, lengths):
        ctx.lengths = lengths
        return torch.stack([part.sum() for part in values.split(lengths)])

    @staticmethod
    def backward(ctx, grad):
        flat = torch.as_strided(grad, (len(ctx.lengths),), (1,), grad.storage_offset())
        return flat.repeat_interleave(torch.tensor(ctx.lengths)), None


CASES.add(
    RaggedSum,
    lambda: (normal(7), [3, 2, 2]),
    fault="stride-zero-cotangent",
    where="A cotangent of stride 0 is read as if it were dense.",
    reference=lambda v, n: torch.stack([part.sum() for part in v.split(n)]),
    evidence=differs(cotangents=expanded),
    cites="k2#1101",
)


class FlattenView(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad.view(-1) * (x.view(-1) > 0)).view(x.shape)


CASES.add(
    FlattenView,
    lambda: (normal(4, 5),),
    fault="view-of-cotangent",
    where="view(-1) fails for a transposed cotangent.",
    reference=F.relu,
    evidence=differs(cotangents=transposed),
    cites="pytorch#194719",
    severity="fragile",
)


class SplitHeads(Function):
    @staticmethod
    def forward(ctx, x, heads):
        b, n, d = x.shape
        return x.reshape(b, n, heads, d // heads).clone()

    @staticmethod
    def backward(ctx, grad):
        b, n, h, d = grad.shape
        return grad.view(b, n, h * d), None


CASES.add(
    SplitHeads,
    lambda: (normal(2, 3, 8), 4),
    fault="view-of-cotangent",
    where="view joins the heads again, which fails when the cotangent comes back transposed.",
    reference=lambda x, h: x.unflatten(-1, (h, -1)),
    evidence=differs(cotangents=transposed),
    severity="fragile",
)


class NumpyTanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        g = np.frombuffer(
            (ctypes.c_char * (grad.numel() * grad.element_size())).from_address(grad.data_ptr()),
            dtype=grad.numpy().dtype,
        ).reshape(tuple(grad.shape))
        return torch.from_numpy(g * (1 - y.numpy() ** 2))


CASES.add(
    NumpyTanh,
    lambda: (normal(4, 5),),
    fault="pointer-to-cotangent",
    where="The cotangent's memory is read from its pointer as if it were dense.",
    reference=torch.tanh,
    evidence=differs(cotangents=sliced),
    cites="apex#1601",
)


class PointerCopy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        g = torch.empty(grad.shape, dtype=grad.dtype)
        ctypes.memmove(g.data_ptr(), grad.data_ptr(), g.numel() * g.element_size())
        return 2 * x * g


CASES.add(
    PointerCopy,
    lambda: (double(3, 7),),
    fault="pointer-to-cotangent",
    where="memmove copies the cotangent as if it were dense.",
    reference=torch.square,
    evidence=differs(cotangents=transposed),
    cites="deepmd-kit#3910",
)


class InstanceScale(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w[:, None, None]

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        flat = memory_of(grad, grad.numel()).view(grad.shape)
        return flat * w[:, None, None], (flat * x).sum((0, 2, 3))


CASES.add(
    InstanceScale,
    lambda: (normal(2, 3, 4, 4), normal(3, seed=1)),
    fault="cotangent-strides-ignored",
    where="A channels-last cotangent is read as if its channels came first.",
    reference=lambda x, w: x * w[:, None, None],
    evidence=differs(cotangents=channels_last),
    cites="mmcv#737",
)


class SumCheck(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum(0)

    @staticmethod
    def backward(ctx, grad):
        if not grad.is_contiguous():
            raise RuntimeError("grad must be contiguous")
        return grad.expand(ctx.shape)


CASES.add(
    SumCheck,
    lambda: (normal(3, 4, 5),),
    fault="view-of-cotangent",
    where="A cotangent that is not contiguous is refused.",
    reference=lambda x: x.sum(0),
    evidence=differs(cotangents=transposed),
    cites="gpytorch#1543",
    severity="fragile",
)


class StorageStart(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(-x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        g = grad if not grad.is_contiguous() else torch.as_strided(grad, y.shape, y.stride(), 0)
        return -g * y


CASES.add(
    StorageStart,
    lambda: (double(8),),
    fault="cotangent-offset-ignored",
    where="A dense cotangent that begins inside its storage is read from the start.",
    reference=lambda x: torch.exp(-x),
    evidence=differs(cotangents=offset),
)


class ConjugateViewCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        g = torch.empty(grad.shape, dtype=grad.dtype)
        ctypes.memmove(g.data_ptr(), grad.data_ptr(), g.numel() * g.element_size())
        return 2 * x.conj() * g


def conjugated(outputs):
    """Dense cotangents that are lazily conjugated."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for output in outputs:
        parts = torch.randn(*output.shape, 2, generator=generator, dtype=torch.float64)
        made.append(torch.view_as_complex(parts).to(output.dtype).conj())
    return made


CASES.add(
    ConjugateViewCotangent,
    lambda: (normal(5, dtype=torch.complex128),),
    fault="conjugate-view",
    where="The conjugate bit of the cotangent is not resolved before its memory is read.",
    reference=torch.square,
    evidence=differs(cotangents=conjugated),
)


class ViewAsRealInput(Function):
    @staticmethod
    def forward(ctx, z):
        parts = np.empty((*z.shape, 2))
        ctypes.memmove(parts.ctypes.data, z.data_ptr(), parts.nbytes)
        out = torch.from_numpy(parts)
        ctx.save_for_backward(z)
        return out[..., 0] - 2 * out[..., 1]

    @staticmethod
    def backward(ctx, grad):
        return torch.complex(grad, -2 * grad)


CASES.add(
    ViewAsRealInput,
    lambda: (normal(5, dtype=torch.complex128),),
    fault="conjugate-view",
    where="A conjugate view as input is read without its conjugation.",
    reference=lambda z: z.real - 2 * z.imag,
    evidence=differs(lambda: (normal(5, dtype=torch.complex128).detach().conj().requires_grad_(),)),
)

# ---- inputs ----


def columns():
    """A weight sliced from a wider projection."""
    return normal(4, 12).detach()[:, 3:9].requires_grad_()


class AttentionValue(Function):
    @staticmethod
    def forward(ctx, p, v):
        ctx.save_for_backward(p, v)
        return p @ v

    @staticmethod
    def backward(ctx, grad):
        p, v = ctx.saved_tensors
        dv = torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).zero_()
        dv.view_as(v).copy_(p.t() @ grad)
        values = memory_of(v, v.numel()).view(v.shape)
        return grad @ values.t(), dv


CASES.add(
    AttentionValue,
    lambda: (positive(5, 4), normal(4, 6, seed=1)),
    fault="input-strides-ignored",
    where="A value matrix sliced from one projection is read as if it were dense.",
    reference=torch.matmul,
    evidence=differs(lambda: (positive(5, 4), columns())),
    cites="FA#2541",
)


class FusedSsimMean(Function):
    @staticmethod
    def forward(ctx, image):
        ctx.save_for_backward(image)
        return (image * image).mean((2, 3))

    @staticmethod
    def backward(ctx, grad):
        (image,) = ctx.saved_tensors
        b, c, h, w = image.shape
        dense = memory_of(image, image.numel()).view(image.shape)
        return 2 * dense * grad[:, :, None, None] / (h * w)


CASES.add(
    FusedSsimMean,
    lambda: (normal(2, 3, 4, 4),),
    fault="input-strides-ignored",
    where="For a permuted image the gradient is computed from the wrong pixels.",
    reference=lambda x: (x * x).mean((2, 3)),
    evidence=differs(lambda: (normal(2, 4, 4, 3).detach().permute(0, 3, 1, 2).requires_grad_(),)),
    cites="optimized-fused-ssim#1",
)


class FlatForward(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.view(-1).sigmoid().view(x.shape)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y)


CASES.add(
    FlatForward,
    lambda: (normal(3, 4),),
    fault="input-view-fails",
    where="Forward calls view on its input, which fails when it is transposed.",
    reference=torch.sigmoid,
    evidence=differs(lambda: (normal(4, 3).detach().t().requires_grad_(),)),
    severity="fragile",
)


class EmptyLikeGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        flat = torch.as_strided(out, (out.numel(),), (1,))
        flat.copy_((3 * x * x * grad).flatten())
        return out


CASES.add(
    EmptyLikeGradient,
    lambda: (double(4, 3),),
    fault="input-strides-ignored",
    where="The gradient is written in row order into memory with the input's strides.",
    reference=lambda x: x.pow(3),
    evidence=differs(lambda: (double(3, 4).detach().t().requires_grad_(),)),
)


class ExpandedWeight(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * memory_of(w, 1) if w.stride(0) == 0 else x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dw = torch.empty_strided(w.shape, w.stride(), dtype=w.dtype)
        dw.copy_(grad * x) if w.stride(0) else dw[:1].copy_((grad * x)[-1:])
        return grad * w, dw


CASES.add(
    ExpandedWeight,
    lambda: (double(6), double(6, seed=1)),
    fault="stride-zero-input",
    where="For an expanded weight the gradient is written into memory of stride 0.",
    reference=torch.mul,
    evidence=differs(
        lambda: (double(6), torch.tensor([2.0], dtype=torch.float64).expand(6).requires_grad_())
    ),
)


class FortranMatmul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        dense = a.as_strided(a.shape, (a.shape[1], 1))
        return grad @ b.t(), dense.t() @ grad


CASES.add(
    FortranMatmul,
    lambda: (normal(4, 3), normal(3, 5, seed=1)),
    fault="input-strides-ignored",
    where="A transposed left factor is read as if it were dense for the right one's gradient.",
    reference=torch.matmul,
    evidence=differs(lambda: (normal(3, 4).detach().t().requires_grad_(), normal(3, 5, seed=1))),
)
