"""Samplers, alignment recursions and optimal transport."""
import torch
import torch.nn as nn

from support import *


class GumbelHard(Function):
    """One-hot Gumbel-max sample; the backward is that of the tempered softmax of the same draw."""

    @staticmethod
    def forward(ctx, logits, tau):
        noise = -torch.log(torch.empty_like(logits).exponential_())
        soft = torch.softmax((logits + noise) / tau, -1)
        ctx.tau = tau
        ctx.save_for_backward(soft)
        return torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True)) / ctx.tau, None


class BinaryConcrete(Function):
    """Relaxed Bernoulli gates stretched to (low, high) and clipped to [0, 1]."""

    @staticmethod
    def forward(ctx, log_alpha, beta, low, high):
        u = torch.rand_like(log_alpha).clamp(1e-6, 1 - 1e-6)
        logistic = torch.log(u) - torch.log1p(-u)
        ctx.save_for_backward(log_alpha, logistic)
        ctx.par = beta, low, high
        s = torch.sigmoid((logistic + log_alpha) / beta)
        return (s * (high - low) + low).clamp(0, 1)

    @staticmethod
    def backward(ctx, g):
        log_alpha, logistic = ctx.saved_tensors
        beta, low, high = ctx.par
        s = torch.sigmoid((logistic + log_alpha) / beta)
        raw = s * (high - low) + low
        inside = (raw > 0) & (raw < 1)
        return g * inside * s * (1 - s) * ((high - low) / beta), None, None, None


class SoftDTW(Function):
    """Soft dynamic time warping of a batch of cost matrices (B, N, M), smoothing gamma > 0."""

    @staticmethod
    def _table(D, gamma):
        b, n, m = D.shape
        R = D.new_full((b, n + 2, m + 2), float("inf"))
        R[:, 0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r = torch.stack([R[:, i - 1, j - 1], R[:, i - 1, j], R[:, i, j - 1]], -1)
                R[:, i, j] = D[:, i - 1, j - 1] - gamma * torch.logsumexp(-r / gamma, -1)
        return R

    @staticmethod
    def forward(ctx, D, gamma):
        if gamma <= 0:
            raise ValueError("gamma must be positive")
        R = SoftDTW._table(D, gamma)
        ctx.gamma = gamma
        ctx.save_for_backward(D, R)
        return R[:, -2, -2].clone()

    @staticmethod
    def backward(ctx, g):
        D, R = ctx.saved_tensors
        return _SoftDTWGrad.apply(D, R, g, ctx.gamma), None


class _SoftDTWGrad(Function):
    @staticmethod
    def forward(ctx, D, R, g, gamma):
        b, n, m = D.shape
        E = torch.zeros_like(R)
        E[:, n, m] = 1
        for i in range(n, 0, -1):
            for j in range(m, 0, -1):
                if i == n and j == m:
                    continue
                e = E[:, i, j]
                for di, dj in ((1, 0), (0, 1), (1, 1)):
                    if i + di <= n and j + dj <= m:
                        w = torch.exp((R[:, i + di, j + dj] - R[:, i, j] - D[:, i + di - 1, j + dj - 1]) / gamma)
                        e = e + E[:, i + di, j + dj] * w
                E[:, i, j] = e
        return E[:, 1:n + 1, 1:m + 1] * g[:, None, None]

    @staticmethod
    def backward(ctx, gg):
        raise NotImplementedError("SoftDTW cannot be differentiated twice")


class SinkhornValue(Function):
    """Entropic transport min <P, C> + eps sum P (log P - 1) with marginals a and b (positive,
    total one).  By the envelope theorem the gradients are the plan and the potentials."""

    @staticmethod
    def forward(ctx, C, a, b, eps, max_iter):
        for r in (a, b):
            if (r <= 0).any() or abs(float(r.sum()) - 1) > 1e-4:
                raise ValueError("the marginals must be positive and add up to one")
        la, lb = a.log(), b.log()
        f, g = torch.zeros_like(a), torch.zeros_like(b)
        tol = 50 * torch.finfo(C.dtype).eps
        for _ in range(max_iter):
            f = eps * (la - torch.logsumexp((g[None, :] - C) / eps, 1))
            new = eps * (lb - torch.logsumexp((f[:, None] - C) / eps, 0))
            gap = (new - g).abs().max()
            g = new
            if gap < tol:
                break
        else:
            raise RuntimeError(f"Sinkhorn has not converged after {max_iter} iterations")
        P = torch.exp((f[:, None] + g[None, :] - C) / eps)
        ctx.save_for_backward(P, f, g)
        return a @ f + b @ g - eps * P.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, go):
        P, f, g = ctx.saved_tensors
        need = ctx.needs_input_grad
        return (go * P if need[0] else None, go * (f - f.mean()) if need[1] else None,
                go * (g - g.mean()) if need[2] else None, None, None)


