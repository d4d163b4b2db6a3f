"""Loss functions with hand-written gradients."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SigmoidFocalLoss(Function):
    """Binary focal loss on logits, summed over all anchors (RetinaNet).

    loss = -alpha_t * (1 - p_t) ** gamma * log(p_t)
    """

    @staticmethod
    def forward(ctx, logits, targets, gamma=2.0, alpha=0.25):
        if logits.shape != targets.shape:
            raise ValueError("logits and targets must have the same shape")
        p = torch.sigmoid(logits)
        p_t = p * targets + (1 - p) * (1 - targets)
        alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
        ctx.save_for_backward(logits, targets)
        ctx.gamma, ctx.alpha = gamma, alpha
        return -(alpha_t * (1 - p_t).pow(gamma) * p_t.clamp_min(1e-12).log()).sum()

    @staticmethod
    def backward(ctx, grad_output):
        logits, targets = ctx.saved_tensors
        p = torch.sigmoid(logits)
        p_t = p * targets + (1 - p) * (1 - targets)
        alpha_t = ctx.alpha * targets + (1 - ctx.alpha) * (1 - targets)
        sign = 2 * targets - 1
        grad = -alpha_t * sign * (1 - p_t).pow(ctx.gamma + 1)
        return grad_output * grad, None, None, None


class DiceLoss(Function):
    """Soft Dice loss for segmentation with squared denominators (V-Net).

    probs, target: (N, C, *); returns one loss for each sample and class.
    """

    @staticmethod
    def forward(ctx, probs, target, eps=1.0):
        p = probs.flatten(2)
        t = target.flatten(2).to(p.dtype)
        inter = (p * t).sum(-1)
        union = (p * p).sum(-1) + (t * t).sum(-1)
        ctx.save_for_backward(probs, target)
        ctx.eps = eps
        return 1 - (2 * inter + eps) / (union + eps)

    @staticmethod
    def backward(ctx, grad_output):
        probs, target = ctx.saved_tensors
        p = probs.flatten(2)
        t = target.flatten(2).to(p.dtype)
        num = 2 * (p * t).sum(-1, keepdim=True) + ctx.eps
        den = (p * p).sum(-1, keepdim=True) + (t * t).sum(-1, keepdim=True) + ctx.eps
        grad = -(2 * t * den - p * num) / den.pow(2)
        return (grad_output.unsqueeze(-1) * grad).reshape(probs.shape), None, None


class LabelSmoothingCE(Function):
    """Cross entropy with label smoothing; positions equal to ignore_index do not count."""

    @staticmethod
    def forward(ctx, logits, target, smoothing=0.1, ignore_index=-100):
        log_probs = F.log_softmax(logits, dim=-1)
        valid = target.ne(ignore_index)
        safe = target.masked_fill(~valid, 0)
        nll = -log_probs.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        smooth = -log_probs.mean(-1)
        loss = (1 - smoothing) * nll + smoothing * smooth
        loss = loss.masked_fill(~valid, 0.0)
        ctx.save_for_backward(log_probs, safe, valid)
        ctx.smoothing = smoothing
        return loss.sum() / valid.sum().clamp_min(1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        log_probs, target, valid = ctx.saved_tensors
        n_classes = log_probs.size(-1)
        true = torch.full_like(log_probs, ctx.smoothing / n_classes)
        true.scatter_add_(-1, target.unsqueeze(-1),
                          torch.full_like(log_probs[..., :1], 1 - ctx.smoothing))
        grad = (log_probs.exp() - true) * valid.unsqueeze(-1)
        return grad_output * grad / target.numel(), None, None, None


class HuberLossFn(Function):
    """Elementwise Huber loss: 0.5 r^2 inside |r| <= delta, delta (|r| - delta / 2) outside."""

    @staticmethod
    def forward(ctx, pred, target, delta=1.0):
        if delta <= 0:
            raise ValueError("delta must be positive")
        r = pred - target
        ctx.save_for_backward(pred, target)
        ctx.delta = delta
        a = r.abs()
        return torch.where(a <= delta, 0.5 * r * r, delta * (a - 0.5 * delta))

    @staticmethod
    def backward(ctx, grad_output):
        pred, target = ctx.saved_tensors
        grad = grad_output * (pred - target).clamp(-1.0, 1.0)
        return grad, -grad, None


class TripletMarginFn(Function):
    """max(0, d(a, p) - d(a, n) + margin) with Euclidean distances, one value a row."""

    @staticmethod
    def forward(ctx, anchor, positive, negative, margin=0.5):
        dap = (anchor - positive).norm(dim=1)
        dan = (anchor - negative).norm(dim=1)
        loss = dap - dan + margin
        ctx.save_for_backward(anchor, positive, negative)
        ctx.margin = margin
        return loss.clamp_min(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        anchor, positive, negative = ctx.saved_tensors
        ap, an = anchor - positive, anchor - negative
        dap = ap.norm(dim=1, keepdim=True)
        dan = an.norm(dim=1, keepdim=True)
        active = ((dap - dan + ctx.margin) > 0).to(ap.dtype)
        g = grad_output.unsqueeze(1) * active
        gp = g * ap / dap
        gn = g * an / dan
        return gp - gn, -gp, gn, None


class CenterLossFunction(Function):
    """0.5 * mean_i ||f_i - c_{y_i}||^2 over a batch of features."""

    @staticmethod
    def forward(ctx, feature, label, centers):
        ctx.save_for_backward(feature, label, centers)
        diff = feature - centers.index_select(0, label)
        return diff.pow(2).sum() / 2.0 / feature.size(0)

    @staticmethod
    def backward(ctx, grad_output):
        feature, label, centers = ctx.saved_tensors
        diff = centers.index_select(0, label) - feature
        scale = grad_output / feature.size(0)
        grad_centers = torch.zeros_like(centers).index_add(0, label, diff)
        return -scale * diff, None, grad_output * grad_centers


class RNNTStyleLoss(Function):
    """Monotonic alignment loss: logsumexp over all frames of the frame scores.

    The gradient is computed together with the loss in the forward pass, as the
    fused transducer kernels do.
    """

    @staticmethod
    def forward(ctx, scores, lengths):
        mask = torch.arange(scores.size(1)).unsqueeze(0) < lengths.unsqueeze(1)
        masked = scores.masked_fill(~mask, -math.inf)
        loss = -torch.logsumexp(masked, dim=1)
        grads = -torch.softmax(masked, dim=1)
        ctx.save_for_backward(grads)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grads, = ctx.saved_tensors
        return grads.clone(), None


class ArcMarginFn(Function):
    """Additive angular margin: replaces cos(theta) by cos(theta + m) at the label."""

    @staticmethod
    def forward(ctx, cosine, label, margin=0.3, scale=16.0):
        rows = torch.arange(cosine.size(0))
        c = cosine[rows, label]
        s = (1 - c * c).clamp_min(0).sqrt()
        out = cosine.clone()
        out[rows, label] = c * math.cos(margin) - s * math.sin(margin)
        ctx.save_for_backward(cosine, label)
        ctx.margin, ctx.scale = margin, scale
        return out * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        cosine, label = ctx.saved_tensors
        rows = torch.arange(cosine.size(0))
        c = cosine[rows, label]
        s = (1 - c * c).clamp_min(0).sqrt()
        factor = math.cos(ctx.margin) + c / s * math.sin(ctx.margin)
        grad = grad_output * ctx.scale
        grad[rows, label] = grad[rows, label] * factor
        return grad, None, None, None


class RowDistance(Function):
    """Euclidean distance of matching rows, with the zero subgradient where they coincide."""

    @staticmethod
    def forward(ctx, a, b, reduction="none"):
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"unknown reduction {reduction!r}")
        ctx.save_for_backward(a, b)
        ctx.reduction = reduction
        d = (a - b).square().sum(-1).sqrt()
        return d if reduction == "none" else getattr(d, reduction)()

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        diff = a - b
        d = diff.square().sum(-1, keepdim=True).sqrt()
        unit = torch.where(d > 0, diff / d, torch.zeros_like(diff))
        if ctx.reduction == "none":
            grad_output = grad_output.unsqueeze(-1)
        elif ctx.reduction == "mean":
            grad_output = grad_output / d.numel()
        g = grad_output * unit
        return g, -g, None


class InfoNCEFunction(Function):
    """Symmetric-free InfoNCE over a batch: row i of `query` matches row i of `key`."""

    @staticmethod
    def forward(ctx, query, key, temperature=0.2):
        n = query.size(0)
        pairwise = query.unsqueeze(1) * key.unsqueeze(0)
        logits = pairwise.sum(-1) / temperature
        log_prob = F.log_softmax(logits, dim=1)
        ctx.save_for_backward(query, key, pairwise, log_prob)
        ctx.temperature = temperature
        return -log_prob.diagonal().sum() / n

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        query, key, pairwise, log_prob = ctx.saved_tensors
        n = query.size(0)
        d = log_prob.exp()
        d.diagonal().sub_(1.0)
        d = d * (grad_output / (n * ctx.temperature))
        return d @ key, d.t() @ query, None


# ------------------------------------------------------------------ tests ---

def _t(seed, *shape, grad=True, dtype=torch.float64, scale=1.0):
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=gen, dtype=dtype) * scale).requires_grad_(grad)


def _u(seed, *shape, grad=True, dtype=torch.float64, lo=0.1, hi=0.9):
    gen = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=gen, dtype=dtype) * (hi - lo) + lo).requires_grad_(grad)


def _i(seed, high, *shape):
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=gen)


def _fn(target):
    return target.apply if isinstance(target, type) else target


def _copy(args):
    return [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]


def _outs(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _isf(o):
    return torch.is_tensor(o) and (o.is_floating_point() or o.is_complex())


def _cots(outs, seed=7):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=gen, dtype=o.dtype) for o in outs]


def _grads(target, args, keep=None, cots=None):
    """Reverse-mode gradients; keep = indices of the outputs that get a cotangent."""
    xs = _copy(args)
    torch.manual_seed(11)
    outs = _outs(_fn(target)(*xs))
    if keep is None:
        keep = [k for k, o in enumerate(outs) if _isf(o) and o.requires_grad]
    picked = [outs[k] for k in keep]
    if cots is None:
        cots = _cots(picked)
    wrt = [x for x in xs if torch.is_tensor(x) and x.requires_grad]
    got = torch.autograd.grad(picked, wrt, [c.clone() for c in cots], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.detach().clone() for g, x in zip(got, wrt)], keep, cots


def _numeric(target, args, keep, cots, eps=1e-6):
    def value(xs):
        torch.manual_seed(11)
        with torch.no_grad():
            outs = _outs(_fn(target)(*_copy(xs)))
        total = 0.0
        for k, c in zip(keep, cots):
            total += (outs[k] * c.conj()).sum().real.item()
        return total
    res = []
    for n, a in enumerate(args):
        if not (torch.is_tensor(a) and a.requires_grad):
            continue
        base = a.detach().clone()
        cplx = base.is_complex()
        real = torch.view_as_real(base).clone() if cplx else base.clone()
        out = torch.zeros(real.numel(), dtype=real.dtype)
        for j in range(real.numel()):
            vals = []
            for sgn in (1, -1):
                p = real.clone().contiguous()
                p.view(-1)[j] += sgn * eps
                xs = list(args)
                xs[n] = (torch.view_as_complex(p) if cplx else p).requires_grad_(True)
                vals.append(value(xs))
            out[j] = (vals[0] - vals[1]) / (2 * eps)
        out = out.view(real.shape)
        res.append(torch.view_as_complex(out) if cplx else out)
    return res


def _agrees(target, args, ref=None, keep=None, cots=None, tol=1e-5):
    got, keep, cots = _grads(target, args, keep, cots)
    want = _grads(ref, args, keep, cots)[0] if ref is not None else _numeric(target, args, keep, cots)
    return all(g.shape == w.shape and torch.allclose(g, w.to(g.dtype), rtol=tol, atol=tol) for g, w in zip(got, want))


def _wrong(target, args, ref=None, **kw):
    return not _agrees(target, args, ref, **kw)


def _second_ok(target, args):
    return torch.autograd.gradgradcheck(_fn(target), tuple(_copy(args)), raise_exception=False)


def _raises(target, args, **kw):
    try:
        _grads(target, args, **kw)
    except Exception:
        return True
    return False


def _ops(call, name):
    """How often the aten operator `name` runs inside call()."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Count():
        call()
    return sum(1 for n in seen if n == name)


