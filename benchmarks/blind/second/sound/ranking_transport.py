"""Sorting, ranking, alignment and optimal transport."""
import math
import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, real_floating, same_shape


class SortWithRank(Function):
    """Stable descending sort of the last axis: values, and the rank of every entry, which carries no gradient."""

    @staticmethod
    def forward(x):
        real_floating("SortWithRank", x)
        if x.dim() == 0:
            raise ValueError("SortWithRank: at least one axis expected")
        values, order = torch.sort(x, dim=-1, descending=True, stable=True)
        return values, torch.argsort(order, dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad_values, _):
        rank, = ctx.saved_tensors
        return grad_values.gather(-1, rank)


class SoftRank(Function):
    """Smooth ascending ranks 1/2 + sum_j sigmoid((x_i - x_j) / tau) along the last axis, tau > 0."""

    @staticmethod
    def forward(x, tau=1.0):
        real_floating("SoftRank", x)
        if x.dim() == 0 or not tau > 0:
            raise ValueError("SoftRank: a last axis and tau > 0 expected")
        return torch.sigmoid((x[..., :, None] - x[..., None, :]) / tau).sum(-1) + 0.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.tau = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def vmap(info, in_dims, x, tau):
        if in_dims[0] is None:
            return SoftRank.apply(x, tau), None
        return SoftRank.apply(x.movedim(in_dims[0], 0), tau), 0

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        s = torch.sigmoid((x[..., :, None] - x[..., None, :]) / ctx.tau)
        weight = s * (1 - s) / ctx.tau
        return (weight * (grad_out[..., :, None] - grad_out[..., None, :])).sum(-1), None


