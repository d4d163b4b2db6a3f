"""Layers that trade computation for memory."""
import torch
import torch.nn as nn

from support import *


def _residual(x, w):
    return torch.tanh(x @ w)


class ReversibleBlock(Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1).  Only the outputs are kept, the inputs are rebuilt."""

    @staticmethod
    def forward(ctx, x1, x2, wf, wg):
        y1 = x1 + _residual(x2, wf)
        y2 = x2 + _residual(y1, wg)
        ctx.save_for_backward(y1, y2, wf, wg)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2, wf, wg = ctx.saved_tensors
        need_wf, need_wg = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            y1_ = y1.detach().requires_grad_()
            wg_ = wg.detach().requires_grad_(need_wg)
            gy1 = _residual(y1_, wg_)
        got = torch.autograd.grad(gy1, (y1_, wg_) if need_wg else (y1_,), g2)
        d1 = g1 + got[0]
        dwg = got[1] if need_wg else None
        if not (ctx.needs_input_grad[1] or need_wf):
            return (d1 if ctx.needs_input_grad[0] else None), None, None, dwg
        with torch.enable_grad():
            x2 = (y2 - gy1.detach()).requires_grad_()
            wf_ = wf.detach().requires_grad_(need_wf)
            fx2 = _residual(x2, wf_)
        got = torch.autograd.grad(fx2, (x2, wf_) if need_wf else (x2,), d1)
        return (d1 if ctx.needs_input_grad[0] else None,
                g2 + got[0] if ctx.needs_input_grad[1] else None,
                got[1] if need_wf else None, dwg)


class CheckpointFunction(Function):
    """Runs ``fn`` without a graph and again in backward, with the random state of the first run."""

    @staticmethod
    def forward(ctx, fn, preserve_rng, *args):
        ctx.fn = fn
        ctx.preserve_rng = preserve_rng
        if preserve_rng:
            ctx.rng_state = torch.get_rng_state()
            ctx.cuda = sorted({a.get_device() for a in args if isinstance(a, torch.Tensor) and a.is_cuda})
            ctx.cuda_state = [torch.cuda.get_rng_state(d) for d in ctx.cuda]
        ctx.tensor_at = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        ctx.plain = [None if isinstance(a, torch.Tensor) else a for a in args]
        ctx.save_for_backward(*[args[i] for i in ctx.tensor_at])
        with torch.no_grad():
            return fn(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        args = list(ctx.plain)
        needs = ctx.needs_input_grad[2:]
        for i, t in zip(ctx.tensor_at, ctx.saved_tensors):
            args[i] = t.detach().requires_grad_(needs[i])
        devices = ctx.cuda if ctx.preserve_rng else []
        with torch.random.fork_rng(devices=devices, enabled=ctx.preserve_rng), torch.enable_grad():
            if ctx.preserve_rng:
                torch.set_rng_state(ctx.rng_state)
                for d, state in zip(ctx.cuda, ctx.cuda_state):
                    torch.cuda.set_rng_state(state, d)
            out = ctx.fn(*args)
        at = [i for i in ctx.tensor_at if needs[i]]
        got = torch.autograd.grad(out, [args[i] for i in at], grad_output, allow_unused=True)
        grads = [None] * len(args)
        for i, g in zip(at, got):
            grads[i] = g
        return (None, None, *grads)


def _dropout_mlp(x, w1, w2, p):
    return F.dropout(torch.relu(x @ w1), p, training=True) @ w2


def checkpointed_mlp(x, w1, w2, p=0.5):
    """Two-layer perceptron with dropout between the layers, recomputed in backward."""
    return CheckpointFunction.apply(_dropout_mlp, p > 0, x, w1, w2, p)


class SeedDropout(Function):
    """Dropout that keeps a seed in place of the mask."""

    @staticmethod
    def _mask(shape, p, seed, dtype, device):
        gen = torch.Generator(device=device).manual_seed(seed)
        keep = torch.rand(shape, generator=gen, device=device) >= p
        return keep.to(dtype) / (1 - p)

    @staticmethod
    def forward(ctx, x, p, training):
        ctx.active = training and p > 0
        if not ctx.active:
            return x.clone()
        ctx.p = p
        ctx.seed = int(torch.randint(2 ** 31, ()))
        return x * SeedDropout._mask(x.shape, p, ctx.seed, x.dtype, x.device)

    @staticmethod
    def backward(ctx, grad_output):
        if not ctx.active:
            return grad_output, None, None
        mask = SeedDropout._mask(grad_output.shape, ctx.p, ctx.seed, grad_output.dtype, grad_output.device)
        return grad_output * mask, None, None


class InvertibleMix(Function):
    """y = x W and log|det W| for a flow's invertible 1x1 convolution; W must be square."""

    @staticmethod
    def forward(ctx, x, w):
        if w.dim() != 2 or w.size(0) != w.size(1):
            raise ValueError("the mixing matrix must be square")
        ctx.save_for_backward(x, w)
        ctx.set_materialize_grads(False)
        return x @ w, torch.linalg.slogdet(w).logabsdet

    @staticmethod
    def backward(ctx, gy, glogdet):
        x, w = ctx.saved_tensors
        gx = gw = None
        if gy is not None and ctx.needs_input_grad[0]:
            gx = gy @ w.t()
        if ctx.needs_input_grad[1]:
            d = w.size(0)
            if gy is not None:
                gw = x.reshape(-1, d).t() @ gy.reshape(-1, d)
            if glogdet is not None:
                part = glogdet * torch.linalg.inv(w).t()
                gw = part if gw is None else gw + part
        return gx, gw


