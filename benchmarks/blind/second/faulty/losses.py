"""Loss functions."""
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class SigmoidFocalLoss(Function):
    """Focal loss on logits, summed. Lin et al., "Focal Loss for Dense Object Detection"."""

    @staticmethod
    def forward(logits, targets, gamma, alpha):
        p = torch.sigmoid(logits)
        pt = p * targets + (1 - p) * (1 - targets)
        at = alpha * targets + (1 - alpha) * (1 - targets)
        return (-at * (1 - pt) ** gamma * pt.log()).sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        logits, targets, gamma, alpha = inputs
        ctx.save_for_backward(logits, targets)
        ctx.gamma, ctx.alpha = gamma, alpha

    @staticmethod
    def backward(ctx, grad_output):
        logits, targets = ctx.saved_tensors
        p = torch.sigmoid(logits)
        sign = 2 * targets - 1
        pt = p * targets + (1 - p) * (1 - targets)
        at = ctx.alpha * targets + (1 - ctx.alpha) * (1 - targets)
        grad = at * (1 - pt) ** ctx.gamma * (ctx.gamma * pt.log() * pt - (1 - pt))
        # d pt / d logit = sign * pt * (1 - pt)
        grad = grad * sign * (1 - pt)
        return grad_output * grad, None, None, None