class Wasserstein1D(Function):
    """Mean |sorted(a) - sorted(b)|^p of two samples of one size along the last axis, p >= 1."""

    @staticmethod
    def forward(ctx, a, b, p=2.0):
        real_floating("Wasserstein1D", a, b)
        same_shape("Wasserstein1D", a, b)
        if a.dim() == 0 or a.shape[-1] == 0 or p < 1:
            raise ValueError("Wasserstein1D: non-empty samples and p >= 1 expected")
        sa, ia = torch.sort(a, dim=-1, stable=True)
        sb, ib = torch.sort(b, dim=-1, stable=True)
        ctx.save_for_backward(sa - sb, ia, ib)
        ctx.p = p
        return (sa - sb).abs().pow(p).mean(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        d, ia, ib = ctx.saved_tensors
        g = grad_out[..., None] * (ctx.p / d.shape[-1]) * d.sign() * d.abs().pow(ctx.p - 1)
        ga = torch.zeros_like(g).scatter(-1, ia, g) if ctx.needs_input_grad[0] else None
        gb = torch.zeros_like(g).scatter(-1, ib, -g) if ctx.needs_input_grad[1] else None
        return ga, gb, None


class SinkhornPlan(Function):
    """Transport plan after a number of log-domain Sinkhorn rounds, replayed under autograd in backward.

    The marginals are positive constants of equal sums."""

    @staticmethod
    def rounds(cost, loga, logb, reg, iters):
        k, g = -cost / reg, torch.zeros_like(logb)
        for _ in range(iters):
            f = loga - torch.logsumexp(k + g, 1)
            g = logb - torch.logsumexp(k + f[:, None], 0)
        return torch.exp(k + f[:, None] + g)

    @staticmethod
    def forward(ctx, cost, a, b, reg=0.5, iters=10):
        real_floating("SinkhornPlan", cost, a, b)
        if cost.dim() != 2 or not cost.numel() or a.shape != cost.shape[:1] or b.shape != cost.shape[1:] or not reg > 0 or iters < 1:
            raise ValueError("SinkhornPlan: cost (N, M), a (N,), b (M,), reg > 0 and iters >= 1 expected")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("SinkhornPlan: the marginals are constants")
        if bool((a <= 0).any() or (b <= 0).any()) or abs(float(a.sum() - b.sum())) > 0.02 * float(a.sum()):
            raise ValueError("SinkhornPlan: positive marginals of equal sums expected")
        ctx.save_for_backward(cost, a, b)
        ctx.reg, ctx.iters = reg, iters
        return SinkhornPlan.rounds(cost, a.log(), b.log(), reg, iters)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        cost, a, b = ctx.saved_tensors
        with torch.enable_grad():
            c = cost.detach().requires_grad_()
            plan = SinkhornPlan.rounds(c, a.log(), b.log(), ctx.reg, ctx.iters)
        return *torch.autograd.grad(plan, c, grad_out), None, None, None, None


class IsotonicRegression(Function):
    """Closest non-decreasing sequence in least squares (pool adjacent violators in NumPy), rows of the last axis."""

    @staticmethod
    def blocks(row):
        sums, sizes = [], []
        for v in row:
            s, n = float(v), 1
            while sums and sums[-1] * n >= s * sizes[-1]:
                s, n = s + sums.pop(), n + sizes.pop()
            sums.append(s)
            sizes.append(n)
        return np.repeat(np.arange(len(sizes)), sizes)

    @staticmethod
    def average(x, block):
        total = torch.zeros_like(x).scatter_add(-1, block, x)
        count = torch.zeros_like(x).scatter_add(-1, block, torch.ones_like(x))
        return (total / count.clamp_min(1)).gather(-1, block)

    @staticmethod
    def forward(ctx, x):
        real_floating("IsotonicRegression", x)
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError("IsotonicRegression: a non-empty last axis expected")
        rows = x.detach().double().cpu().reshape(-1, x.shape[-1]).numpy()
        block = np.array([IsotonicRegression.blocks(r) for r in rows], dtype=np.int64).reshape(x.shape)
        block = torch.from_numpy(block).to(x.device)
        ctx.save_for_backward(block)
        return IsotonicRegression.average(x, block)

    @staticmethod
    def backward(ctx, grad_out):
        return IsotonicRegression.average(grad_out, *ctx.saved_tensors)


class SoftDTW(Function):
    """Soft dynamic time warping value of a cost matrix (N, M), gamma > 0 (Cuturi and Blondel 2017)."""

    @staticmethod
    def forward(ctx, cost, gamma=1.0):
        real_floating("SoftDTW", cost)
        if cost.dim() != 2 or cost.numel() == 0 or not gamma > 0 or cost.dtype not in (torch.float32, torch.float64):
            raise ValueError("SoftDTW: a non-empty float32 or float64 matrix and gamma > 0 expected")
        n, m = cost.shape
        r = cost.new_full((n + 1, m + 1), math.inf)
        r[0, 0] = 0
        for i in range(n):
            for j in range(m):
                near = torch.stack((r[i, j], r[i, j + 1], r[i + 1, j]))
                r[i + 1, j + 1] = cost[i, j] - gamma * torch.logsumexp(-near / gamma, 0)
        ctx.save_for_backward(cost, r)
        ctx.gamma = gamma
        return r[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        cost, r = ctx.saved_tensors
        n, m = cost.shape
        e = cost.new_zeros(n + 1, m + 1)
        e[n - 1, m - 1] = 1
        for i in reversed(range(n)):
            for j in reversed(range(m)):
                for a, b in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
                    if a < n and b < m:
                        e[i, j] += e[a, b] * torch.exp((r[a + 1, b + 1] - cost[a, b] - r[i + 1, j + 1]) / ctx.gamma)
        return e[:n, :m] * grad_out, None


def marginals(n, m):
    return torch.softmax(rand(n, grad=False), 0), torch.softmax(rand(m, seed=1, grad=False), 0)


CASES = [
    case("sort_with_rank", SortWithRank, lambda: (rand(3, 5),), "Order and rank are inverse permutations; one of them serves backward.", more=[lambda: (rand(1),), lambda: (rand(2, 0),)]),
    case("soft_rank", SoftRank, lambda: (rand(2, 4), 0.5), "Pairwise smooth ranks with a positive temperature and a vmap rule.", vmap=True, more=[lambda: (rand(1), 2.0), lambda: (rand(0),)], refuses=[lambda: (rand(2), 0.0)]),
    case("wasserstein_1d", Wasserstein1D, lambda: (rand(2, 5), rand(2, 5, seed=1), 2.0), "Sorted samples, any p from 1.", second="refused", more=[lambda: (rand(4), rand(4, seed=1), 1.0), lambda: (rand(3, 1), rand(3, 1, seed=1), 3.5)], loose16=True),
    case("sinkhorn_plan", SinkhornPlan, lambda: (uniform(3, 4), *marginals(3, 4), 0.4, 8), "Marginals of equal sums; the rounds are replayed in backward.", second="refused", more=[lambda: (uniform(1, 1), *marginals(1, 1))]),
    case("isotonic_regression", IsotonicRegression, lambda: (rand(2, 6),), "Blocks by pooling in NumPy, averages in backward.", more=[lambda: (rand(1),), lambda: (rand(0, 3),)], loose16=True),
    case("soft_dtw", SoftDTW, lambda: (uniform(4, 3), 0.7), "Dynamic programme, slow on purpose.", second="refused", more=[lambda: (uniform(1, 1),), lambda: (uniform(1, 3), 0.2)]),
]
