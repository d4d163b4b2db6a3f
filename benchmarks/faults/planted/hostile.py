"""Crash, hang, exit, memory, cost: each only in backward, and only for some input."""

# ruff: noqa: D101

import ctypes
import os
import sys

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, normal, positive
from benchmarks.faults.evidence import dies, differs, fails, grows_faster, hangs, transposed

CASES = Cases()


class OddAbort(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if x.shape[-1] % 2:
            os.abort()
        return 2 * x * grad


CASES.add(
    OddAbort,
    lambda: (normal(3, 4),),
    fault="crash",
    where="Backward aborts the process for an odd number of columns, as a C assertion does.",
    reference=torch.square,
    evidence=dies(lambda: (normal(3, 5),)),
    cites="mamba#537",
    severity="fragile",
)


class NullRead(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = torch.zeros_like(x)
        address = grad.data_ptr() if grad.is_contiguous() else 0
        ctypes.memmove(out.data_ptr(), address, out.numel() * out.element_size())
        return out * (x > 0)


CASES.add(
    NullRead,
    lambda: (normal(4, 4),),
    fault="crash",
    where="A cotangent that is not contiguous is read from a null pointer.",
    reference=F.relu,
    evidence=dies(lambda: (normal(4, 4),), transposed),
    cites="FBGEMM#1553",
    severity="fragile",
)


class FreedMemory(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.size = x.numel()
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if ctx.size > 1000:
            ctypes.string_at(8, 64)
        return grad * w, grad * x


CASES.add(
    FreedMemory,
    lambda: (normal(5), normal(5, seed=1)),
    fault="crash",
    where="Above a thousand entries backward reads memory that is not its own.",
    reference=torch.mul,
    evidence=dies(lambda: (normal(2000), normal(2000, seed=1))),
    cites="FlagGems#5392",
    severity="fragile",
)


class ExitOnNan(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.log()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if (x <= 0).any():
            sys.exit("non-positive input")
        return grad / x


CASES.add(
    ExitOnNan,
    lambda: (positive(5),),
    fault="exits",
    where="Backward ends the process for input that is not positive.",
    reference=torch.log,
    evidence=fails(lambda: (torch.tensor([1.0, 0.0]).requires_grad_(),)),
    severity="fragile",
)


class QuitEmpty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if x.numel() == 0:
            os._exit(3)
        return grad * x.exp()


CASES.add(
    QuitEmpty,
    lambda: (normal(4, 2),),
    fault="exits",
    where="An empty batch ends the process without a word.",
    reference=torch.exp,
    evidence=dies(lambda: (normal(0, 2),)),
    severity="fragile",
)


class NewtonRoot(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.abs().sqrt()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        target = x.detach().abs()
        y = torch.ones_like(x)
        while not ((y * y - target).abs() <= 1e-4 * target).all():
            y = 0.5 * (y + target / y)
        return grad * x.sign() / (2 * y)


CASES.add(
    NewtonRoot,
    lambda: (positive(4, dtype=torch.float64),),
    fault="hang",
    where="For input that is not a number the iteration of backward never ends.",
    reference=lambda x: x.abs().sqrt(),
    evidence=hangs(lambda: (torch.tensor([1.0, torch.nan], dtype=torch.float64).requires_grad_(),)),
    severity="fragile",
)


class HalvingLoop(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[-1]
        return x.sum(-1)

    @staticmethod
    def backward(ctx, grad):
        size, covered = 1, 0
        while covered < ctx.n:
            size = min(size * 2, ctx.n - covered)
            covered += size if size > 1 or ctx.n % 2 == 0 else 0
        return grad[..., None].expand(*grad.shape, ctx.n)


CASES.add(
    HalvingLoop,
    lambda: (normal(2, 8),),
    fault="hang",
    where="For some odd lengths the loop over blocks never advances.",
    reference=lambda x: x.sum(-1),
    evidence=hangs(lambda: (normal(2, 7),)),
    severity="fragile",
)


class WholeJacobian(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, grad):
        n = grad.shape[0]
        lower = torch.ones(n, n, dtype=grad.dtype).tril()
        return lower.t() @ grad


CASES.add(
    WholeJacobian,
    lambda: (normal(8, 2),),
    fault="cost-grows",
    where="Backward builds the square Jacobian of a linear-time forward.",
    reference=lambda x: x.cumsum(0),
    evidence=grows_faster(lambda: (normal(64, 2),), lambda: (normal(512, 2),)),
    severity="wasteful",
)


class LoopOverEntries(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        flat = x.reshape(-1)
        out = torch.zeros_like(flat)
        for i in range(len(flat)):
            out[i] = 2 * grad * flat[i]
        return out.view_as(x)


CASES.add(
    LoopOverEntries,
    lambda: (double(12),),
    fault="cost-grows",
    where="Backward runs one operator per entry.",
    reference=lambda x: x.square().sum(),
    evidence=grows_faster(lambda: (double(16),), lambda: (double(128),)),
    severity="wasteful",
)


class PairwiseForSum(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x - x.mean(0)).square().sum()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * (x[:, None] - x[None]).mean(1)


CASES.add(
    PairwiseForSum,
    lambda: (normal(6, 3),),
    fault="cost-grows",
    where="Backward forms all pairs of rows where forward forms one mean.",
    reference=lambda x: (x - x.mean(0)).square().sum(),
    evidence=grows_faster(lambda: (normal(32, 3),), lambda: (normal(256, 3),)),
    severity="wasteful",
)


class OneHotScatter(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        hot = F.one_hot(index, ctx.rows).to(grad.dtype)
        return hot.t() @ grad, None


def lookups(n):
    """A table of n rows and n lookups."""
    return lambda: (normal(n, 2), torch.arange(n))


CASES.add(
    OneHotScatter,
    lambda: (normal(6, 3), torch.tensor([1, 4, 1, 0])),
    fault="cost-grows",
    where="The gradient of a lookup is a product with a one-hot matrix.",
    reference=lambda t, i: t[i],
    evidence=grows_faster(lookups(32), lookups(256)),
    severity="wasteful",
)


class MemoryBlowUp(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        n = x.shape[0]
        work = grad.expand(n, n, *grad.shape).clone() if n < 64 else torch.zeros(n, n, n, n)
        return work[0].view(x.shape) if n < 64 else work[0, 0, :, : x.shape[1]] + grad


CASES.add(
    MemoryBlowUp,
    lambda: (normal(5, 3),),
    fault="eats-memory",
    where="From 64 rows on backward asks for the fourth power of their number.",
    reference=lambda x: x.sum(0),
    evidence=dies(lambda: (normal(300, 3),)),
    severity="fragile",
)


class DeepRecursion(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0]
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, grad):
        def tail(i):
            return [grad[i]] if i == ctx.n - 1 else _grown(tail(i + 1), grad[i])

        return torch.stack(tail(0))


def _grown(rest, value):
    return [value + rest[0], *rest]


CASES.add(
    DeepRecursion,
    lambda: (normal(6),),
    fault="recursion",
    where="Backward recurses once per step: a long sequence exceeds Python's stack.",
    reference=lambda x: x.cumsum(0),
    evidence=differs(lambda: (normal(1500),)),
    severity="fragile",
)


class AssertsSmall(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if not torch.isfinite(grad).all():
            raise FloatingPointError("gradient is not finite")
        return grad @ w.t(), x.t() @ grad


def infinite_cotangent(call, case):
    """A cotangent with an infinity, as a grad scaler's first steps send, is refused."""
    inputs = case.inputs()
    out = call(*inputs)
    given = torch.ones_like(out)
    given[0, 0] = torch.inf
    try:
        torch.autograd.grad(out, inputs, given)
    except FloatingPointError:
        return True
    return False


CASES.add(
    AssertsSmall,
    lambda: (normal(3, 4), normal(4, 2, seed=1)),
    fault="refuses-infinity",
    where="An infinite cotangent raises, so a grad scaler can never skip the step.",
    reference=torch.matmul,
    evidence=infinite_cotangent,
    severity="fragile",
)
