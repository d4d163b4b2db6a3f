"""Loss functions with hand-written gradients."""
import math

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
import torch.nn.functional as F


class SigmoidFocalLoss(Function):
    """Elementwise sigmoid focal loss on logits with 0/1 targets (RetinaNet)."""

    @staticmethod
    def forward(ctx, logits, targets, gamma=2.0, alpha=0.25):
        if logits.shape != targets.shape:
            raise ValueError("logits and targets must have the same shape")
        if ctx.needs_input_grad[1]:
            raise ValueError("targets are constants and must not require grad")
        ctx.save_for_backward(logits, targets)
        ctx.gamma, ctx.alpha = gamma, alpha
        s = 2 * targets - 1
        z = logits * s
        weight = alpha * targets + (1 - alpha) * (1 - targets)
        return weight * torch.sigmoid(-z).pow(gamma) * F.softplus(-z)

    @staticmethod
    def backward(ctx, grad_output):
        logits, targets = ctx.saved_tensors
        s = 2 * targets - 1
        z = logits * s
        weight = ctx.alpha * targets + (1 - ctx.alpha) * (1 - targets)
        q = torch.sigmoid(-z)
        d_z = -q.pow(ctx.gamma) * (ctx.gamma * (1 - q) * F.softplus(-z) + q)
        return grad_output * weight * d_z * s, None, None, None


class LabelSmoothingCE(Function):
    """Per-sample smoothed cross-entropy; samples whose target is ``ignore_index`` cost nothing."""

    @staticmethod
    def forward(ctx, logits, target, smoothing, ignore_index):
        if not 0 <= smoothing < 1:
            raise ValueError("smoothing must be in [0, 1)")
        valid = target != ignore_index
        safe = torch.where(valid, target, torch.zeros_like(target))
        logp = F.log_softmax(logits, dim=-1)
        nll = -logp.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        loss = (1 - smoothing) * nll - smoothing * logp.mean(dim=-1)
        ctx.save_for_backward(logits, safe, valid)
        ctx.smoothing = smoothing
        return loss * valid

    @staticmethod
    def backward(ctx, grad_output):
        logits, safe, valid = ctx.saved_tensors
        p = torch.softmax(logits, dim=-1)
        q = torch.full_like(p, ctx.smoothing / p.shape[-1])
        hot = F.one_hot(safe, p.shape[-1]).to(p.dtype)
        q = q + (1 - ctx.smoothing) * hot
        return (grad_output * valid).unsqueeze(-1) * (p - q), None, None, None


def label_smoothing_loss(logits, target, smoothing=0.1, ignore_index=-100):
    per_sample = LabelSmoothingCE.apply(logits, target, smoothing, ignore_index)
    return per_sample.sum() / (target != ignore_index).sum().clamp_min(1)


class SoftDiceLoss(Function):
    """1 - Dice per (sample, class) for probabilities and one-hot masks of shape (N, C, H, W)."""

    @staticmethod
    def forward(ctx, probs, onehot, smooth=1.0):
        if probs.shape != onehot.shape or probs.dim() != 4:
            raise ValueError("probs and onehot must both be (N, C, H, W)")
        if ctx.needs_input_grad[1]:
            raise ValueError("the one-hot mask is a constant and must not require grad")
        ctx.save_for_backward(probs, onehot)
        ctx.smooth = smooth
        inter = (probs * onehot).sum(dim=(2, 3))
        denom = probs.sum(dim=(2, 3)) + onehot.sum(dim=(2, 3)) + smooth
        return 1 - (2 * inter + smooth) / denom

    @staticmethod
    def backward(ctx, grad_output):
        probs, onehot = ctx.saved_tensors
        inter = (probs * onehot).sum(dim=(2, 3), keepdim=True)
        denom = (probs.sum(dim=(2, 3), keepdim=True) + onehot.sum(dim=(2, 3), keepdim=True) + ctx.smooth)
        grad = -2 * onehot / denom + (2 * inter + ctx.smooth) / denom.pow(2)
        return grad_output[:, :, None, None] * grad, None, None


