"""Losses: reductions by name, ignored labels, optional weights, chunks, and no overflow."""

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, positive, real, whole

REDUCTIONS = ("none", "mean", "sum")


def require_reduction(reduction):
    """Refuse a reduction that has no meaning."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")


def reduced(losses, reduction):
    """The losses as they are, their mean, or their sum."""
    require_reduction(reduction)
    return losses if reduction == "none" else getattr(losses, reduction)()


def spread(cotangent, count, reduction):
    """The cotangent of each single loss."""
    return cotangent / count if reduction == "mean" else cotangent


class MSE(Function):
    """The squared error, reduced by name."""

    @staticmethod
    def forward(ctx, x, target, reduction):
        if x.shape != target.shape:
            raise ValueError(f"x and target must have one shape, got {x.shape}, {target.shape}")
        ctx.reduction = reduction
        ctx.save_for_backward(x, target)
        return reduced((x - target).square(), reduction)

    @staticmethod
    def backward(ctx, grad_output):
        x, target = ctx.saved_tensors
        grad = 2 * (x - target) * spread(grad_output, x.numel(), ctx.reduction)
        return (
            grad if ctx.needs_input_grad[0] else None,
            -grad if ctx.needs_input_grad[1] else None,
            None,
        )


class L1(Function):
    """The absolute error, with slope 0 at 0."""

    @staticmethod
    def forward(ctx, x, target, reduction):
        if x.shape != target.shape:
            raise ValueError(f"x and target must have one shape, got {x.shape}, {target.shape}")
        ctx.reduction = reduction
        ctx.save_for_backward(x, target)
        return reduced((x - target).abs(), reduction)

    @staticmethod
    def backward(ctx, grad_output):
        x, target = ctx.saved_tensors
        grad = (x - target).sign() * spread(grad_output, x.numel(), ctx.reduction)
        return (
            grad if ctx.needs_input_grad[0] else None,
            -grad if ctx.needs_input_grad[1] else None,
            None,
        )


class Huber(pb.Function):
    """Squares within `delta`, lines outside; the target gets no gradient."""

    @staticmethod
    def forward(ctx, x, target, delta):
        error = x - target
        ctx.delta = delta
        ctx.save_for_backward(error)
        size = error.abs()
        return torch.where(size <= delta, 0.5 * error * error, delta * (size - delta / 2)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (error,) = ctx.saved_tensors
        return grad_output * error.clamp(-ctx.delta, ctx.delta), None, None


class BinaryCrossEntropy(Function):
    """From logits, safe for large ones; `weight` of positives may be None."""

    @staticmethod
    def forward(ctx, logits, target, weight):
        ctx.save_for_backward(logits, target, weight)
        return F.binary_cross_entropy_with_logits(
            logits, target, pos_weight=weight, reduction="none"
        )

    @staticmethod
    def backward(ctx, grad_output):
        logits, target, weight = ctx.saved_tensors
        scale = 1 if weight is None else weight
        # -d/dx [w t log s(x) + (1 - t) log s(-x)]
        slope = (1 - target) * torch.sigmoid(logits) - scale * target * torch.sigmoid(-logits)
        return grad_output * slope, None, None


class CrossEntropy(Function):
    """Cross entropy with integer labels, an ignored label and a reduction by name.

    All labels ignored: the mean is nan as in torch, and so is what it gives back.
    """

    @staticmethod
    def forward(ctx, logits, labels, ignore, reduction):
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or not logits.shape[1]:
            raise ValueError(f"takes (n, classes) and (n), got {logits.shape}, {labels.shape}")
        require_reduction(reduction)
        ctx.ignore, ctx.reduction = ignore, reduction
        ctx.save_for_backward(logits, labels)
        losses = -torch.log_softmax(logits, 1).gather(1, CrossEntropy.valid(labels, ignore))
        losses = losses.squeeze(1).masked_fill(labels == ignore, 0)
        if reduction == "mean":
            return losses.sum() / (labels != ignore).sum()
        return reduced(losses, reduction)

    @staticmethod
    def valid(labels, ignore):
        return labels.masked_fill(labels == ignore, 0).unsqueeze(1)

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        kept = labels != ctx.ignore
        each = spread(grad_output, kept.sum(), ctx.reduction) * kept
        hit = torch.zeros_like(logits).scatter(1, CrossEntropy.valid(labels, ctx.ignore), 1)
        return each.unsqueeze(1) * (torch.softmax(logits, 1) - hit), None, None, None


class SmoothedCrossEntropy(Function):
    """Cross entropy against labels mixed with the uniform distribution."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing):
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or not logits.shape[1]:
            raise ValueError(f"takes (n, classes) and (n), got {logits.shape}, {labels.shape}")
        ctx.smoothing = smoothing
        ctx.save_for_backward(logits, labels)
        wanted = SmoothedCrossEntropy.wanted(logits, labels, smoothing)
        return -(wanted * torch.log_softmax(logits, 1)).sum(1)

    @staticmethod
    def wanted(logits, labels, smoothing):
        flat = torch.full_like(logits, smoothing / logits.shape[1])
        return flat.scatter_add(
            1, labels.unsqueeze(1), flat.new_full((len(flat), 1), 1 - smoothing)
        )

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        wanted = SmoothedCrossEntropy.wanted(logits, labels, ctx.smoothing)
        return grad_output.unsqueeze(1) * (torch.softmax(logits, 1) - wanted), None, None


