"""What is kept for backward: never read, too much, on ctx, in cycles, once only, never written."""

# ruff: noqa: D101, RUF059

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import (
    hides_from_hooks,
    keeps_after_backward,
    leaks,
    reads_unwritten,
    saves_more_than,
    saves_unread,
    wrong_twice,
    wrong_when_refilled,
)

CASES = Cases()

# ---- saved and never read ----


class AddSaves(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), grad.clone()


CASES.add(
    AddSaves,
    lambda: (normal(4, 4), normal(4, 4, seed=1)),
    fault="saved-never-read",
    where="Both inputs are saved, and the gradient needs neither.",
    reference=lambda x, y: x + y,
    evidence=saves_unread,
    severity="wasteful",
)


class TanhSavesBoth(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * (1 - y * y)


CASES.add(
    TanhSavesBoth,
    lambda: (double(6, 3),),
    fault="saved-never-read",
    where="The input is saved beside the output, and only the output is read.",
    reference=torch.tanh,
    evidence=saves_unread,
    severity="wasteful",
)


class LinearBiasSaved(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        dx = grad @ weight if ctx.needs_input_grad[0] else None
        dw = grad.t() @ x if ctx.needs_input_grad[1] else None
        db = grad.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db


CASES.add(
    LinearBiasSaved,
    lambda: (normal(5, 4), normal(3, 4, seed=1), normal(3, seed=2)),
    fault="saved-never-read",
    where="The bias is saved for no use.",
    reference=F.linear,
    evidence=saves_unread,
    severity="wasteful",
)

# ---- too much ----


class GeluEverything(Function):
    @staticmethod
    def forward(ctx, x):
        inner = 0.7978845608 * (x + 0.044715 * x**3)
        t = torch.tanh(inner)
        ctx.save_for_backward(x, x**2, inner, t, 1 - t * t)
        return 0.5 * x * (1 + t)

    @staticmethod
    def backward(ctx, grad):
        x, squared, inner, t, slope = ctx.saved_tensors
        d = 0.7978845608 * (1 + 3 * 0.044715 * squared)
        return grad * (0.5 * (1 + t) + 0.5 * x * slope * d + 0 * inner)


CASES.add(
    GeluEverything,
    lambda: (normal(8, 16),),
    fault="saves-too-much",
    where="Four intermediates are kept where the input would do.",
    reference=lambda x: F.gelu(x, approximate="tanh"),
    evidence=saves_more_than(2 * 8 * 16 * 4),
    severity="wasteful",
)


class OneHotSaved(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        p = torch.softmax(logits, -1)
        ctx.save_for_backward(p, F.one_hot(labels, logits.shape[-1]))
        return F.cross_entropy(logits, labels, reduction="none")

    @staticmethod
    def backward(ctx, grad):
        p, hot = ctx.saved_tensors
        return grad[:, None] * (p - hot), None


CASES.add(
    OneHotSaved,
    lambda: (normal(16, 32), integers(32, 16)),
    fault="saves-too-much",
    where="A one-hot matrix of 64-bit integers is kept where the labels would do.",
    reference=lambda x, y: F.cross_entropy(x, y, reduction="none"),
    evidence=saves_more_than(16 * 32 * 8 - 1),
    severity="wasteful",
)


class ReluMask(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x > 0).to(torch.float64))
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask.to(grad.dtype)


CASES.add(
    ReluMask,
    lambda: (normal(16, 16),),
    fault="saves-too-much",
    where="The mask is kept in float64, twice the size of the input.",
    reference=F.relu,
    evidence=saves_more_than(16 * 16 * 4),
    severity="wasteful",
)


class ExpandedSave(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight.expand(x.shape[0], -1).contiguous())
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


CASES.add(
    ExpandedSave,
    lambda: (normal(64, 8), normal(8, seed=1)),
    fault="saves-too-much",
    where="The weight is kept once per row.",
    reference=torch.mul,
    evidence=saves_more_than(8 * 4),
    severity="wasteful",
)

# ---- on ctx, leaks ----


class OutputCycle(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y.detach()


CASES.add(
    OutputCycle,
    lambda: (normal(6),),
    fault="leak",
    where="The output sits on ctx: output, node and ctx hold each other.",
    reference=torch.exp,
    evidence=leaks(),
    cites="RevTorch#1",
    severity="fragile",
)


class CarryCycle(Function):
    @staticmethod
    def forward(ctx, x, state):
        new = torch.tanh(x + state)
        out = new * 2
        ctx.outputs = (out, new)
        return out, new

    @staticmethod
    def backward(ctx, grad, grad_new):
        new = ctx.outputs[1].detach()
        d = (2 * grad + grad_new) * (1 - new * new)
        return d, d.clone()


CASES.add(
    CarryCycle,
    lambda: (normal(4), normal(4, seed=1)),
    fault="leak",
    where="A tuple of outputs on ctx makes a cycle that only the collector frees.",
    reference=lambda x, s: (2 * torch.tanh(x + s), torch.tanh(x + s)),
    evidence=leaks(),
    cites="sru#171",
    severity="fragile",
)

_SEEN = []


class GlobalList(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        _SEEN.append(x)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


CASES.add(
    GlobalList,
    lambda: (normal(5), normal(5, seed=1)),
    fault="leak",
    where="Every input is appended to a list of the module.",
    reference=torch.mul,
    evidence=leaks(),
    cites="pyro#1049",
    severity="fragile",
)


class CachedCos(Function):
    pending: ClassVar[dict] = {}

    @staticmethod
    def forward(ctx, x):
        ctx.key = id(ctx)
        CachedCos.pending[ctx.key] = x
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad * CachedCos.pending[ctx.key].cos()


CASES.add(
    CachedCos,
    lambda: (normal(6),),
    fault="leak",
    where="A dictionary of the class keeps the input of every call.",
    reference=torch.sin,
    evidence=leaks(after_backward=False),
    cites="metatensor#684",
    severity="fragile",
)


class CtxAttribute(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.x, ctx.w = x, w
        return x * w

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.w, grad * ctx.x


CASES.add(
    CtxAttribute,
    lambda: (normal(5), normal(5, seed=1)),
    fault="tensors-on-ctx",
    where="Inputs on ctx pass no saved-tensor hook, so they can be neither offloaded nor checked.",
    reference=torch.mul,
    evidence=hides_from_hooks,
    severity="fragile",
)


class KeptAfter(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        ctx.x = x
        return F.leaky_relu(x, 0.2)

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.mask, grad, 0.2 * grad)


CASES.add(
    KeptAfter,
    lambda: (double(4, 4),),
    fault="tensors-on-ctx",
    where="Memory on ctx is not freed by backward while the output lives.",
    reference=lambda x: F.leaky_relu(x, 0.2),
    evidence=keeps_after_backward,
    severity="fragile",
)


class IntermediateOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.inv = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.normed = x * ctx.inv
        return ctx.normed.clone()

    @staticmethod
    def backward(ctx, grad):
        n = ctx.normed
        return ctx.inv * (grad - n * (grad * n).mean(-1, keepdim=True))


CASES.add(
    IntermediateOnCtx,
    lambda: (normal(3, 6),),
    fault="tensors-on-ctx",
    where="Intermediates sit on ctx: no hook sees them, and double backward takes them as given.",
    reference=lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
    evidence=hides_from_hooks,
    severity="fragile",
)

# ---- once only ----


class CacheCleared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.cache = [x.cosh().detach()]
        return x.sinh()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.cache.pop()


CASES.add(
    CacheCleared,
    lambda: (normal(5),),
    fault="backward-once-only",
    where="The cache is emptied by the first backward: a second one fails.",
    reference=torch.sinh,
    evidence=wrong_twice,
    cites="dgl#1046",
    severity="fragile",
)


class FreeEarly(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.kept = x.detach().clone()
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dw = grad * ctx.kept
        ctx.kept = None
        return grad * w, dw


CASES.add(
    FreeEarly,
    lambda: (normal(5), normal(5, seed=1)),
    fault="backward-once-only",
    where="Backward drops the kept copy to save memory: a second one fails.",
    reference=torch.mul,
    evidence=wrong_twice,
    severity="fragile",
)


class CountsDown(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = 1.0
        return x.pow(2)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = 2 * x * grad * ctx.scale
        ctx.scale *= 0.5
        return out


CASES.add(
    CountsDown,
    lambda: (double(4),),
    fault="backward-once-only",
    where="Every further backward of the same node is halved.",
    reference=lambda x: x.pow(2),
    evidence=wrong_twice,
)


class GeneratorState(Function):
    @staticmethod
    def forward(ctx, x, sizes):
        ctx.parts = iter(x.detach().split(sizes))
        ctx.sizes = sizes
        return torch.stack([part.prod() for part in x.split(sizes)])

    @staticmethod
    def backward(ctx, grad):
        pieces = [g * part.prod() / part for g, part in zip(grad, ctx.parts, strict=False)]
        return torch.cat(pieces), None


CASES.add(
    GeneratorState,
    lambda: (positive(6), [2, 2, 2]),
    fault="backward-once-only",
    where="An iterator on ctx is used up by the first backward.",
    reference=lambda x, n: torch.stack([part.prod() for part in x.split(n)]),
    evidence=wrong_twice,
)

# ---- never written ----


class PackedRows(Function):
    @staticmethod
    def forward(ctx, x, lengths):
        ctx.lengths = lengths
        ctx.shape = x.shape
        return torch.stack([row[:n].sum() for row, n in zip(x, lengths, strict=True)])

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty(ctx.shape, dtype=grad.dtype)
        for i, n in enumerate(ctx.lengths):
            out[i, :n] = grad[i]
            if n < ctx.shape[1] - 1:
                out[i, n:] = 0
        return out, None


CASES.add(
    PackedRows,
    lambda: (normal(3, 5), [5, 2, 3]),
    fault="unwritten-memory",
    where="The last column of a row that is one short is never written.",
    reference=lambda x, n: torch.stack([row[:k].sum() for row, k in zip(x, n, strict=True)]),
    evidence=reads_unwritten(lambda: (normal(3, 5), [5, 4, 3])),
    cites="FBGEMM#5754",
)


class ChunkTail(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        for start in range(0, len(x) - len(x) % 4, 4):
            out[start : start + 4] = 2 * x[start : start + 4] * grad[start : start + 4]
        return out


CASES.add(
    ChunkTail,
    lambda: (normal(8, 2),),
    fault="unwritten-memory",
    where="Rows after the last whole chunk of four are never written.",
    reference=torch.square,
    evidence=reads_unwritten(lambda: (normal(10, 2),)),
    cites="fla#892",
)


class SelectedExperts(Function):
    @staticmethod
    def forward(ctx, weights, used):
        ctx.used = used
        ctx.shape = weights.shape
        return weights[used].sum(0)

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty(ctx.shape, dtype=grad.dtype)
        out[ctx.used] = grad.expand(len(ctx.used), *grad.shape)
        return out, None


CASES.add(
    SelectedExperts,
    lambda: (normal(3, 4), [0, 1, 2]),
    fault="unwritten-memory",
    where="Experts that are not used keep whatever was in memory as their gradient.",
    reference=lambda w, used: w[used].sum(0),
    evidence=reads_unwritten(lambda: (normal(3, 4), [0, 2])),
    cites="grouped_gemm#36",
)


class AccumulateEmpty(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        total = torch.empty_like(grad[0])
        for row in grad:
            total += row
        return grad, total


CASES.add(
    AccumulateEmpty,
    lambda: (normal(4, 64), normal(64, seed=1)),
    fault="unwritten-memory",
    where="The bias' gradient is added to memory that nobody cleared.",
    reference=torch.add,
    evidence=reads_unwritten(),
    cites="apex#1322",
)


class ForwardScratch(Function):
    @staticmethod
    def forward(ctx, x):
        kept = torch.empty_like(x)
        kept[:, :-1] = torch.diff(x, dim=-1)
        ctx.save_for_backward(kept)
        return kept[:, :-1].square().sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (kept,) = ctx.saved_tensors
        d = 2 * grad[:, None] * kept
        return F.pad(d[:, :-1], (1, 0)) - F.pad(d[:, :-1], (0, 1)) + 0 * d


CASES.add(
    ForwardScratch,
    lambda: (normal(3, 6),),
    fault="unwritten-memory",
    where="A column that forward never wrote is multiplied by zero, which NaN survives.",
    reference=lambda x: torch.diff(x, dim=-1).square().sum(-1),
    evidence=reads_unwritten(),
)

# ---- freed and refilled ----


class ShardedLinear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight.detach()
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad @ ctx.weight, grad.t() @ x


CASES.add(
    ShardedLinear,
    lambda: (normal(3, 4), normal(5, 4, seed=1)),
    fault="freed-storage",
    where="An alias of the weight is kept: when its shard is freed and refilled it is stale.",
    reference=lambda x, w: (x[:, None] * w).sum(-1),
    evidence=wrong_when_refilled(1),
    severity="fragile",
    cites="VeOmni#804",
)


class NumpyWeight(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight.detach().numpy()
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.from_numpy(ctx.weight), grad * x


CASES.add(
    NumpyWeight,
    lambda: (double(3, 4), double(3, 4, seed=1)),
    fault="freed-storage",
    where="The weight's old memory is held through numpy: refilled elsewhere it is stale.",
    reference=torch.mul,
    evidence=wrong_when_refilled(1),
    severity="fragile",
)