class CharbonnierLoss(Function):
    """Mean of sqrt((x - y)^2 + eps^2), differentiable in both images."""

    @staticmethod
    def forward(ctx, prediction, target, eps):
        if prediction.shape != target.shape:
            raise ValueError("shape mismatch")
        if eps <= 0:
            raise ValueError("eps must be positive")
        ctx.save_for_backward(prediction, target)
        ctx.eps = eps
        return torch.sqrt((prediction - target).pow(2) + eps * eps).mean()

    @staticmethod
    def backward(ctx, grad_output):
        prediction, target = ctx.saved_tensors
        diff = prediction - target
        grad = grad_output * diff / torch.sqrt(diff * diff + ctx.eps ** 2) / diff.numel()
        return (grad if ctx.needs_input_grad[0] else None,
                -grad if ctx.needs_input_grad[1] else None,
                None)


def _lovasz_grad(sorted_truth):
    """Gradient of the Lovasz extension of the Jaccard loss w.r.t. sorted errors."""
    total = sorted_truth.sum()
    intersection = total - sorted_truth.cumsum(0)
    union = total + (1 - sorted_truth).cumsum(0)
    jaccard = 1 - intersection / union
    return torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])


class LovaszHinge(Function):
    """Binary Lovasz hinge loss of flat logits and 0/1 labels (Berman et al., 2018)."""

    @staticmethod
    def forward(ctx, logits, labels):
        if logits.dim() != 1 or labels.shape != logits.shape:
            raise ValueError("expected flat logits and labels")
        truth = labels.to(logits.dtype)
        signs = 2 * truth - 1
        errors, perm = (1 - logits * signs).sort(descending=True)
        weights = _lovasz_grad(truth[perm])
        coeff = torch.empty_like(logits)
        coeff[perm] = -weights * (errors > 0).to(logits.dtype)
        ctx.save_for_backward(coeff * signs)
        return torch.dot(errors.clamp_min(0), weights)

    @staticmethod
    def backward(ctx, grad_output):
        (coeff,) = ctx.saved_tensors
        return grad_output * coeff, None


class InfoNCE(Function):
    """Symmetric InfoNCE (CLIP) loss of a square similarity matrix and a log temperature.

    Args:
        similarity: (N, N) cosine similarities, matching pairs on the diagonal.
        logit_scale: 0-dim tensor, the log of the multiplicative scale.
    """

    @staticmethod
    def forward(ctx, similarity, logit_scale):
        n, m = similarity.shape
        if n != m:
            raise ValueError("similarity must be square")
        ctx.save_for_backward(similarity, logit_scale)
        logits = similarity * logit_scale.exp()
        diag = logits.diagonal()
        rows = torch.logsumexp(logits, dim=1) - diag
        cols = torch.logsumexp(logits, dim=0) - diag
        return (rows.mean() + cols.mean()) / 2

    @staticmethod
    def backward(ctx, grad_output):
        similarity, logit_scale = ctx.saved_tensors
        n = similarity.shape[0]
        scale = logit_scale.exp()
        logits = similarity * scale
        eye = torch.eye(n, dtype=logits.dtype, device=logits.device)
        g = (torch.softmax(logits, dim=1) + torch.softmax(logits, dim=0) - 2 * eye) / (2 * n)
        g = grad_output * g * scale
        grad_scale = (g * similarity).sum() if ctx.needs_input_grad[1] else None
        return g, grad_scale


class ArcFaceMargin(Function):
    """Additive angular margin on cosine logits: target entries become s*cos(theta + m).

    ``cosine`` must lie in (-1, 1); theta + m is assumed to stay below pi.
    """

    @staticmethod
    def forward(ctx, cosine, labels, scale=30.0, margin=0.5):
        if cosine.dim() != 2 or labels.shape != cosine.shape[:1]:
            raise ValueError("expected cosine (N, C) and labels (N,)")
        ctx.save_for_backward(cosine, labels)
        ctx.scale, ctx.margin = scale, margin
        index = labels.unsqueeze(1)
        theta = torch.acos(cosine.gather(1, index))
        return scale * cosine.scatter(1, index, torch.cos(theta + margin))

    @staticmethod
    def backward(ctx, grad_output):
        cosine, labels = ctx.saved_tensors
        index = labels.unsqueeze(1)
        c = cosine.gather(1, index)
        # d cos(theta + m) / d cos(theta) = cos(m) + sin(m) * cos(theta) / sin(theta)
        slope = math.cos(ctx.margin) + math.sin(ctx.margin) * c / torch.sqrt(1 - c * c)
        factor = torch.ones_like(cosine).scatter(1, index, slope)
        return ctx.scale * grad_output * factor, None, None, None