def _saved_numel(out):
    return [t.numel() for t in out.grad_fn.saved_tensors if t is not None]


def _labels(seed, *shape):
    return (_u(seed, *shape, grad=False, lo=0, hi=1) > 0.5).double()


def _focal_in():
    return (_t(0, 6, 4), _labels(1, 6, 4), 2.0, 0.25)


def _dice_in():
    return (_u(0, 2, 3, 4, 4), _labels(1, 2, 3, 4, 4))


def _ls_in():
    return (_t(0, 6, 5), _i(1, 5, 6), 0.1)


def _huber_in():
    return (_t(0, 7, scale=2.0), _t(1, 7), 1.0)


def _triplet_in():
    return (_t(0, 5, 4), _t(1, 5, 4), _t(2, 5, 4), 0.5)


def _ev_triplet():
    a, p, n, m = _triplet_in()
    p = p.detach().clone()
    p[0] = a.detach()[0]
    grads = _grads(TripletMarginFn, (a, p.requires_grad_(), n, 10.0))[0]
    return bool(torch.isnan(grads[0]).any())


def _arc_in():
    return (_u(0, 4, 6, lo=-0.8, hi=0.8), _i(1, 6, 4), 0.3, 16.0)


def _ev_arc():
    c, lab, m, s = _arc_in()
    c = c.detach().clone()
    c[0, lab[0]] = 1.0
    return not bool(torch.isfinite(_grads(ArcMarginFn, (c.requires_grad_(), lab, m, s))[0][0]).all())


