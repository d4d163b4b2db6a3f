"""Invertible and memory-saving blocks, recurrent scans."""
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, same_shape, in_range, full_precision


class Replay(Function):
    """Checkpoint of a pure function of its tensors: the random state and autocast of forward are restored in backward."""

    @staticmethod
    def forward(ctx, run, *tensors):
        real_floating("Replay", *tensors)
        ctx.run = run
        kind = tensors[0].device.type
        ctx.cast = dict(device_type=kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
        ctx.save_for_backward(torch.get_rng_state(), *tensors)
        return run(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        state, *tensors = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast(**ctx.cast):
            torch.set_rng_state(state)
            leaves = [t.detach().requires_grad_(n) for t, n in zip(tensors, ctx.needs_input_grad[1:])]
            out = ctx.run(*leaves)
        wanted = [t for t in leaves if t.requires_grad]
        grads = iter(torch.autograd.grad(out, wanted, grad_out))
        return None, *[next(grads) if t.requires_grad else None for t in leaves]


def dropout_mlp(x, w1, w2):
    """What is replayed: two layers with dropout between them."""
    return F.dropout(torch.tanh(F.linear(x, w1)), 0.3) @ w2.t()


def replayed_mlp(x, w1, w2):
    return Replay.apply(dropout_mlp, x, w1, w2)


class ReversibleCoupling(Function):
    """y1 = x1 + tanh(x2 f), y2 = x2 + tanh(y1 g) (RevNet); the inputs are rebuilt from the outputs in backward."""

    @staticmethod
    def forward(ctx, x1, x2, f, g):
        real_floating("ReversibleCoupling", x1, x2, f, g)
        same_shape("ReversibleCoupling", x1, x2)
        if f.dim() != 2 or f.shape != (x1.shape[-1], x1.shape[-1]) or g.shape != f.shape:
            raise ValueError("ReversibleCoupling: square f and g of the last axis expected")
        with full_precision(x1):
            y1 = x1 + torch.tanh(x2 @ f)
            y2 = x2 + torch.tanh(y1 @ g)
        ctx.save_for_backward(y1, y2, f, g)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, d1, d2):
        y1, y2, f, g = ctx.saved_tensors
        with full_precision(y1):
            b = torch.tanh(y1 @ g)
            x2 = y2 - b
            db = d2 * (1 - b * b)
            d1 = d1 + db @ g.t()
            a = torch.tanh(x2 @ f)
            da = d1 * (1 - a * a)
            gx2 = d2 + da @ f.t()
            gf = x2.flatten(0, -2).t() @ da.flatten(0, -2) if x2.dim() > 1 else torch.outer(x2, da)
            gg = y1.flatten(0, -2).t() @ db.flatten(0, -2) if y1.dim() > 1 else torch.outer(y1, db)
        return d1, gx2, gf, gg


class AffineCoupling(Function):
    """RealNVP step y = x exp(s) + t with its log-determinant per row; keeps y instead of x."""

    @staticmethod
    def forward(ctx, x, s, t):
        real_floating("AffineCoupling", x, s, t)
        if not x.shape == s.shape == t.shape or x.dim() != 2:
            raise ValueError("AffineCoupling: three tensors (N, D) of one shape expected")
        y = x * torch.exp(s) + t
        ctx.save_for_backward(y, s, t)
        return y, s.sum(1)

    @staticmethod
    def backward(ctx, gy, glog):
        y, s, t = ctx.saved_tensors
        gx = gy * torch.exp(s) if ctx.needs_input_grad[0] else None
        gs = gy * (y - t) + glog[:, None] if ctx.needs_input_grad[1] else None
        return gx, gs, gy if ctx.needs_input_grad[2] else None


class BitMaskReLU(Function):
    """ReLU that keeps one bit per element for backward."""

    @staticmethod
    def forward(ctx, x):
        real_floating("BitMaskReLU", x)
        on = (x > 0).reshape(-1)
        on = F.pad(on.to(torch.uint8), (0, -on.numel() % 8)).reshape(-1, 8)
        bits = torch.arange(8, device=x.device, dtype=torch.uint8)
        ctx.save_for_backward((on << bits).sum(1, dtype=torch.uint8))
        return torch.relu(x)

    @staticmethod
    def backward(ctx, grad_out):
        packed, = ctx.saved_tensors
        bits = torch.arange(8, device=packed.device, dtype=torch.uint8)
        on = ((packed[:, None] >> bits) & 1).reshape(-1)[:grad_out.numel()].reshape(grad_out.shape)
        return torch.where(on.bool(), grad_out, torch.zeros_like(grad_out))


class FusedLinearCrossEntropy(Function):
    """Mean cross entropy of x W^T against labels by chunks of rows; the gradients are formed in forward (Liger)."""

    @staticmethod
    def forward(ctx, x, weight, labels, chunk=2):
        real_floating("FusedLinearCrossEntropy", x, weight)
        if x.dim() != 2 or weight.dim() != 2 or labels.shape != x.shape[:1] or not x.shape[0] or weight.shape[1] != x.shape[1] or chunk < 1:
            raise ValueError("FusedLinearCrossEntropy: x (N > 0, D), weight (V, D), labels (N,) expected")
        in_range("FusedLinearCrossEntropy", labels, weight.shape[0])
        need_x, need_w = ctx.needs_input_grad[:2]
        gx = torch.empty_like(x) if need_x else None
        gw = torch.zeros_like(weight) if need_w else None
        loss = x.new_zeros(())
        with full_precision(x):
            for s in range(0, x.shape[0], chunk):
                rows, aim = x[s:s + chunk], labels[s:s + chunk, None]
                logp = torch.log_softmax(rows @ weight.t(), 1)
                loss = loss - logp.gather(1, aim).sum()
                d = logp.exp().scatter_add(1, aim, -torch.ones_like(aim, dtype=x.dtype)) / x.shape[0]
                if need_x:
                    gx[s:s + chunk] = d @ weight
                if need_w:
                    gw += d.t() @ rows
        ctx.save_for_backward(gx, gw)
        return loss / x.shape[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        gx, gw = ctx.saved_tensors
        return None if gx is None else gx * grad_out, None if gw is None else gw * grad_out, None, None


class LinearRecurrence(Function):
    """h_t = a_t h_{t-1} + x_t along axis 0, from h0 or zeros; backward is the same scan run backwards."""

    @staticmethod
    def forward(ctx, a, x, h0=None):
        real_floating("LinearRecurrence", a, x, h0)
        same_shape("LinearRecurrence", a, x)
        if x.dim() == 0 or (h0 is not None and h0.shape != x.shape[1:]):
            raise ValueError("LinearRecurrence: a time axis and h0 without it expected")
        h = x.new_zeros(x.shape[1:]) if h0 is None else h0
        out = torch.empty_like(x)
        for t in range(x.shape[0]):
            out[t] = h = a[t] * h + x[t]
        ctx.save_for_backward(a, out, h0)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        a, out, h0 = ctx.saved_tensors
        if not a.shape[0]:
            return torch.zeros_like(a), torch.zeros_like(a), None if h0 is None else torch.zeros_like(h0)
        shifted = torch.cat((a[1:], torch.zeros_like(a[:1])))
        gx = LinearRecurrence.apply(shifted.flip(0), grad_out.flip(0), None).flip(0)
        first = torch.zeros_like(out[0]) if h0 is None else h0
        before = torch.cat((first[None], out[:-1]))
        return gx * before, gx, gx[0] * a[0] if h0 is not None else None


class LSTMPointwise(Function):
    """Elementwise part of an LSTM cell: packed gates (N, 4 H) and the cell (N, H), or None at the start, to (h, c)."""

    @staticmethod
    def forward(ctx, gates, cell=None):
        real_floating("LSTMPointwise", gates, cell)
        if gates.dim() != 2 or gates.shape[1] % 4 or (cell is not None and cell.shape != (gates.shape[0], gates.shape[1] // 4)):
            raise ValueError("LSTMPointwise: gates (N, 4 H) and cell (N, H) expected")
        ctx.save_for_backward(gates, cell)
        i, f, g, o = gates.chunk(4, 1)
        c = i.sigmoid() * g.tanh()
        if cell is not None:
            c = c + f.sigmoid() * cell
        return o.sigmoid() * c.tanh(), c

    @staticmethod
    def backward(ctx, gh, gc):
        gates, cell = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        old = torch.zeros_like(g) if cell is None else cell
        tc = torch.tanh(i * g + f * old)
        gc = gc + gh * o * (1 - tc * tc)
        parts = gc * g * i * (1 - i), gc * old * f * (1 - f), gc * i * (1 - g * g), gh * tc * o * (1 - o)
        return torch.cat(parts, 1), None if cell is None else gc * f


class HMMLogLikelihood(Function):
    """Log-likelihood of emissions (T, S) under log transitions (S, S) and log initial (S,); gradients are posteriors."""

    @staticmethod
    def forward(ctx, emission, transition, initial):
        real_floating("HMMLogLikelihood", emission, transition, initial)
        if emission.dim() != 2 or not emission.numel() or transition.shape != (emission.shape[1],) * 2 or initial.shape != emission.shape[1:]:
            raise ValueError("HMMLogLikelihood: non-empty (T, S), (S, S), (S,) expected")
        alpha = torch.empty_like(emission)
        alpha[0] = initial + emission[0]
        for t in range(1, emission.shape[0]):
            alpha[t] = torch.logsumexp(alpha[t - 1][:, None] + transition, 0) + emission[t]
        total = torch.logsumexp(alpha[-1], 0)
        if not bool(torch.isfinite(total)):
            raise ValueError("HMMLogLikelihood: the likelihood is zero or not finite")
        ctx.save_for_backward(emission, transition, alpha, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        emission, transition, alpha, total = ctx.saved_tensors
        ge, gt = torch.empty_like(emission), torch.zeros_like(transition)
        beta = torch.zeros_like(emission[0])
        for t in reversed(range(emission.shape[0])):
            ge[t] = torch.exp(alpha[t] + beta - total)
            if t:
                joint = transition + (emission[t] + beta)
                gt = gt + torch.exp(alpha[t - 1][:, None] + joint - total)
                beta = torch.logsumexp(joint, 1)
        return ge * grad_out, gt * grad_out, ge[0] * grad_out


class CumulativeProduct(Function):
    """Cumulative product along axis 0 whose backward divides by nothing, so that zeros are fine."""

    @staticmethod
    def forward(ctx, x):
        real_floating("CumulativeProduct", x)
        if x.dim() == 0:
            raise ValueError("CumulativeProduct: at least one axis expected")
        out = x.cumprod(0)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, out = ctx.saved_tensors
        if not x.shape[0]:
            return torch.zeros_like(x)
        tail, parts = torch.zeros_like(x[0]), []
        for t in reversed(range(x.shape[0])):
            tail = grad_out[t] + (x[t + 1] * tail if t + 1 < x.shape[0] else 0)
            parts.append(tail * out[t - 1] if t else tail)
        return torch.stack(parts[::-1])


class CumulativeMax(Function):
    """Running maximum along dim and where it was reached (last of equals, as torch.cummax)."""

    @staticmethod
    def forward(ctx, x, dim=0):
        real_floating("CumulativeMax", x)
        if x.dim() == 0:
            raise ValueError("CumulativeMax: at least one axis expected")
        values, index = torch.cummax(x, dim)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.dim = dim
        return values, index

    @staticmethod
    def backward(ctx, grad_values, _):
        index, = ctx.saved_tensors
        return torch.zeros_like(grad_values).scatter_add(ctx.dim, index, grad_values), None


def logs(*shape, seed=0):
    return torch.log_softmax(rand(*shape, seed=seed, grad=False), -1).requires_grad_()


def zeros_inside():
    x = rand(5, 2, grad=False)
    x[1, 0] = x[3, 0] = x[2, 1] = 0
    return x.requires_grad_()


CASES = [
    case("replayed_mlp", replayed_mlp, lambda: (rand(3, 4), rand(5, 4, seed=1), rand(2, 5, seed=2)), "Checkpoint-like wrapper that restores the random state of forward.",
         second="refused", random=True, autocast_tol=0.1, dtype_free=True),
    case("reversible_coupling", ReversibleCoupling, lambda: (rand(2, 3), rand(2, 3, seed=1), rand(3, 3, seed=2), rand(3, 3, seed=3)), "Inputs are rebuilt from the outputs.",
         second="refused", more=[lambda: (rand(2), rand(2, seed=1), rand(2, 2), rand(2, 2, seed=3)), lambda: (rand(2, 1, 2), rand(2, 1, 2, seed=1), rand(2, 2), rand(2, 2, seed=5)),
                                 lambda: (rand(0, 2), rand(0, 2), rand(2, 2), rand(2, 2))], loose16=True),
    case("affine_coupling", AffineCoupling, lambda: (rand(3, 2), rand(3, 2, seed=1), rand(3, 2, seed=2)), "Flow step with its log-determinant; the output is kept, not the input.",
         more=[lambda: (rand(0, 2), rand(0, 2), rand(0, 2))]),
    case("bit_mask_relu", BitMaskReLU, lambda: (rand(3, 7),), "One bit per element is kept.", more=[lambda: (rand(8),), lambda: (rand(),), lambda: (rand(0, 3),)]),
    case("fused_linear_cross_entropy", FusedLinearCrossEntropy, lambda: (rand(5, 3), rand(4, 3, seed=1), torch.tensor([0, 3, 1, 1, 2])), "Gradients are formed chunk by chunk in forward.", second="refused",
         more=[lambda: (rand(1, 2), rand(1, 2), torch.tensor([0]), 8)]),
    case("linear_recurrence", LinearRecurrence, lambda: (uniform(5, 2), rand(5, 2), rand(2, seed=1)), "Scan with optional initial state; backward applies itself.",
         more=[lambda: (uniform(4, 2), rand(4, 2)), lambda: (uniform(1), rand(1)), lambda: (uniform(0, 2), rand(0, 2), rand(2))]),
    case("lstm_pointwise", LSTMPointwise, lambda: (rand(2, 8), rand(2, 2, seed=1)), "Two outputs and an optional cell.", more=[lambda: (rand(3, 4),), lambda: (rand(0, 4), rand(0, 1))], refuses=[lambda: (rand(2, 6),)]),
    case("hmm_log_likelihood", HMMLogLikelihood, lambda: (rand(4, 3), logs(3, 3), logs(3, seed=1)), "Log-probability rows, forward-backward algorithm.", second="refused", more=[lambda: (rand(1, 1), logs(1, 1), logs(1))]),
    case("cumulative_product", CumulativeProduct, lambda: (zeros_inside(),), "Zeros in the input are no trouble.", more=[lambda: (rand(3),), lambda: (rand(0, 2),), lambda: (rand(1, 2),)]),
    case("cumulative_max", CumulativeMax, lambda: (rand(5, 2), 0), "Running maximum with its index.", more=[lambda: (rand(2, 4), -1), lambda: (rand(0, 2), 0)]),
]