class FusedLinearCrossEntropy(Function):
    """The loss of `x @ weight.T` in chunks: the logits of all rows never exist at once.

    Backward computes each chunk's logits again, so every row may have its own cotangent.
    """

    @staticmethod
    def forward(ctx, x, weight, labels, chunk):
        if x.dim() != 2 or weight.dim() != 2 or labels.shape != x.shape[:1]:
            raise ValueError(f"takes (n, d), (classes, d) and (n), got {x.shape}, {weight.shape}")
        if not weight.shape[0]:
            raise ValueError("there must be at least one class")
        ctx.chunk = chunk
        ctx.save_for_backward(x, weight, labels)
        losses = [
            F.cross_entropy(rows @ weight.t(), wanted, reduction="none")
            for rows, wanted in zip(x.split(chunk), labels.split(chunk), strict=True)
        ]
        return torch.cat(losses)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, labels = ctx.saved_tensors
        grads_x, grad_weight = [], torch.zeros_like(weight)
        chunks = (t.split(ctx.chunk) for t in (x, labels, grad_output))
        for rows, wanted, cotangent in zip(*chunks, strict=True):
            p = torch.softmax(rows @ weight.t(), 1)
            pulled = (p - F.one_hot(wanted, len(weight)).to(p.dtype)) * cotangent.unsqueeze(1)
            if ctx.needs_input_grad[0]:
                grads_x.append(pulled @ weight)
            if ctx.needs_input_grad[1]:
                grad_weight = grad_weight + pulled.t() @ rows
        return (
            torch.cat(grads_x) if ctx.needs_input_grad[0] else None,
            grad_weight if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class KLDivergence(Function):
    """`sum t (log t - x)` with 0 for t = 0; both inputs get gradients."""

    @staticmethod
    def forward(ctx, x, target):
        if x.shape != target.shape:
            raise ValueError(f"x and target must have one shape, got {x.shape}, {target.shape}")
        ctx.save_for_backward(x, target)
        return torch.special.xlogy(target, target) - target * x

    @staticmethod
    def backward(ctx, grad_output):
        x, target = ctx.saved_tensors
        return (
            -grad_output * target if ctx.needs_input_grad[0] else None,
            grad_output * (target.log() + 1 - x) if ctx.needs_input_grad[1] else None,
        )


class Hinge(Function):
    """`max(0, 1 - y x)` for integer labels -1 and 1."""

    @staticmethod
    def forward(ctx, x, label):
        margin = 1 - label * x
        ctx.shape = x.shape
        ctx.save_for_backward(torch.where(margin > 0, -label, 0))
        return margin.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return (grad_output * slope).sum_to_size(ctx.shape), None


class PoissonNLL(Function):
    """`exp(x) - target x`, the target counted in integers."""

    @staticmethod
    def forward(ctx, x, target):
        if x.shape != target.shape:
            raise ValueError(f"x and target must have one shape, got {x.shape}, {target.shape}")
        ctx.save_for_backward(x, target)
        return (x.exp() - target * x).mean()

    @staticmethod
    def backward(ctx, grad_output):
        x, target = ctx.saved_tensors
        return grad_output * (x.exp() - target) / x.numel(), None


class Triplet(Function):
    """`max(0, |a - p|^2 - |a - n|^2 + margin)`, three inputs of one shape."""

    @staticmethod
    def forward(ctx, anchor, near, far, margin):
        if anchor.dim() != 2 or not anchor.shape == near.shape == far.shape:
            raise ValueError("anchor, near and far must be matrices of one shape")
        gap = (anchor - near).square().sum(1) - (anchor - far).square().sum(1) + margin
        ctx.save_for_backward(anchor, near, far, gap > 0)
        return gap.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        anchor, near, far, active = ctx.saved_tensors
        g = 2 * torch.where(active, grad_output, 0.0).unsqueeze(1)
        return (
            g * (far - near) if ctx.needs_input_grad[0] else None,
            g * (near - anchor) if ctx.needs_input_grad[1] else None,
            g * (anchor - far) if ctx.needs_input_grad[2] else None,
            None,
        )


def _labels():
    labels = whole(6, high=5)
    labels[1] = labels[4] = -100
    return labels


def _signs():
    return 2 * whole(4, 5, high=2) - 1


def _bce(logits, target, weight):
    return F.binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")


def _ce(logits, labels, ignore, reduction):
    return F.cross_entropy(logits, labels, ignore_index=ignore, reduction=reduction)


def _smoothed(logits, labels, smoothing):
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def _huber(x, target, delta):
    return F.huber_loss(x, target, reduction="sum", delta=delta)


def _constant(*shape):
    return positive(*shape).detach() / 2


def _triplet(anchor, near, far, margin):
    gap = (anchor - near).square().sum(1) - (anchor - far).square().sum(1)
    return torch.relu(gap + margin)


SOUND = {
    **{
        f"mse-{name}": Sound(
            MSE,
            lambda name=name: (real(4, 5), real(4, 5, seed=1), name),
            lambda x, t, name: F.mse_loss(x, t, reduction=name),
        )
        for name in REDUCTIONS
    },
    "l1": Sound(
        L1,
        lambda: (real(4, 5), real(4, 5, seed=1), "mean"),
        lambda x, t, name: F.l1_loss(x, t, reduction=name),
    ),
    "huber": Sound(Huber, lambda: (real(4, 5), _constant(4, 5), 0.7), _huber, order=1),
    "bce-with-logits": Sound(
        BinaryCrossEntropy, lambda: (real(4, 5), _constant(4, 5), _constant(5) + 1), _bce
    ),
    "bce-without-weight": Sound(
        BinaryCrossEntropy, lambda: (real(4, 5), _constant(4, 5), None), _bce
    ),
    **{
        f"cross-entropy-{name}": Sound(
            CrossEntropy, lambda name=name: (real(6, 5), _labels(), -100, name), _ce
        )
        for name in REDUCTIONS
    },
    "cross-entropy-smoothed": Sound(
        SmoothedCrossEntropy, lambda: (real(6, 5), whole(6, high=5), 0.1), _smoothed
    ),
    "cross-entropy-of-linear-in-chunks": Sound(
        FusedLinearCrossEntropy,
        lambda: (real(7, 3), real(5, 3, seed=1), whole(7, high=5), 3),
        lambda x, w, t, _: F.cross_entropy(x @ w.t(), t, reduction="none"),
    ),
    "kl-divergence": Sound(
        KLDivergence,
        lambda: (real(4, 5), positive(4, 5)),
        lambda x, t: F.kl_div(x, t, reduction="none"),
        convention=False,  # for t = 0 the slope is -inf, where torch has nan
    ),
    "hinge": Sound(Hinge, lambda: (real(4, 5), _signs()), lambda x, y: torch.relu(1 - y * x)),
    "poisson-nll": Sound(
        PoissonNLL,
        lambda: (real(4, 5), whole(4, 5, high=6)),
        lambda x, t: F.poisson_nll_loss(x, t),
    ),
    "triplet": Sound(
        Triplet,
        lambda: (real(5, 3), real(5, 3, seed=1), real(5, 3, seed=2), 0.5),
        _triplet,
    ),
}

CASES = cases_of(SOUND)