class BitMaskReLU(Function):
    """ReLU that saves one bit for each entry."""

    @staticmethod
    def forward(ctx, x):
        pos = x > 0
        bits = np.packbits(pos.cpu().numpy().reshape(-1))
        ctx.save_for_backward(torch.from_numpy(bits))
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx, grad_output):
        bits, = ctx.saved_tensors
        pos = np.unpackbits(bits.numpy(), count=grad_output.numel()).astype(bool)
        mask = torch.from_numpy(pos).to(grad_output.device).view(grad_output.shape)
        return grad_output * mask


class FusedLinearCrossEntropy(Function):
    """Mean cross entropy of ``x @ w.T`` in row chunks.  The gradients are formed chunk by chunk
    in forward, where the logits are at hand, and scaled in backward."""

    @staticmethod
    def forward(ctx, x, w, labels, chunk, training):
        need_x, need_w = (training and need for need in ctx.needs_input_grad[:2])
        gx = torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else None
        gw = torch.zeros_like(w, memory_format=torch.contiguous_format) if need_w else None
        loss = x.new_zeros(())
        n = x.size(0)
        for i in range(0, n, chunk):
            rows = slice(i, i + chunk)
            logits = x[rows] @ w.t()
            lse = torch.logsumexp(logits, 1, keepdim=True)
            lab = labels[rows, None]
            loss = loss + (lse - logits.gather(1, lab)).sum()
            if need_x or need_w:
                d = torch.exp(logits - lse)
                d.scatter_add_(1, lab, torch.full_like(lse, -1))
                d /= n
                if need_x:
                    gx[rows] = d @ w
                if need_w:
                    gw += d.t() @ x[rows]
        ctx.save_for_backward(gx, gw)
        return loss / n

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        gx, gw = ctx.saved_tensors
        return (None if gx is None else gx * grad_output,
                None if gw is None else gw * grad_output, None, None, None)


def fused_linear_cross_entropy(x, w, labels, chunk=1024):
    """Without a graph to build (``no_grad``) only the loss is formed."""
    return FusedLinearCrossEntropy.apply(x, w, labels, chunk, torch.is_grad_enabled())


class LeapfrogFunction(Function):
    """Leapfrog steps for H = p^2/2 + k q^2/2 + q^4/4, reversed in backward instead of stored."""

    @staticmethod
    def _force(q, k):
        return -(k * q + q ** 3)

    @staticmethod
    def forward(ctx, q, p, k, dt, steps):
        ctx.dt, ctx.steps = dt, steps
        for _ in range(steps):
            p = p + 0.5 * dt * LeapfrogFunction._force(q, k)
            q = q + dt * p
            p = p + 0.5 * dt * LeapfrogFunction._force(q, k)
        ctx.save_for_backward(q, p, k)
        return q, p

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gp):
        q, p, k = ctx.saved_tensors
        dt = ctx.dt
        gk = torch.zeros_like(k)
        for _ in range(ctx.steps):
            gk = gk - 0.5 * dt * (gp * q).sum()
            gq = gq - 0.5 * dt * gp * (k + 3 * q * q)
            p = p - 0.5 * dt * LeapfrogFunction._force(q, k)
            gp = gp + dt * gq
            q = q - dt * p
            gk = gk - 0.5 * dt * (gp * q).sum()
            gq = gq - 0.5 * dt * gp * (k + 3 * q * q)
            p = p - 0.5 * dt * LeapfrogFunction._force(q, k)
        need = ctx.needs_input_grad
        return (gq if need[0] else None, gp if need[1] else None, gk if need[2] else None, None, None)