class SmoothedCrossEntropy(Function):
    """Cross entropy with label smoothing; reduction is 'mean' or 'sum'."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing=0.1, reduction="mean"):
        logp = torch.log_softmax(logits, dim=-1)
        n, k = logits.shape
        soft = torch.full_like(logits, smoothing / k)
        soft.scatter_add_(1, labels[:, None], torch.full_like(logits[:, :1], 1 - smoothing))
        ctx.save_for_backward(logits, soft)
        ctx.reduction = reduction
        loss = -(soft * logp).sum(dim=-1)
        return loss.mean() if reduction == "mean" else loss.sum()

    @staticmethod
    def backward(ctx, grad_output):
        logits, soft = ctx.saved_tensors
        grad = torch.softmax(logits, dim=-1) - soft
        return grad_output * grad / logits.size(0), None, None, None


class SoftDice(Function):
    """1 - 2|P*T| / (|P| + |T|) per sample."""

    @staticmethod
    def forward(ctx, pred, target, eps):
        pred2, target2 = pred.flatten(1), target.flatten(1)
        inter = (pred2 * target2).sum(1)
        union = (pred2 ** 2).sum(1) + (target2 ** 2).sum(1)
        ctx.save_for_backward(pred, target)
        ctx.eps = eps
        return 1 - (2 * inter + eps) / (union + eps)

    @staticmethod
    def backward(ctx, grad_out):
        pred, target = ctx.saved_tensors
        pred2, target2 = pred.flatten(1), target.flatten(1)
        num = 2 * (pred2 * target2).sum(1, keepdim=True) + ctx.eps
        den = (pred2 ** 2).sum(1, keepdim=True) + (target2 ** 2).sum(1, keepdim=True) + ctx.eps
        grad = -(2 * target2 * den - num * pred2) / den ** 2
        return (grad * grad_out[:, None]).view_as(pred), None, None


class MaskedNLL(Function):
    """Softmax cross entropy averaged over labels other than `ignore_index`."""

    @staticmethod
    def forward(ctx, logits, labels, ignore_index=-100):
        valid = labels != ignore_index
        safe = labels.masked_fill(~valid, 0)
        logp = torch.log_softmax(logits, dim=1)
        nll = -logp.gather(1, safe[:, None]).squeeze(1) * valid
        ctx.save_for_backward(logits, safe, valid)
        return nll.sum() / valid.sum().clamp(min=1)

    @staticmethod
    def backward(ctx, g):
        logits, safe, valid = ctx.saved_tensors
        grad = torch.softmax(logits, dim=1) - F.one_hot(safe, logits.size(1)).to(logits.dtype)
        grad = grad * valid[:, None] / labels_count(safe)
        return g * grad, None, None


def labels_count(labels):
    return max(labels.numel(), 1)


class FusedKLDiv(Function):
    """KL(target || softmax(logits)) with the gradient computed together with the loss."""

    @staticmethod
    def forward(ctx, logits, target):
        logq = torch.log_softmax(logits, dim=-1)
        loss = (target * (target.log() - logq)).sum() / logits.size(0)
        grad = (logq.exp() * target.sum(-1, keepdim=True) - target) / logits.size(0)
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (grad,) = ctx.saved_tensors
        return grad, None


class InfoNCE(Function):
    """Contrastive loss between two batches of embeddings, positives on the diagonal."""

    @staticmethod
    def forward(z1, z2, temperature):
        logits = z1 @ z2.t() / temperature
        return -torch.log_softmax(logits, dim=1).diagonal().mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        z1, z2, temperature = inputs
        ctx.save_for_backward(z1, z2)
        ctx.temperature = temperature

    @staticmethod
    def backward(ctx, grad_output):
        z1, z2 = ctx.saved_tensors
        n = z1.size(0)
        p = torch.softmax(z1 @ z2.t() / ctx.temperature, dim=1)
        d = (p - torch.eye(n, dtype=p.dtype, device=p.device)) * grad_output / (n * ctx.temperature)
        g1 = d @ z2 if ctx.needs_input_grad[0] else None
        g2 = d @ z1 if ctx.needs_input_grad[1] else None
        return g1, g2, None


def lovasz_weights(gt_sorted):
    gts = gt_sorted.sum()
    inter = gts - gt_sorted.cumsum(0)
    union = gts + (1 - gt_sorted).cumsum(0)
    jac = 1 - inter / union
    jac[1:] = jac[1:] - jac[:-1].clone()
    return jac


class LovaszHinge(Function):
    """Binary Lovasz hinge on flat logits and {0,1} labels."""

    @staticmethod
    def forward(ctx, logits, labels):
        signs = 2 * labels - 1
        errors = 1 - logits * signs
        errors_sorted, perm = torch.sort(errors, descending=True)
        w = lovasz_weights(labels[perm])
        ctx.save_for_backward(errors_sorted, perm, w, signs)
        return torch.dot(F.relu(errors_sorted), w)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        errors_sorted, perm, w, signs = ctx.saved_tensors
        d_sorted = w * (errors_sorted > 0)
        d_errors = d_sorted[perm]
        return -grad_output * d_errors * signs, None


class TripletMargin(Function):
    """max(0, |a-p| - |a-n| + margin), one value per row."""

    @staticmethod
    def forward(a, p, n, margin):
        return F.relu((a - p).norm(dim=1) - (a - n).norm(dim=1) + margin)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, p, n, margin = inputs
        ctx.save_for_backward(a, p, n)
        ctx.margin = margin

    @staticmethod
    def backward(ctx, g):
        a, p, n = ctx.saved_tensors
        dp = (a - p).norm(dim=1, keepdim=True)
        dn = (a - n).norm(dim=1, keepdim=True)
        active = ((dp - dn + ctx.margin) > 0).to(g.dtype) * g[:, None]
        up = active * (a - p) / dp
        un = active * (a - n) / dn
        return up - un, -up, un, None


class PeakNormalisedMSE(Function):
    """Mean squared error of maps after scaling each prediction to a peak of one."""

    @staticmethod
    def forward(ctx, pred, target):
        peak = pred.detach().abs().amax(dim=(1, 2), keepdim=True)
        diff = pred / peak - target
        ctx.save_for_backward(pred, target)
        return (diff ** 2).mean()

    @staticmethod
    def backward(ctx, grad_output):
        pred, target = ctx.saved_tensors
        peak = pred.detach().abs().amax(dim=(1, 2), keepdim=True)
        diff = pred / peak - target
        return grad_output * 2 * diff / (peak * diff.numel()), None


class CenterLoss(Function):
    """Half squared distance of features to their class centre, one value per sample."""

    @staticmethod
    def forward(ctx, feats, labels, centers):
        diff = feats - centers[labels]
        loss = 0.5 * (diff ** 2).sum(1)
        ctx.save_for_backward(feats, labels, centers)
        ctx.loss = loss
        return loss

    @staticmethod
    def backward(ctx, g):
        feats, labels, centers = ctx.saved_tensors
        diff = (feats - centers[labels]) * g.expand_as(ctx.loss)[:, None]
        grad_c = None
        if ctx.needs_input_grad[2]:
            grad_c = torch.zeros_like(centers).index_add(0, labels, -diff)
        return diff, None, grad_c


def focal_twin(x, t, gamma, alpha):
    p = torch.sigmoid(x)
    pt = p * t + (1 - p) * (1 - t)
    at = alpha * t + (1 - alpha) * (1 - t)
    return (-at * (1 - pt) ** gamma * pt.log()).sum()


def triplet_twin(a, p, n, m):
    return F.relu(torch.linalg.vector_norm(a - p, dim=1) - torch.linalg.vector_norm(a - n, dim=1) + m)


BIN = lambda: ten([1., 0., 1., 1., 0., 0.], grad=False)
LBL = lambda: ints(0, 2, 1, 2)

CASES = [
    case("losses_sigmoid_focal", SigmoidFocalLoss, lambda: (rnd(6, seed=1), BIN(), 3.0, 0.25),
         "The factor (1 - pt) of d pt/d logit is applied once more, so one power of (1 - pt) too many multiplies the gradient.",
         twin=focal_twin),
    case("losses_smoothed_ce_sum", SmoothedCrossEntropy, lambda: (rnd(4, 3, seed=2), LBL()),
         "The gradient is divided by the batch size for reduction='sum' also.", visible=False,
         elsewhere=lambda: (rnd(4, 3, seed=2), LBL(), 0.1, "sum"), where="reduction='sum'"),
    case("losses_soft_dice", SoftDice, lambda: (uni(3, 2, 4, seed=3), uni(3, 2, 4, seed=4, grad=False), 1e-3),
         "The derivative of the squared prediction in the denominator lacks its factor two."),
    case("losses_masked_nll_mean", MaskedNLL, lambda: (rnd(4, 3, seed=5), LBL()),
         "The gradient is averaged over all labels although the loss is averaged over those not ignored.", visible=False,
         elsewhere=lambda: (rnd(4, 3, seed=5), ints(0, -100, 1, -100)), where="labels equal to ignore_index"),
    case("losses_fused_kl_div", FusedKLDiv,
         lambda: (rnd(3, 4, seed=6, dtype=F32), torch.softmax(rnd(3, 4, seed=7, dtype=F32, grad=False), -1)),
         "The precomputed gradient is returned without the incoming gradient, which is assumed to be one."),
    case("losses_info_nce_keys", InfoNCE, lambda: (rnd(4, 5, seed=8), rnd(4, 5, seed=9), 0.5),
         "The gradient of the second batch uses the matrix of differences without transposing it."),
    case("losses_lovasz_hinge", LovaszHinge, lambda: (rnd(6, seed=12), BIN()),
         "The sorted weights are gathered with the permutation where they should be scattered back (inverse permutation)."),
    case("losses_triplet_zero_distance", TripletMargin,
         lambda: (rnd(3, 4, seed=11), rnd(3, 4, seed=12), rnd(3, 4, seed=13), 1.0),
         "A row whose anchor equals its positive divides zero by zero and gives NaN.", visible=False, twin=triplet_twin,
         evidence=lambda: ok(TripletMargin, (rnd(3, 4, seed=11), rnd(3, 4, seed=12), rnd(3, 4, seed=13), 1.0))
         and nonfinite(TripletMargin, (rnd(3, 4, seed=11), rnd(3, 4, seed=11), rnd(3, 4, seed=13), 9.0)),
         where="anchor equal to positive"),
    case("losses_peak_normalised_mse", PeakNormalisedMSE,
         lambda: (rnd(2, 3, 3, seed=14), uni(2, 3, 3, seed=15, grad=False)),
         "The peak is detached in forward and taken as a constant in backward although the loss depends on the prediction through it."),
    case("losses_center_loss_ctx", CenterLoss, lambda: (rnd(4, 3, seed=16, dtype=F32), LBL(), rnd(3, 3, seed=17, dtype=F32)),
         "The output itself is kept as an attribute of ctx, a reference cycle that keeps the graph and its buffers alive until the garbage collector runs.",
         kind="wasteful", visible=False,
         evidence=lambda: outlives(CenterLoss, (rnd(4, 3, seed=16), LBL(), rnd(3, 3, seed=17)))),
]
