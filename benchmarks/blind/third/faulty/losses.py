"""Loss functions with hand-written gradients."""
from support import *


class SigmoidFocalLoss(Function):
    """Focal loss for dense detection, mean over all entries."""

    @staticmethod
    def forward(ctx, logits, target, alpha=0.25, gamma=2.0):
        p = torch.sigmoid(logits)
        ctx.save_for_backward(logits, target)
        ctx.alpha, ctx.gamma = alpha, gamma
        pt = torch.where(target > 0, p, 1 - p)
        w = torch.where(target > 0, alpha, 1 - alpha)
        return -(w * (1 - pt) ** gamma * torch.log(pt)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        logits, target = ctx.saved_tensors
        alpha, gamma = ctx.alpha, ctx.gamma
        p = torch.sigmoid(logits)
        pos = target > 0
        pt = torch.where(pos, p, 1 - p)
        w = torch.where(pos, alpha, 1 - alpha)
        sign = torch.where(pos, 1.0, -1.0).to(logits.dtype)
        grad = -w * sign * (1 - pt) ** gamma * (1 - pt)
        return grad_output * grad / logits.numel(), None, None, None


class LabelSmoothingCE(Function):
    """Cross entropy with label smoothing; rows labelled ``ignore_index`` do not count."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing, ignore_index):
        logp = torch.log_softmax(logits, -1)
        valid = labels != ignore_index
        safe = labels.clamp(min=0)
        nll = -logp.gather(1, safe[:, None])[:, 0]
        loss = (1 - smoothing) * nll - smoothing * logp.mean(-1)
        ctx.save_for_backward(logits, labels)
        ctx.smoothing, ctx.ignore_index = smoothing, ignore_index
        return (loss * valid).sum() / valid.sum().clamp(min=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        n, c = logits.shape
        grad = torch.softmax(logits, -1)
        grad -= ctx.smoothing / c
        valid = labels != ctx.ignore_index
        rows = torch.arange(n)[valid]
        grad[rows, labels[valid]] -= 1 - ctx.smoothing
        grad *= valid[:, None]
        return grad * (grad_output / n), None, None, None


def label_smoothing_ce(logits, labels, smoothing=0.1, ignore_index=-100):
    return LabelSmoothingCE.apply(logits, labels, smoothing, ignore_index)


class CrossEntropyZ(Function):
    """Cross entropy together with the z-loss term lse^2, both per row."""

    @staticmethod
    def forward(ctx, logits, labels, lse_square_scale):
        lse = torch.logsumexp(logits, -1)
        loss = lse - logits.gather(1, labels[:, None])[:, 0]
        z_loss = lse_square_scale * lse ** 2
        ctx.save_for_backward(logits, labels)
        ctx.lse_square_scale = lse_square_scale
        return loss + z_loss, z_loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, grad_z):
        logits, labels = ctx.saved_tensors
        lse = torch.logsumexp(logits, -1, keepdim=True)
        p = torch.exp(logits - lse)
        grad = p * (1 + 2 * ctx.lse_square_scale * lse)
        grad[torch.arange(labels.numel()), labels] -= 1
        return grad * grad_loss[:, None], None, None


def cross_entropy_with_z_loss(logits, labels, lse_square_scale=1e-1):
    return CrossEntropyZ.apply(logits, labels, lse_square_scale)


class LovaszHinge(Function):
    """Lovasz hinge on one flattened binary mask."""

    @staticmethod
    def forward(ctx, logits, labels):
        signs = (2 * labels - 1).to(logits.dtype)
        errors = 1 - logits * signs
        errors_sorted, perm = torch.sort(errors, descending=True)
        gt = labels[perm].to(logits.dtype)
        inter = gt.sum() - gt.cumsum(0)
        union = gt.sum() + (1 - gt).cumsum(0)
        jac = 1 - inter / union
        jac[1:] = jac[1:] - jac[:-1].clone()
        ctx.save_for_backward(jac, errors_sorted, signs)
        return (errors_sorted.clamp(min=0) * jac).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        jac, errors_sorted, signs = ctx.saved_tensors
        grad = jac * (errors_sorted > 0) * -signs
        return grad * grad_output, None


class FusedLinearCrossEntropy(Function):
    """Projection and mean cross entropy in one step; the gradients are computed in forward
    so that the logits never need to be kept."""

    @staticmethod
    def forward(ctx, x, weight, labels):
        x, weight = x.detach(), weight.detach()
        logits = x @ weight.t()
        lse = torch.logsumexp(logits, -1)
        loss = (lse - logits.gather(1, labels[:, None])[:, 0]).mean()
        d = torch.softmax(logits, -1)
        d[torch.arange(labels.numel()), labels] -= 1
        d /= labels.numel()
        need_x, need_w = ctx.needs_input_grad[:2]
        ctx.save_for_backward(d @ weight if need_x else None, d.t() @ x if need_w else None)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        gx, gw = ctx.saved_tensors
        if grad_output != 1.0:
            if gx is not None:
                gx.mul_(grad_output)
            if gw is not None:
                gw.mul_(grad_output)
        return gx, gw, None


class KLDivFunction(Function):
    """Batch-mean KL(target || exp(log_input)), zero where the target is zero."""

    @staticmethod
    def forward(ctx, log_input, target):
        ctx.save_for_backward(target)
        ctx.n = log_input.size(0)
        return (torch.xlogy(target, target) - target * log_input).sum() / ctx.n

    @staticmethod
    def backward(ctx, grad_output):
        target, = ctx.saved_tensors
        return -target * (grad_output / ctx.n), None


class DenseCrossEntropy(Function):
    """Row-wise cross entropy with integer labels."""

    @staticmethod
    def forward(ctx, logits, labels):
        logp = torch.log_softmax(logits, -1)
        onehot = F.one_hot(labels, logits.size(-1)).to(logits.dtype)
        prob = logp.exp()
        ctx.save_for_backward(prob, onehot)
        return -(logp * onehot).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        prob, onehot = ctx.saved_tensors
        return (prob - onehot) * grad_output[:, None], None


def _labels(*v):
    return torch.tensor(v)


CASES = [
    {"name": "focal_loss_modulating_factor", "target": SigmoidFocalLoss,
     "inputs": lambda: (randn(4, 3), (rand(4, 3, seed=2, grad=False) > 0.5).long()),
     "fault": "The derivative of the modulating factor (1 - pt)^gamma is left out.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(SigmoidFocalLoss, (randn(5), _labels(0, 1, 1, 0, 1)))},
    {"name": "label_smoothing_ignored_rows", "target": label_smoothing_ce,
     "inputs": lambda: (randn(4, 5), _labels(0, 2, 4, 1)),
     "fault": "The gradient is divided by the number of rows, not by the number of rows that are not ignored.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(label_smoothing_ce, (randn(4, 5), _labels(0, -100, 4, 1)))},
    {"name": "cross_entropy_z_loss_cotangent", "target": cross_entropy_with_z_loss,
     "inputs": lambda: (randn(4, 5), _labels(0, 2, 4, 1)),
     "fault": "The cotangent of the second output, the z-loss, is ignored though the output is differentiable.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(cross_entropy_with_z_loss, (randn(2, 3), _labels(0, 2)))},
    {"name": "lovasz_hinge_unsort", "target": LovaszHinge,
     "inputs": lambda: (randn(6), _labels(1, 0, 1, 1, 0, 0)),
     "fault": "The gradient is left in sorted order, not scattered back by the permutation.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(LovaszHinge, (randn(6), _labels(1, 0, 1, 1, 0, 0)))},
    {"name": "fused_linear_ce_second_call", "target": FusedLinearCrossEntropy,
     "inputs": lambda: (randn(4, 3), randn(5, 3, seed=1), _labels(0, 2, 4, 1)),
     "fault": "backward scales the stored gradients in place, so a second backward over the graph is wrong.",
     "kind": "fragile", "visible": False,
     "evidence": lambda: twice_differs(FusedLinearCrossEntropy, (randn(4, 3), randn(5, 3, seed=1), _labels(0, 2, 4, 1)))},
    {"name": "kl_div_target_gradient", "target": KLDivFunction,
     "inputs": lambda: (randn(3, 4), rand(3, 4, seed=1, grad=False, lo=0.1)),
     "fault": "A target that requires grad silently receives None.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(KLDivFunction, (randn(3, 4), rand(3, 4, seed=1, lo=0.1)))},
    {"name": "dense_cross_entropy_onehot", "target": DenseCrossEntropy,
     "inputs": lambda: (randn(4, 50), _labels(0, 2, 4, 1)),
     "fault": "A dense one-hot matrix as large as the logits is kept for backward where the labels would do.",
     "kind": "wasteful", "visible": False,
     "evidence": lambda: saved_elems(DenseCrossEntropy, (randn(4, 50), _labels(0, 2, 4, 1))) >= 400},
]