def _box_parts(a, b):
    lt, rb = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    wh = (rb - lt).clamp_min(0)
    size_a, size_b = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    return wh, size_a, size_b


class BoxIoULoss(Function):
    """1 - IoU of paired boxes in (x1, y1, x2, y2) form; targets receive no gradient."""

    @staticmethod
    def forward(ctx, pred, target):
        if pred.shape != target.shape or pred.shape[-1] != 4:
            raise ValueError("boxes must be (N, 4)")
        if ctx.needs_input_grad[1]:
            raise ValueError("BoxIoULoss is not differentiable in its targets")
        ctx.save_for_backward(pred, target)
        wh, sa, sb = _box_parts(pred, target)
        inter = wh.prod(dim=1)
        return 1 - inter / (sa.prod(dim=1) + sb.prod(dim=1) - inter)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        pred, target = ctx.saved_tensors
        wh, sa, sb = _box_parts(pred, target)
        inter = wh.prod(dim=1, keepdim=True)
        union = sa.prod(dim=1, keepdim=True) + sb.prod(dim=1, keepdim=True) - inter
        overlap = (wh > 0).all(dim=1, keepdim=True).to(pred.dtype)
        other = wh.flip(1) * overlap
        d_inter = torch.cat([-other * (pred[:, :2] > target[:, :2]), other * (pred[:, 2:] < target[:, 2:])], dim=1)
        d_area = torch.cat([-sa.flip(1), sa.flip(1)], dim=1)
        d_iou = (d_inter * (union + inter) - inter * d_area) / union.pow(2)
        return -grad_output.unsqueeze(1) * d_iou, None


class CrossEntropyZLoss(Function):
    """Cross-entropy and the squared log-partition "z loss", returned as two outputs."""

    @staticmethod
    def forward(ctx, logits, target):
        lse = torch.logsumexp(logits, dim=-1)
        picked = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(logits, target)
        ctx.set_materialize_grads(False)
        return lse - picked, lse.pow(2)

    @staticmethod
    def backward(ctx, grad_ce, grad_z):
        if grad_ce is None and grad_z is None:
            return None, None
        logits, target = ctx.saved_tensors
        p = torch.softmax(logits, dim=-1)
        grad = torch.zeros_like(p)
        if grad_ce is not None:
            hot = F.one_hot(target, p.shape[-1]).to(p.dtype)
            grad = grad + grad_ce.unsqueeze(-1) * (p - hot)
        if grad_z is not None:
            lse = torch.logsumexp(logits, dim=-1)
            grad = grad + (2 * grad_z * lse).unsqueeze(-1) * p
        return grad, None