def _ev_rowdist():
    a = _t(0, 4, 3)
    b = _t(1, 4, 3, grad=False)
    b[0] = a.detach()[0]
    g, = torch.autograd.grad(RowDistance.apply(a, b).sum(), a, create_graph=True)
    gg, = torch.autograd.grad(g.square().sum(), a)
    return bool(torch.isfinite(g).all()) and bool(torch.isnan(gg).any())


def _nce_in():
    return (F.normalize(_t(0, 6, 8, grad=False), dim=1).requires_grad_(),
            F.normalize(_t(1, 6, 8, grad=False), dim=1).requires_grad_())


def _ev_nce():
    out = InfoNCEFunction.apply(*_nce_in())
    return max(t.numel() for t in out.grad_fn.saved_tensors) >= 6 * 6 * 8


CASES = [
    dict(name="sigmoid_focal_loss", target=SigmoidFocalLoss, inputs=_focal_in,
         fault="backward leaves out the derivative of the modulating factor (1-p_t)^gamma; wrong for every gamma != 0",
         kind="wrong", visible=True, evidence=lambda: _wrong(SigmoidFocalLoss, _focal_in())),
    dict(name="dice_loss_squared", target=DiceLoss, inputs=_dice_in,
         fault="quotient rule uses p*num instead of 2*p*num for the squared denominator",
         kind="wrong", visible=True, evidence=lambda: _wrong(DiceLoss, _dice_in())),
    dict(name="label_smoothing_ce", target=LabelSmoothingCE, inputs=_ls_in,
         fault="backward divides by the number of targets, forward by the number of valid ones; shows once a target is ignore_index",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(LabelSmoothingCE, (_t(0, 6, 5), torch.tensor([0, 1, -100, 3, -100, 2]), 0.1))),
    dict(name="huber_loss_delta", target=HuberLossFn, inputs=_huber_in,
         fault="backward clamps the residual to [-1, 1] instead of [-delta, delta]; wrong for delta != 1",
         kind="wrong", visible=False, evidence=lambda: _wrong(HuberLossFn, _huber_in()[:2] + (0.5,))),
    dict(name="triplet_margin", target=TripletMarginFn, inputs=_triplet_in,
         fault="0/0 in backward: NaN gradient when anchor equals positive (or negative)",
         kind="wrong", visible=False, evidence=_ev_triplet),
    dict(name="center_loss", target=CenterLossFunction,
         inputs=lambda: (_t(0, 6, 4), _i(1, 3, 6), _t(2, 3, 4)),
         fault="gradient of the centers is not divided by the batch size",
         kind="wrong", visible=True,
         evidence=lambda: _wrong(CenterLossFunction, (_t(0, 6, 4), _i(1, 3, 6), _t(2, 3, 4)))),
    dict(name="fused_alignment_loss", target=RNNTStyleLoss,
         inputs=lambda: (_t(0, 3, 6), torch.tensor([6, 4, 5])),
         fault="backward returns the gradient computed in forward without multiplying by grad_output",
         kind="wrong", visible=True,
         evidence=lambda: _wrong(RNNTStyleLoss, (_t(0, 3, 6), torch.tensor([6, 4, 5])))),
    dict(name="arc_margin", target=ArcMarginFn, inputs=_arc_in,
         fault="cos/sin with sin = 0: infinite gradient when the label cosine is saturated at 1",
         kind="wrong", visible=False, evidence=_ev_arc),
    dict(name="row_distance", target=RowDistance, inputs=lambda: (_t(0, 4, 3), _t(1, 4, 3), "mean"),
         fault="torch.where guards the first gradient only: double backward (gradient penalty) is NaN where two rows coincide",
         kind="wrong", visible=False, evidence=_ev_rowdist),
    dict(name="info_nce", target=InfoNCEFunction, inputs=_nce_in,
         fault="saves the (N, N, D) product tensor, which backward never uses",
         kind="wasteful", visible=False, evidence=_ev_nce),
]
