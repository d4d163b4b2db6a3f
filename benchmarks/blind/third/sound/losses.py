"""Training losses with hand-written gradients."""
import torch
import torch.nn as nn

from support import *


class LabelSmoothingCE(Function):
    """Cross entropy with smoothing, mean over the rows whose label is not ``ignore_index``."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing=0.1, ignore_index=-100):
        keep = labels != ignore_index
        count = max(int(keep.sum()), 1)
        safe = labels.masked_fill(~keep, 0)
        logp = torch.log_softmax(logits, -1)
        nll = -logp.gather(1, safe[:, None]).squeeze(1)
        row = (1 - smoothing) * nll - smoothing * logp.mean(-1)
        ctx.save_for_backward(logits, safe, keep)
        ctx.smoothing, ctx.count = smoothing, count
        return row.masked_fill(~keep, 0).sum() / count

    @staticmethod
    def backward(ctx, grad_output):
        logits, safe, keep = ctx.saved_tensors
        c = logits.size(1)
        goal = torch.full_like(logits, ctx.smoothing / c)
        goal = goal.scatter_add(1, safe[:, None], torch.full_like(goal[:, :1], 1 - ctx.smoothing))
        grad = (torch.softmax(logits, -1) - goal).masked_fill(~keep[:, None], 0)
        return grad_output * grad / ctx.count, None, None, None


class DiceLossFunction(Function):
    """1 - soft dice, averaged over the batch.  ``mask`` is the 0/1 ground truth."""

    @staticmethod
    def forward(ctx, prob, mask, eps=1.0):
        if ctx.needs_input_grad[1]:
            raise NotImplementedError("DiceLoss gives no gradient to the ground-truth mask")
        ctx.save_for_backward(prob, mask)
        ctx.eps = eps
        p, m = prob.flatten(1), mask.flatten(1).to(prob.dtype)
        return (1 - (2 * (p * m).sum(1) + eps) / (p.sum(1) + m.sum(1) + eps)).mean()

    @staticmethod
    def backward(ctx, grad_output):
        prob, mask = ctx.saved_tensors
        p, m = prob.flatten(1), mask.flatten(1).to(prob.dtype)
        den = (p.sum(1) + m.sum(1) + ctx.eps)[:, None]
        num = (2 * (p * m).sum(1) + ctx.eps)[:, None]
        grad = (num / den - 2 * m) / den / p.size(0)
        return (grad_output * grad).view(prob.shape), None, None


class LovaszHinge(Function):
    """Binary Lovasz hinge on flat logits and 0/1 integer labels."""

    @staticmethod
    def forward(ctx, logits, labels):
        signs = labels.to(logits.dtype) * 2 - 1
        errors = 1 - logits * signs
        order = torch.sort(errors, descending=True, stable=True).indices
        gt = labels[order].to(logits.dtype)
        inter = gt.sum() - gt.cumsum(0)
        union = gt.sum() + (1 - gt).cumsum(0)
        jac = 1 - inter / union
        jac = torch.cat([jac[:1], jac[1:] - jac[:-1]])
        weight = torch.empty_like(jac)
        weight[order] = jac
        slope = torch.where(errors > 0, -signs * weight, torch.zeros_like(weight))
        ctx.save_for_backward(slope)
        return (torch.relu(errors) * weight).sum()

    @staticmethod
    def backward(ctx, grad_output):
        slope, = ctx.saved_tensors
        return grad_output * slope, None


@torch.library.custom_op("tinyloss::smooth_l1", mutates_args=())
def smooth_l1(pred: torch.Tensor, target: torch.Tensor, beta: float) -> torch.Tensor:
    if pred.shape != target.shape:
        raise ValueError("prediction and target must have one shape")
    d = pred - target
    a = d.abs()
    return torch.where(a < beta, 0.5 * d * d / beta, a - 0.5 * beta).contiguous()


@smooth_l1.register_fake
def _(pred, target, beta):
    return torch.empty_like(pred, memory_format=torch.contiguous_format)


def _smooth_l1_setup(ctx, inputs, output):
    pred, target, beta = inputs
    ctx.save_for_backward(pred, target)
    ctx.beta = beta


def _smooth_l1_backward(ctx, grad):
    pred, target = ctx.saved_tensors
    g = grad * ((pred - target) / ctx.beta).clamp(-1, 1)
    return (g if ctx.needs_input_grad[0] else None,
            -g if ctx.needs_input_grad[1] else None, None)


smooth_l1.register_autograd(_smooth_l1_backward, setup_context=_smooth_l1_setup)


class TripletHinge(Function):
    """relu(d(a,p) - d(a,n) + margin) with squared distances, one value a row."""

    @staticmethod
    def forward(ctx, anchor, positive, negative, margin):
        gap = (anchor - positive).square().sum(1) - (anchor - negative).square().sum(1) + margin
        active = gap > 0
        ctx.save_for_backward(anchor, positive, negative, active)
        return torch.where(active, gap, torch.zeros_like(gap))

    @staticmethod
    def backward(ctx, grad_output):
        a, p, n, active = ctx.saved_tensors
        g = (2 * grad_output * active).unsqueeze(1)
        ga = g * (n - p) if ctx.needs_input_grad[0] else None
        gp = g * (p - a) if ctx.needs_input_grad[1] else None
        gn = g * (a - n) if ctx.needs_input_grad[2] else None
        return ga, gp, gn, None


def _triplet_inputs():
    a = randn(4, 3, seed=6, grad=False)
    p = a + randn(4, 3, seed=7, grad=False, scale=0.3)
    n = a + randn(4, 3, seed=8, grad=False)
    n[1:3] += 4.0       # two rows are solved already
    return a.requires_grad_(), p.requires_grad_(), n.requires_grad_(), 0.2


class KLProbRows(Function):
    """sum p log(p / q) over rows that must be distributions; terms with p = 0 count as 0."""

    @staticmethod
    def forward(ctx, p, q):
        for name, r in (("p", p), ("q", q)):
            if (r < 0).any() or ((r.sum(-1) - 1).abs() > 1e-4).any():
                raise ValueError(f"the rows of {name} must be probability distributions")
        if (q <= 0).any():
            raise ValueError("q must be positive everywhere")
        ctx.save_for_backward(p, q)
        return (torch.xlogy(p, p) - p * q.log()).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        p, q = ctx.saved_tensors
        g = grad_output.unsqueeze(-1)
        gp = gq = None
        if ctx.needs_input_grad[0]:
            tiny = torch.finfo(p.dtype).tiny
            gp = g * (torch.log(p.clamp_min(tiny) / q) + 1)
        if ctx.needs_input_grad[1]:
            gq = -g * p / q
        return gp, gq


class MaskedPinball(Function):
    """Quantile loss over padded sequences.  pred (B, T, Q), target (B, T), lengths (B,)."""

    @staticmethod
    def forward(ctx, pred, target, lengths, quantiles):
        if int(lengths.max()) > pred.size(1):
            raise ValueError("a length is greater than the padded size")
        mask = (torch.arange(pred.size(1), device=pred.device) < lengths[:, None])[..., None]
        q = torch.tensor(quantiles, dtype=pred.dtype, device=pred.device)
        e = target[..., None] - pred
        total = int(lengths.sum()) * len(quantiles)
        slope = torch.where(e >= 0, q, q - 1)
        loss = torch.where(mask, slope * e, torch.zeros_like(e)).sum() / total
        ctx.save_for_backward(torch.where(mask, slope, torch.zeros_like(slope)) / total)
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        slope, = ctx.saved_tensors
        gp = -grad_output * slope if ctx.needs_input_grad[0] else None
        gt = grad_output * slope.sum(-1) if ctx.needs_input_grad[1] else None
        return gp, gt, None, None


class ChunkedInfoNCE(Function):
    """InfoNCE that never holds the whole similarity matrix: both passes walk over row chunks."""

    @staticmethod
    def forward(ctx, query, key, temperature, chunk):
        ctx.save_for_backward(query, key)
        ctx.temperature, ctx.chunk = temperature, chunk
        total = query.new_zeros(())
        for i in range(0, query.size(0), chunk):
            sim = query[i:i + chunk] @ key.t() / temperature
            pos = sim.diagonal(i)
            total = total + (torch.logsumexp(sim, 1) - pos).sum()
        return total / query.size(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        query, key = ctx.saved_tensors
        n = query.size(0)
        scale = grad_output / (n * ctx.temperature)
        gq = torch.empty_like(query) if ctx.needs_input_grad[0] else None
        gk = torch.zeros_like(key) if ctx.needs_input_grad[1] else None
        for i in range(0, n, ctx.chunk):
            q = query[i:i + ctx.chunk]
            p = torch.softmax(q @ key.t() / ctx.temperature, 1)
            p.diagonal(i).sub_(1)
            if gq is not None:
                gq[i:i + ctx.chunk] = p @ key * scale
            if gk is not None:
                gk += p.t() @ q * scale
        return gq, gk, None, None


CASES = [
    case("label_smoothing_ce_ignore", LabelSmoothingCE,
         lambda: (randn(5, 4, seed=2), torch.tensor([1, -100, 3, 0, -100]), 0.1, -100),
         "ignored rows get exactly zero gradient"),
    case("dice_loss", DiceLossFunction,
         lambda: (torch.sigmoid(randn(2, 1, 3, 3, seed=3, grad=False)).requires_grad_(),
                  (rand(2, 1, 3, 3, seed=4, grad=False) > 0.5).double(), 1.0),
         "the float mask is refused aloud if it requires a gradient"),
    case("lovasz_hinge", LovaszHinge, lambda: (randn(8, seed=5), randint(2, (8,), seed=5)),
         "piecewise linear: the slope found while sorting is all the backward needs"),
    case("smooth_l1_custom_op", smooth_l1, lambda: (randn(3, 4, seed=9), randn(3, 4, seed=10), 0.7)),
    case("triplet_hinge_partly_inactive", TripletHinge, _triplet_inputs,
         "rows already beyond the margin get zero gradient"),
    case("kl_probability_rows", KLProbRows,
         lambda: (torch.softmax(randn(3, 4, seed=11, grad=False), -1).requires_grad_(),
                  torch.softmax(randn(3, 4, seed=12, grad=False), -1).requires_grad_()),
         "rows must add up to one, so entries cannot be moved on their own"),
    case("masked_pinball", MaskedPinball,
         lambda: (randn(3, 5, 2, seed=15), randn(3, 5, seed=16), torch.tensor([5, 2, 3]), [0.1, 0.9]),
         "padding gets zero gradient; lengths must fit the padded size"),
    case("chunked_info_nce", ChunkedInfoNCE,
         lambda: (F.normalize(randn(6, 4, seed=17, grad=False), dim=1).requires_grad_(),
                  F.normalize(randn(6, 4, seed=18, grad=False), dim=1).requires_grad_(), 0.5, 4),
         "the last chunk is shorter than the others"),
]