def leapfrog(q, p, k, dt=0.1, steps=5):
    if steps < 1:
        raise ValueError("at least one step")
    return LeapfrogFunction.apply(q, p, k, float(dt), int(steps))


class SegmentedRNN(Function):
    """tanh recurrence h = tanh(x_t + h U) with the state kept every ``every`` steps only."""

    @staticmethod
    def forward(ctx, x, h0, u, every):
        h, kept = h0, []
        for t in range(x.size(0)):
            if t % every == 0:
                kept.append(h)
            h = torch.tanh(x[t] + h @ u)
        ctx.every = every
        ctx.save_for_backward(x, u, *kept)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, gh):
        x, u, *kept = ctx.saved_tensors
        need_x, need_h, need_u = ctx.needs_input_grad[:3]
        gx = torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else None
        gu = torch.zeros_like(u) if need_u else None
        for s in range(len(kept) - 1, -1, -1):
            lo = s * ctx.every
            hs = [kept[s]]
            for t in range(lo, min(lo + ctx.every, x.size(0))):
                hs.append(torch.tanh(x[t] + hs[-1] @ u))
            for t in range(lo + len(hs) - 2, lo - 1, -1):
                ga = gh * (1 - hs[t - lo + 1] ** 2)
                if need_x:
                    gx[t] = ga
                if need_u:
                    gu = gu + hs[t - lo].t() @ ga
                gh = ga @ u.t()
        return gx, gh if need_h else None, gu, None


class FrozenLinear(Function):
    """Linear map with a frozen weight: the activation is not kept at all."""

    @staticmethod
    def forward(ctx, x, weight):
        if ctx.needs_input_grad[1]:
            raise NotImplementedError("FrozenLinear keeps no activations, so the weight cannot "
                                      "require a gradient; call weight.detach()")
        ctx.save_for_backward(weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        weight, = ctx.saved_tensors
        return grad_output @ weight, None


CASES = [
    case("reversible_block", ReversibleBlock,
         lambda: (randn(3, 4, seed=1), randn(3, 4, seed=2), randn(4, 4, seed=3, scale=0.5), randn(4, 4, seed=4, scale=0.5)),
         "inputs are rebuilt from the outputs to within rounding"),
    case("checkpointed_mlp_rng", checkpointed_mlp,
         lambda: (randn(4, 3, seed=5), randn(3, 6, seed=6), randn(6, 2, seed=7), 0.4),
         "random in forward, the same draw again in backward by the restored state"),
    case("seed_dropout", SeedDropout, lambda: (randn(4, 6, seed=8), 0.3, True),
         "draws a seed from the global generator; saves no tensor"),
    case("invertible_mix_logdet", InvertibleMix,
         lambda: (randn(5, 3, seed=9), (torch.eye(3, dtype=torch.float64)
                  + randn(3, 3, seed=10, grad=False, scale=0.2)).requires_grad_()),
         "two outputs; log-determinant does not depend on x"),
    case("bit_mask_relu", BitMaskReLU, lambda: (randn(3, 7, seed=11),), "the mask is packed in bytes"),
    case("fused_linear_cross_entropy", fused_linear_cross_entropy,
         lambda: (randn(5, 4, seed=12), randn(6, 4, seed=13), torch.tensor([0, 5, 2, 2, 1]), 2),
         "gradients are formed in forward and only scaled in backward, without overwriting them"),
    case("leapfrog_reversible", leapfrog,
         lambda: (randn(4, seed=14), randn(4, seed=15), torch.tensor(1.3, dtype=torch.float64, requires_grad=True), 0.1, 5),
         "time-reversible, so the path is walked back"),
    case("segmented_rnn", SegmentedRNN,
         lambda: (randn(7, 2, 3, seed=16), torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), randn(3, 3, seed=17, scale=0.5), 3),
         "zero initial state; the last segment is short"),
    case("frozen_linear", FrozenLinear, lambda: (randn(2, 3, 4, seed=18), randn(5, 4, seed=19, grad=False)),
         "refuses aloud a weight that requires a gradient"),
]