class KLProbabilityRows(Function):
    """KL(p || softmax(logits)) per row, for p whose rows are strictly positive and sum to one.

    Differentiable in both arguments.
    """

    @staticmethod
    def forward(ctx, p, logits):
        if bool((p <= 0).any()):
            raise ValueError("p must be strictly positive")
        logq = F.log_softmax(logits, dim=-1)
        ctx.save_for_backward(p, logits)
        return (p * (p.log() - logq)).sum(dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        p, logits = ctx.saved_tensors
        g = grad_output.unsqueeze(-1)
        grad_p = grad_logits = None
        if ctx.needs_input_grad[0]:
            grad_p = g * (p.log() - F.log_softmax(logits, dim=-1) + 1)
        if ctx.needs_input_grad[1]:
            mass = p.sum(dim=-1, keepdim=True)
            grad_logits = g * (mass * torch.softmax(logits, dim=-1) - p)
        return grad_p, grad_logits


class WingLoss(nn.Module):
    """Mean wing loss for landmark regression."""

    def __init__(self, width=0.5, curvature=0.2):
        super().__init__()
        self.width, self.curvature = width, curvature

    def forward(self, prediction, target):
        return WingFunction.apply(prediction - target, self.width, self.curvature).mean()


class WingFunction(Function):
    """Wing penalty: w * ln(1 + |d| / c) for |d| < w, |d| - C beyond."""

    @staticmethod
    def forward(ctx, diff, width, curvature):
        ctx.save_for_backward(diff)
        ctx.width, ctx.curvature = width, curvature
        a = diff.abs()
        offset = width - width * math.log(1 + width / curvature)
        return torch.where(a < width, width * torch.log1p(a / curvature), a - offset)

    @staticmethod
    def backward(ctx, grad_output):
        (diff,) = ctx.saved_tensors
        a = diff.abs()
        slope = torch.where(a < ctx.width, ctx.width / (ctx.curvature + a), torch.ones_like(a))
        return grad_output * slope * torch.sign(diff), None, None


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


def _focal_inputs():
    torch.manual_seed(0)
    return torch.randn(4, 5, requires_grad=True), torch.randint(0, 2, (4, 5)).float(), 2.0, 0.25


def _boxes():
    a = torch.tensor([[0., 0., 4., 3.], [1., 1., 3., 5.], [0., 0., 1., 1.], [2., 2., 6., 6.]], dtype=torch.float64)
    b = torch.tensor([[1., 1., 5., 5.], [0., 2., 4., 4.], [3., 3., 4., 5.], [3., 3., 5., 5.]], dtype=torch.float64)
    return a.requires_grad_(), b


CASES = [
    dict(name="sigmoid_focal_loss", target=SigmoidFocalLoss, inputs=_focal_inputs,
         declares={}, note="0/1 float targets get no gradient; double backward right"),
    dict(name="label_smoothing_ce", target=LabelSmoothingCE,
         inputs=lambda: (_randn(5, 7).requires_grad_(), torch.tensor([0, 3, -100, 6, 2]), 0.1, -100),
         declares={}, note="int targets with ignore_index"),
    dict(name="soft_dice_loss", target=SoftDiceLoss,
         inputs=lambda: (torch.softmax(_randn(2, 3, 4, 4), 1).requires_grad_(),
                         F.one_hot(torch.arange(32).reshape(2, 4, 4) % 3, 3).permute(0, 3, 1, 2).double(), 1.0),
         declares={}, note="one-hot permuted (non-contiguous) target"),
    dict(name="lovasz_hinge", target=LovaszHinge,
         inputs=lambda: (_randn(12).requires_grad_(), torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1])),
         declares={}, note="piecewise linear in logits, so the saved coefficient is locally constant"),
    dict(name="info_nce", target=InfoNCE,
         inputs=lambda: (torch.tanh(_randn(5, 5)).requires_grad_(), torch.tensor(1.2, dtype=torch.float64, requires_grad=True)),
         declares={}, note="square similarity matrix, learned temperature"),
    dict(name="arcface_margin", target=ArcFaceMargin,
         inputs=lambda: ((0.8 * torch.tanh(_randn(4, 6))).requires_grad_(), torch.tensor([1, 0, 5, 3]), 30.0, 0.5),
         declares={}, note="cosines in (-1, 1), integer labels"),
    dict(name="box_iou_loss", target=BoxIoULoss, inputs=_boxes,
         declares={}, note="targets explicitly refused; once_differentiable"),
    dict(name="cross_entropy_z_loss", target=CrossEntropyZLoss,
         inputs=lambda: (_randn(4, 6).requires_grad_(), torch.tensor([0, 5, 2, 2])),
         declares={}, note="two outputs, set_materialize_grads(False) with None handled"),
    dict(name="kl_probability_rows", target=KLProbabilityRows,
         inputs=lambda: (torch.softmax(_randn(4, 5), -1).requires_grad_(), _randn(4, 5, seed=1).requires_grad_()),
         declares={}, note="probability rows; gradient valid off the simplex too (mass term)"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="charbonnier_loss", target=CharbonnierLoss,
         inputs=lambda: (_randn(2, 3, 4).requires_grad_(), _randn(2, 3, 4, seed=1).requires_grad_(), 1e-2),
         declares={}, note="scalar mean loss in both images"),
    dict(name="wing_loss", target=WingFunction, inputs=lambda: (_randn(4, 6).requires_grad_(), 0.5, 0.2),
         declares={}, note="elementwise wing penalty"),
]