class CRFLogPartition(Function):
    """Log-partition of a linear chain: emissions (B, T, C), transitions (C, C), lengths >= 1.
    The backward gives the marginals."""

    @staticmethod
    def _alphas(em, tr, lengths):
        a = [em[:, 0]]      # lengths are at least one
        for t in range(1, em.size(1)):
            nxt = torch.logsumexp(a[-1][:, :, None] + tr, 1) + em[:, t]
            a.append(torch.where((t < lengths)[:, None], nxt, a[-1]))
        return a

    @staticmethod
    def forward(ctx, em, tr, lengths):
        if int(lengths.min()) < 1 or int(lengths.max()) > em.size(1):
            raise ValueError("lengths must be between 1 and the padded size")
        z = torch.logsumexp(CRFLogPartition._alphas(em, tr, lengths)[-1], 1)
        ctx.save_for_backward(em, tr, lengths, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        em, tr, lengths, z = ctx.saved_tensors
        padded = torch.arange(em.size(1), device=em.device) >= lengths[:, None]
        em = em.masked_fill(padded[..., None], 0)
        alphas = CRFLogPartition._alphas(em, tr, lengths)
        T = em.size(1)
        beta = torch.zeros_like(em[:, 0])
        gem, gtr = [None] * T, torch.zeros_like(tr)
        for t in range(T - 1, -1, -1):
            on = (t < lengths).to(em.dtype) * g
            gem[t] = torch.exp(alphas[t] + beta - z[:, None]) * on[:, None]
            if t:
                inner = beta + em[:, t]
                if ctx.needs_input_grad[1]:
                    pair = torch.exp(alphas[t - 1][:, :, None] + tr + inner[:, None, :] - z[:, None, None])
                    gtr = gtr + (pair * on[:, None, None]).sum(0)
                beta = torch.where((t < lengths)[:, None], torch.logsumexp(tr + inner[:, None, :], 2), beta)
        return (torch.stack(gem, 1) if ctx.needs_input_grad[0] else None,
                gtr if ctx.needs_input_grad[1] else None, None)


class Wasserstein1D(Function):
    """Squared 2-Wasserstein distance of equally many samples on the line, by sorting."""

    @staticmethod
    def forward(ctx, x, y):
        if x.shape != y.shape:
            raise ValueError("both sides need the same number of samples")
        ix = torch.argsort(x, dim=-1, stable=True)
        iy = torch.argsort(y, dim=-1, stable=True)
        ctx.save_for_backward(x, y, ix, iy)
        return (x.gather(-1, ix) - y.gather(-1, iy)).square().mean(-1)

    @staticmethod
    def backward(ctx, g):
        x, y, ix, iy = ctx.saved_tensors
        d = 2 * g.unsqueeze(-1) * (x.gather(-1, ix) - y.gather(-1, iy)) / x.size(-1)
        gx = torch.zeros_like(x).scatter(-1, ix, d) if ctx.needs_input_grad[0] else None
        gy = torch.zeros_like(y).scatter(-1, iy, -d) if ctx.needs_input_grad[1] else None
        return gx, gy


CASES = [
    case("gumbel_hard_straight_through", GumbelHard, lambda: (randn(4, 5, seed=3), 0.7),
         "hard sample forward, softmax of the same draw backward", True),
    case("binary_concrete_hard_gate", BinaryConcrete, lambda: (randn(4, 5, seed=4), 0.66, -0.1, 1.1),
         "random and clipped, gates at 0 or 1 get zero gradient"),
    case("soft_dtw", SoftDTW, lambda: (rand(2, 4, 3, seed=5), 0.5), "a loop over all cells in both passes"),
    case("sinkhorn_envelope", SinkhornValue,
         lambda: (rand(3, 4, seed=6), torch.softmax(randn(3, seed=7, grad=False), 0).requires_grad_(),
                  torch.softmax(randn(4, seed=8, grad=False), 0).requires_grad_(), 0.3, 2000),
         "marginals add up to one; potentials are fixed up to a constant, which is centred"),
    case("crf_log_partition", CRFLogPartition,
         lambda: (randn(3, 4, 3, seed=9), randn(3, 3, seed=10), torch.tensor([4, 1, 3])),
         "padding gets zero gradient"),
    case("wasserstein_1d", Wasserstein1D, lambda: (randn(2, 5, seed=11), randn(2, 5, seed=12)),
         "piecewise by the order of the samples"),
]
