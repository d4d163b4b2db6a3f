"""Sequence losses, scans and recurrent cells."""
from support import *


def _soft_min(a, b, c, gamma):
    s = torch.stack([a, b, c]) / -gamma
    return -gamma * torch.logsumexp(s, 0)


class SoftDTW(Function):
    """Soft dynamic time warping of a distance matrix."""

    @staticmethod
    def forward(ctx, dist, gamma):
        n, m = dist.shape
        r = dist.new_full((n + 2, m + 2), float("inf"))
        r[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r[i, j] = dist[i - 1, j - 1] + _soft_min(r[i - 1, j - 1], r[i - 1, j], r[i, j - 1], gamma)
        ctx.save_for_backward(dist, r)
        ctx.gamma = gamma
        return r[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        dist, r = ctx.saved_tensors
        n, m = dist.shape
        d = dist.new_zeros(n + 2, m + 2)
        d[1:n + 1, 1:m + 1] = dist
        r = r.clone()
        r[n + 1, :] = r[:, m + 1] = float("-inf")
        r[n + 1, m + 1] = r[n, m]
        e = torch.zeros_like(d)
        e[n + 1, m + 1] = 1
        for j in range(m, 0, -1):
            for i in range(n, 0, -1):
                a = torch.exp(r[i + 1, j] - r[i, j] - d[i + 1, j])
                b = torch.exp(r[i, j + 1] - r[i, j] - d[i, j + 1])
                c = torch.exp(r[i + 1, j + 1] - r[i, j] - d[i + 1, j + 1])
                e[i, j] = e[i + 1, j] * a + e[i, j + 1] * b + e[i + 1, j + 1] * c
        return grad_output * e[1:n + 1, 1:m + 1], None


def soft_dtw(dist, gamma=1.0):
    return SoftDTW.apply(dist, gamma)


class CTCFunction(Function):
    """CTC loss summed over the batch; log-probabilities (T, N, C).  The gradient is
    computed together with the loss, as the native bindings do."""

    @staticmethod
    def forward(ctx, log_probs, targets, input_lengths, target_lengths):
        with torch.enable_grad():
            leaf = log_probs.detach().requires_grad_()
            loss = CTCFunction._forward_sum(leaf, targets, input_lengths, target_lengths)
        grad, = torch.autograd.grad(loss, leaf)
        ctx.save_for_backward(grad)
        return loss.detach()

    @staticmethod
    def _forward_sum(lp, targets, input_lengths, target_lengths):
        total = 0
        for n in range(lp.size(1)):
            lab = [0]
            for c in targets[n][:target_lengths[n]]:
                lab += [int(c), 0]
            neg = lp.new_full((), -1e30)
            a = [lp[0, n, c] for c in lab[:2]] + [neg] * (len(lab) - 2)
            for t in range(1, input_lengths[n]):
                new = []
                for s, c in enumerate(lab):
                    terms = [a[s]] + ([a[s - 1]] if s else [])
                    if s > 1 and c != 0 and c != lab[s - 2]:
                        terms.append(a[s - 2])
                    new.append(torch.logsumexp(torch.stack(terms), 0) + lp[t, n, c])
                a = new
            total = total - torch.logsumexp(torch.stack(a[-2:]), 0)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grad, = ctx.saved_tensors
        return grad, None, None, None


def _ctc_inputs():
    lp = torch.log_softmax(randn(4, 2, 3, grad=False), -1).requires_grad_()
    return lp, [[1, 2], [2, 1]], [4, 4], [2, 1]


def _ctc_scaled():
    a, b = copies(_ctc_inputs()), copies(_ctc_inputs())
    CTCFunction.apply(*a).backward()
    (CTCFunction.apply(*b) * 2).backward()
    return close(a[0].grad, b[0].grad)


class SelectiveScan(Function):
    """h_t = a_t h_{t-1} + x_t along dimension 1 of (B, T, D), h before the start being zero."""

    @staticmethod
    def forward(ctx, a, x):
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.size(1)):
            h = a[:, t] * h + x[:, t]
            out.append(h)
        h = torch.stack(out, 1)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, h = ctx.saved_tensors
        carry, gx = torch.zeros_like(h[:, 0]), torch.empty_like(h)
        for t in range(h.size(1) - 1, -1, -1):
            gx[:, t] = grad_output[:, t] + carry
            carry = a[:, t - 1] * gx[:, t] if t else carry
        ga = None
        if ctx.needs_input_grad[0]:
            ga = torch.cat([torch.zeros_like(h[:, :1]), gx[:, 1:] * h[:, :-1]], 1)
        return ga, gx


class GRUBlend(Function):
    """Final blend of a GRU cell, h' = z h + (1 - z) n, from gate logits."""

    @staticmethod
    def forward(ctx, h, zlogit, nlogit):
        ctx.save_for_backward(h, zlogit, nlogit)
        z, n = torch.sigmoid(zlogit), torch.tanh(nlogit)
        return n + z * (h - n)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        h, zlogit, nlogit = [t.float() for t in ctx.saved_tensors]
        g = grad_output.float()
        z, n = torch.sigmoid(zlogit), torch.tanh(nlogit)
        grads = g * z, g * (h - n) * z * (1 - z), g * (1 - z) * (1 - n * n)
        return tuple(v.to(grad_output.dtype) for v in grads)


def _gru_precision():
    def plain(h, a, b):
        n = torch.tanh(b)
        return n + torch.sigmoid(a) * (h - n)

    args = randn(8), randn(8, seed=1), randn(8, seed=2)
    got, cots, _ = analytic(GRUBlend, args)
    want, _, _ = analytic(plain, args, cots)
    return not all_close(got, want, rtol=1e-11, atol=1e-13)


@torch.library.custom_op("faultyops::masked_mean_pool", mutates_args=())
def masked_mean_pool(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Mean over the valid time steps of (B, T, D) given lengths."""
    mask = torch.arange(x.size(1)) < lengths[:, None]
    return (x * mask.unsqueeze(-1)).sum(1) / lengths[:, None].to(x.dtype)


@masked_mean_pool.register_fake
def _(x, lengths):
    return x.new_empty(x.size(0), x.size(2))


def _pool_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.t = inputs[0].size(1)


def _pool_backward(ctx, grad):
    lengths, = ctx.saved_tensors
    g = grad / lengths[:, None].to(grad.dtype)
    return g.unsqueeze(1).expand(-1, ctx.t, -1), None


masked_mean_pool.register_autograd(_pool_backward, setup_context=_pool_setup)


class FusedProjection(Function):
    """tanh(x w^T + b) for the gates of a recurrent cell."""

    @staticmethod
    def forward(ctx, x, w, b):
        y = torch.tanh(F.linear(x, w, b))
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, w, y = ctx.saved_tensors
        g = grad_output * (1 - y * y)
        gx = g.mm(w) if ctx.needs_input_grad[0] else None
        gw = g.t().mm(x) if ctx.needs_input_grad[1] else None
        gb = g.sum(0) if ctx.needs_input_grad[2] else None
        return gx, gw, gb


def _projection_autocast():
    x, w, b = (t.detach().float().requires_grad_() for t in (randn(3, 4), randn(2, 4, seed=1), randn(2, seed=2)))
    with torch.autocast("cpu", torch.bfloat16):
        y = FusedProjection.apply(x, w, b)
    return raises(lambda: y.sum().backward(), "dtype")


class LSTMPointwise(Function):
    """Pointwise part of an LSTM cell: gate logits (N, 4 H) and the cell state to (h, c)."""

    @staticmethod
    def forward(ctx, gates, c0):
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c0 + torch.sigmoid(i) * torch.tanh(g)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, c0, c)
        return torch.sigmoid(o) * torch.tanh(c), c

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_h, grad_c):
        gates, c0, c = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o, t = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o), torch.tanh(c)
        gc_ = grad_c + grad_h * o * (1 - t * t)
        gg = torch.cat([gc_ * g * i * (1 - i), gc_ * c0 * f * (1 - f), gc_ * i * (1 - g * g),
                        grad_h * t * o * (1 - o)], 1)
        return gg, gc_ * f


def _lstm_one_output():
    h, _ = LSTMPointwise.apply(randn(2, 8), randn(2, 2, seed=1))
    return raises(lambda: h.sum().backward(), kind=TypeError)


@torch.library.custom_op("faultyops::discounted_return", mutates_args=())
def discounted_return(reward: torch.Tensor, gamma: float) -> torch.Tensor:
    """R_t = r_t + gamma R_{t+1} along the last dimension."""
    out = torch.empty_like(reward, memory_format=torch.contiguous_format)
    run_ = torch.zeros_like(reward[..., 0])
    for t in range(reward.size(-1) - 1, -1, -1):
        run_ = reward[..., t] + gamma * run_
        out[..., t] = run_
    return out


@discounted_return.register_fake
def _(reward, gamma):
    return torch.empty_like(reward, memory_format=torch.contiguous_format)


def _discount_setup(ctx, inputs, output):
    ctx.gamma = inputs[1]
    ctx.shape = inputs[0].shape


def _discount_backward(ctx, grad):
    flat = grad.view(-1, ctx.shape[-1])
    acc, out = torch.zeros_like(flat[:, 0]), []
    for t in range(flat.size(1)):
        acc = flat[:, t] + ctx.gamma * acc
        out.append(acc)
    return torch.stack(out, 1).view(ctx.shape), None


discounted_return.register_autograd(_discount_backward, setup_context=_discount_setup)


def _discount_layout():
    r = randn(2, 3, 4)
    c = randn(3, 2, 4, seed=1, grad=False).transpose(0, 1)
    return raises(lambda: torch.autograd.grad(discounted_return(r, 0.9), r, c), "view")


class LinearChainPartition(Function):
    """Log-partition of a chain with emissions (T, K) and transitions (K, K)."""

    @staticmethod
    def _alpha(emit, trans):
        a = [emit[0]]
        for t in range(1, emit.size(0)):
            a.append(torch.logsumexp(a[-1][:, None] + trans, 0) + emit[t])
        return a

    @staticmethod
    def forward(ctx, emit, trans):
        ctx.save_for_backward(emit, trans)
        return torch.logsumexp(LinearChainPartition._alpha(emit, trans)[-1], 0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        emit, trans = ctx.saved_tensors
        alpha = LinearChainPartition._alpha(emit, trans)
        logz = torch.logsumexp(alpha[-1], 0)
        beta = torch.zeros_like(emit[0])
        ge, gt = torch.empty_like(emit), torch.zeros_like(trans)
        ge[-1] = torch.exp(alpha[-1] - logz)
        for t in range(emit.size(0) - 1, 0, -1):
            pair = alpha[t - 1][:, None] + trans + (emit[t] + beta)[None] - logz
            gt = gt + pair.exp()
            beta = torch.logsumexp(trans.t() + (emit[t] + beta)[None], 1)
            ge[t - 1] = torch.exp(alpha[t - 1] + beta - logz)
        return grad_output * ge, grad_output * gt


CASES = [
    {"name": "soft_dtw_gamma", "target": soft_dtw, "inputs": lambda: (rand(3, 4),),
     "fault": "The exponents of the backward recursion are not divided by gamma.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(soft_dtw, (rand(3, 4), 0.3))},
    {"name": "ctc_cotangent_ignored", "target": CTCFunction, "inputs": _ctc_inputs,
     "fault": "The gradient computed in forward is returned without multiplying by grad_output.",
     "kind": "wrong", "visible": True, "evidence": _ctc_scaled},
    {"name": "selective_scan_gate_index", "target": SelectiveScan,
     "inputs": lambda: (rand(2, 4, 3, lo=0.3, hi=0.9), randn(2, 4, 3, seed=1)),
     "fault": "The adjoint is carried with a[t - 1], not with a[t], wrong for gates that change with time.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(SelectiveScan, (rand(1, 3, 1), randn(1, 3, 1, seed=1)))},
    {"name": "gru_blend_single_precision", "target": GRUBlend,
     "inputs": lambda: (randn(4), randn(4, seed=1), randn(4, seed=2)),
     "fault": "backward computes in single precision whatever the dtype, so double gradients are good to 1e-7 only.",
     "kind": "wrong", "visible": False, "evidence": _gru_precision},
    {"name": "masked_mean_pool_padding", "target": masked_mean_pool,
     "inputs": lambda: (randn(2, 3, 2), torch.tensor([3, 3])),
     "fault": "Padded time steps receive a gradient like the valid ones.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(masked_mean_pool, (randn(2, 3, 2), torch.tensor([3, 1])))},
    {"name": "fused_projection_autocast", "target": FusedProjection,
     "inputs": lambda: (randn(3, 4), randn(2, 4, seed=1), randn(2, seed=2)),
     "fault": "Without custom_fwd and custom_bwd the dtypes do not match in backward after a forward under autocast.",
     "kind": "fragile", "visible": False, "evidence": _projection_autocast},
    {"name": "lstm_pointwise_unused_output", "target": LSTMPointwise, "inputs": lambda: (randn(2, 8), randn(2, 2, seed=1)),
     "fault": "Gradients are not materialised and None is not handled, so backward fails if only one output is used.",
     "kind": "fragile", "visible": False, "evidence": _lstm_one_output},
    {"name": "discounted_return_view", "target": discounted_return, "inputs": lambda: (randn(2, 3, 4), 0.9),
     "fault": "backward calls view on the cotangent and fails when it is not contiguous.",
     "kind": "fragile", "visible": False, "evidence": _discount_layout},
    {"name": "linear_chain_transposed_beta", "target": LinearChainPartition,
     "inputs": lambda: (randn(4, 2), tensor([[0.5, -0.3], [-0.3, 0.2]])),
     "fault": "The backward messages use the transposed transition matrix, wrong unless it is symmetric.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(LinearChainPartition, (randn(4, 2), tensor([[0.5, -0.3], [0.9, 0.2]])))},
]
