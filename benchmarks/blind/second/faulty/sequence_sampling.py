"""Recurrent scans, soft ranking, optimal transport and reparametrised samplers."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class SelectiveScan(Function):
    """h_t = a_t * h_{t-1} + b_t * x_t, y_t = <c_t, h_t>; shapes (T, N), x and y (T,)."""

    @staticmethod
    def forward(ctx, a, b, c, x):
        h, hs = torch.zeros_like(a[0]), []
        for t in range(a.size(0)):
            h = a[t] * h + b[t] * x[t]
            hs.append(h)
        hs = torch.stack(hs)
        ctx.save_for_backward(a, b, c, x, hs)
        return (c * hs).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, c, x, hs = ctx.saved_tensors
        ga, gb, gx = torch.zeros_like(a), torch.zeros_like(b), torch.zeros_like(x)
        gh = torch.zeros_like(a[0])
        for t in range(a.size(0) - 1, -1, -1):
            gh = gh + g[t] * c[t]
            ga[t] = gh * hs[t]
            gb[t] = gh * x[t]
            gx[t] = (gh * b[t]).sum()
            gh = gh * a[t]
        return ga, gb, g[:, None] * hs, gx


class GRUCell(Function):
    """Pointwise part of a GRU: gates from pre-activations (B, 3H) of input and hidden state."""

    @staticmethod
    def _gates(gi, gh):
        ir, iz, i_n = gi.chunk(3, 1)
        hr, hz, hn = gh.chunk(3, 1)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        return r, z, torch.tanh(i_n + r * hn), hn

    @staticmethod
    def forward(gi, gh, h):
        r, z, n, _ = GRUCell._gates(gi, gh)
        return (1 - z) * n + z * h

    @staticmethod
    def setup_context(ctx, inputs, output):
        gi, gh, h = inputs
        ctx.save_for_backward(gi, gh, h)

    @staticmethod
    def backward(ctx, g):
        gi, gh, h = ctx.saved_tensors
        r, z, n, hn = GRUCell._gates(gi, gh)
        dn = g * (1 - z) * (1 - n * n)
        dz = g * (h - n) * z * (1 - z)
        dr = dn * hn * r * (1 - r)
        return torch.cat((dr, dz, dn), 1), torch.cat((dr, dz, dn), 1), g * z


class LSTMCell(Function):
    """Pointwise part of an LSTM, returns the new hidden and cell states."""

    @staticmethod
    def forward(ctx, gates, c):
        ctx.set_materialize_grads(False)
        i, f, g, o = gates.chunk(4, 1)
        c_new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h_new = torch.sigmoid(o) * torch.tanh(c_new)
        ctx.save_for_backward(gates, c, c_new)
        return h_new, c_new

    @staticmethod
    def backward(ctx, gh, gc):
        gates, c, c_new = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        tc = torch.tanh(c_new)
        d = gc + gh * o * (1 - tc * tc)
        gg = torch.cat((d * g * i * (1 - i), d * c * f * (1 - f), d * i * (1 - g * g), gh * tc * o * (1 - o)), 1)
        return gg, d * f


class SoftRank(Function):
    """rank_i = 1 + sum_{j != i} sigmoid((x_i - x_j) / tau)."""

    @staticmethod
    def forward(x, tau):
        return 0.5 + torch.sigmoid((x[:, None] - x[None, :]) / tau).sum(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, tau = inputs
        ctx.save_for_backward(x)
        ctx.tau = tau

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid((x[:, None] - x[None, :]) / ctx.tau)
        w = s * (1 - s) / ctx.tau
        w = w - torch.diag(w.diagonal())
        return g * w.sum(1), None


class SinkhornCost(Function):
    """Entropic transport cost min <P, C> - eps H(P) between two histograms.

    By the envelope theorem the gradient of the cost matrix is the optimal plan.
    """

    @staticmethod
    def forward(ctx, cost, a, b, eps, iters):
        f, g = torch.zeros_like(a), torch.zeros_like(b)
        for _ in range(iters):
            f = eps * (a.log() - torch.logsumexp((g[None, :] - cost) / eps, 1))
            g = eps * (b.log() - torch.logsumexp((f[:, None] - cost) / eps, 0))
        plan = torch.exp((f[:, None] + g[None, :] - cost) / eps)
        ctx.save_for_backward(plan)
        return (plan * cost).sum() + eps * (plan * (plan.log() - 1)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (plan,) = ctx.saved_tensors
        plan = plan / plan.sum(dim=1, keepdim=True)
        return grad * plan, None, None, None, None


class KumaraswamySample(Function):
    """Reparametrised sample (1 - (1 - u)^(1/b))^(1/a) for uniform u."""

    @staticmethod
    def forward(a, b, u):
        return (1 - (1 - u) ** (1 / b)) ** (1 / a)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, u = inputs
        ctx.save_for_backward(a, b, u)

    @staticmethod
    def backward(ctx, g):
        a, b, u = ctx.saved_tensors
        inner = (1 - u) ** (1 / b)
        base = 1 - inner
        x = base ** (1 / a)
        ga = -g * x * base.log() / a ** 2
        gb = g * x / (a * base) * inner * (1 - u).log() / b
        return ga, gb, None


class RelaxedCategorical(Function):
    """softmax((log p + gumbel) / tau) with a learnable temperature."""

    @staticmethod
    def forward(ctx, logp, gumbel, tau):
        y = torch.softmax((logp + gumbel) / tau, -1)
        ctx.save_for_backward(logp, gumbel, tau)
        return y

    @staticmethod
    def backward(ctx, g):
        logp, gumbel, tau = ctx.saved_tensors
        y = torch.softmax((logp + gumbel) / tau, -1)
        gz = y * (g - (g * y).sum(-1, keepdim=True))
        glogp = gz / tau if ctx.needs_input_grad[0] else None
        gtau = -(gz * logp).sum() / tau ** 2 if ctx.needs_input_grad[2] else None
        return glogp, None, gtau


class DiscountedReturn(Function):
    """R_t = r_t + gamma R_{t+1} along the last axis of (..., T)."""

    @staticmethod
    def forward(ctx, rewards, gamma):
        ctx.gamma = gamma
        ctx.shape = rewards.shape
        r = rewards.reshape(-1, rewards.size(-1))
        out, acc = torch.empty_like(r), torch.zeros_like(r[:, 0])
        for t in range(r.size(1) - 1, -1, -1):
            acc = r[:, t] + gamma * acc
            out[:, t] = acc
        return out.view(ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g = g.view(-1, ctx.shape[-1])
        out, acc = torch.empty_like(g), torch.zeros_like(g[:, 0])
        for t in range(g.size(1)):
            acc = g[:, t] + ctx.gamma * acc
            out[:, t] = acc
        return out.view(ctx.shape), None


def only_hidden_used():
    args = (rnd(2, 8, seed=6), rnd(2, 2, seed=7))
    h, _ = LSTMCell.apply(*args)
    return ok(LSTMCell, args) and raises(lambda: h.sum().backward(), TypeError)


def transposed_cotangent():
    r = rnd(2, 3, 4, seed=3)
    out = DiscountedReturn.apply(r, 0.9)
    return raises(lambda: (out.transpose(0, 1) * rnd(3, 2, 4, grad=False)).sum().backward(), RuntimeError)


def hist(n, seed):
    return torch.softmax(rnd(n, seed=seed, grad=False), 0)


CASES = [
    case("sequence_selective_scan_decay", SelectiveScan,
         lambda: (uni(4, 2, seed=1), rnd(4, 2, seed=2), rnd(4, 2, seed=3), rnd(4, seed=4)),
         "The decay gradient multiplies by the state after the step in place of the one before."),
    case("sequence_gru_cell_reset", GRUCell, lambda: (rnd(2, 6, seed=5), rnd(2, 6, seed=6), rnd(2, 2, seed=7)),
         "The hidden pre-activation of the candidate gets the gradient without the reset gate that multiplies it."),
    case("sequence_lstm_cell_none", LSTMCell, lambda: (rnd(2, 8, seed=8), rnd(2, 2, seed=9)),
         "Gradients are not materialised, yet backward computes with them as if both outputs were always used.",
         visible=False, evidence=only_hidden_used, where="only one of the two outputs enters the loss"),
    case("ranking_soft_rank_others", SoftRank, lambda: (rnd(5, seed=10, dtype=F32), 0.7),
         "The effect of a value on the ranks of the others is missing."),
    case("transport_sinkhorn_rows", SinkhornCost, lambda: (uni(3, 4, seed=11), hist(3, 12), hist(4, 13), 0.5, 400),
         "The plan is normalised to rows that sum to one before it is returned as gradient."),
    case("sampler_kumaraswamy_b", KumaraswamySample,
         lambda: (uni(5, seed=14, lo=.5, hi=2.), uni(5, seed=15, lo=.5, hi=2.), uni(5, seed=16, lo=.1, hi=.9, grad=False)),
         "The gradient of b divides by b where it should divide by its square."),
    case("sampler_relaxed_categorical_tau", RelaxedCategorical,
         lambda: (rnd(2, 4, seed=17), rnd(2, 4, seed=18, grad=False), ten(0.8)),
         "The temperature gradient leaves the Gumbel noise out of the scaled logits."),
    case("sequence_discounted_return_view", DiscountedReturn, lambda: (rnd(2, 3, 4, seed=19), 0.9),
         "Backward calls view on the incoming gradient, which fails for one that is not contiguous.",
         kind="fragile", visible=False, evidence=transposed_cotangent),
]
