"""Losses with hand-written gradients."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, same_shape, full_precision


class SigmoidFocalLoss(Function):
    """Focal loss on logits (RetinaNet). gamma is 0 or at least 1; targets in [0, 1] carry no gradient."""

    @staticmethod
    def forward(ctx, logits, targets, alpha=0.25, gamma=2.0):
        real_floating("SigmoidFocalLoss", logits, targets)
        same_shape("SigmoidFocalLoss", logits, targets)
        if ctx.needs_input_grad[1]:
            raise ValueError("SigmoidFocalLoss: targets must not require grad")
        if gamma != 0 and gamma < 1:
            raise ValueError("SigmoidFocalLoss: gamma must be 0 or >= 1")
        ctx.save_for_backward(logits, targets)
        ctx.alpha, ctx.gamma = alpha, gamma
        p = torch.sigmoid(logits)
        miss = 1 - (p * targets + (1 - p) * (1 - targets))
        weight = alpha * targets + (1 - alpha) * (1 - targets)
        return weight * (F.softplus(logits) - logits * targets) * miss ** gamma

    @staticmethod
    def backward(ctx, grad_out):
        logits, targets = ctx.saved_tensors
        p = torch.sigmoid(logits)
        miss = 1 - (p * targets + (1 - p) * (1 - targets))
        weight = ctx.alpha * targets + (1 - ctx.alpha) * (1 - targets)
        grad = (p - targets) * miss ** ctx.gamma
        if ctx.gamma != 0:
            ce = F.softplus(logits) - logits * targets
            grad = grad + ce * ctx.gamma * miss ** (ctx.gamma - 1) * (1 - 2 * targets) * p * (1 - p)
        return grad_out * weight * grad, None, None, None


class SmoothedCrossEntropy(Function):
    """Mean cross entropy with label smoothing over the rows whose label is not `ignore_index`."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing=0.1, ignore_index=-100):
        real_floating("SmoothedCrossEntropy", logits)
        if logits.dim() != 2 or labels.shape != logits.shape[:1]:
            raise ValueError("SmoothedCrossEntropy: logits (N, C) and labels (N,) expected")
        keep = labels != ignore_index
        logp = torch.log_softmax(logits, 1)
        picked = logp.gather(1, labels.masked_fill(~keep, 0)[:, None])[:, 0]
        rows = -(1 - smoothing) * picked - smoothing * logp.mean(1)
        ctx.save_for_backward(logits, labels)
        ctx.smoothing, ctx.ignore_index, ctx.count = smoothing, ignore_index, max(int(keep.sum()), 1)
        return rows.masked_fill(~keep, 0).sum() / ctx.count

    @staticmethod
    def backward(ctx, grad_out):
        logits, labels = ctx.saved_tensors
        keep = labels != ctx.ignore_index
        aim = torch.full_like(logits, ctx.smoothing / logits.shape[1])
        hot = F.one_hot(labels.masked_fill(~keep, 0), logits.shape[1]).to(logits.dtype)
        aim = aim + (1 - ctx.smoothing) * hot
        grad = (torch.softmax(logits, 1) - aim) * keep[:, None] * (grad_out / ctx.count)
        return grad, None, None, None


class SoftDiceLoss(Function):
    """1 - Dice overlap per sample and class, of probabilities and one-hot masks (N, C, *space)."""

    @staticmethod
    def forward(ctx, probs, onehot, smooth=1.0):
        real_floating("SoftDiceLoss", probs, onehot)
        same_shape("SoftDiceLoss", probs, onehot)
        if probs.dim() < 3 or smooth <= 0:
            raise ValueError("SoftDiceLoss: (N, C, *space) and smooth > 0 expected")
        ctx.save_for_backward(probs, onehot)
        ctx.smooth = smooth
        p, t = probs.flatten(2), onehot.flatten(2)
        return 1 - (2 * (p * t).sum(2) + smooth) / (p.sum(2) + t.sum(2) + smooth)

    @staticmethod
    def backward(ctx, grad_out):
        probs, onehot = ctx.saved_tensors
        p, t = probs.flatten(2), onehot.flatten(2)
        num = (2 * (p * t).sum(2) + ctx.smooth)[..., None]
        den = (p.sum(2) + t.sum(2) + ctx.smooth)[..., None]
        g = grad_out[..., None]
        gp = gt = None
        if ctx.needs_input_grad[0]:
            gp = (g * (num - 2 * t * den) / den ** 2).reshape(probs.shape)
        if ctx.needs_input_grad[1]:
            gt = (g * (num - 2 * p * den) / den ** 2).reshape(onehot.shape)
        return gp, gt, None


class WingLoss(Function):
    """Wing loss for landmarks, elementwise: w log(1 + |d| / eps) near zero, |d| - C beyond w."""

    @staticmethod
    def forward(ctx, pred, target, width=2.0, eps=0.5):
        real_floating("WingLoss", pred, target)
        same_shape("WingLoss", pred, target)
        if width <= 0 or eps <= 0:
            raise ValueError("WingLoss: width and eps must be positive")
        ctx.save_for_backward(pred, target)
        ctx.width, ctx.eps = width, eps
        d = (pred - target).abs()
        near = width * torch.log1p(d / eps)
        offset = width - width * math.log1p(width / eps)
        return torch.where(d < width, near, d - offset)

    @staticmethod
    def backward(ctx, grad_out):
        pred, target = ctx.saved_tensors
        d = pred - target
        slope = torch.where(d.abs() < ctx.width, ctx.width / (ctx.eps + d.abs()), torch.ones_like(d))
        g = grad_out * slope * d.sign()
        return g, -g, None, None


class LogCosh(Function):
    """log(cosh(x)) without overflow; forward mode and vmap work too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        real_floating("LogCosh", x)
        a = x.abs()
        return a + torch.log1p(torch.exp(-2 * a)) - 0.6931471805599453

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        return grad_out * torch.tanh(x)

    @staticmethod
    def jvp(ctx, x_t):
        x, = ctx.saved_tensors
        return x_t * torch.tanh(x)


class DistillationKL(Function):
    """T^2 KL(teacher || softmax(student / T)), batch mean. Teacher rows are probabilities, zeros allowed."""

    @staticmethod
    def forward(ctx, student, teacher, temperature=2.0):
        real_floating("DistillationKL", student, teacher)
        same_shape("DistillationKL", student, teacher)
        if temperature <= 0:
            raise ValueError("DistillationKL: temperature must be positive")
        if student.dim() != 2 or student.shape[0] == 0:
            raise ValueError("DistillationKL: a non-empty (N, C) batch expected")
        if ctx.needs_input_grad[1]:
            raise ValueError("DistillationKL: detach the teacher, it gets no gradient")
        ctx.save_for_backward(student, teacher)
        ctx.temperature = temperature
        logq = torch.log_softmax(student / temperature, 1)
        kl = (torch.xlogy(teacher, teacher) - teacher * logq).sum()
        return kl * (temperature ** 2 / student.shape[0])

    @staticmethod
    def backward(ctx, grad_out):
        student, teacher = ctx.saved_tensors
        q = torch.softmax(student / ctx.temperature, 1)
        grad = q * teacher.sum(1, keepdim=True) - teacher
        return grad_out * grad * (ctx.temperature / student.shape[0]), None, None


class InfoNCE(Function):
    """Contrastive loss: row i of `queries` must pick row i of `keys` (both usually normalised)."""

    @staticmethod
    def forward(ctx, queries, keys, temperature=0.1):
        real_floating("InfoNCE", queries, keys)
        same_shape("InfoNCE", queries, keys)
        if queries.dim() != 2 or queries.shape[0] == 0 or temperature <= 0:
            raise ValueError("InfoNCE: non-empty (N, D) and a positive temperature expected")
        ctx.save_for_backward(queries, keys)
        ctx.temperature = temperature
        with full_precision(queries):
            logits = queries @ keys.t() / temperature
            return (torch.logsumexp(logits, 1) - logits.diagonal()).mean()

    @staticmethod
    def backward(ctx, grad_out):
        queries, keys = ctx.saved_tensors
        with full_precision(queries):
            n = queries.shape[0]
            p = torch.softmax(queries @ keys.t() / ctx.temperature, 1)
            d = (p - torch.eye(n, dtype=p.dtype, device=p.device)) * (grad_out / (n * ctx.temperature))
            gq = d @ keys if ctx.needs_input_grad[0] else None
            gk = d.t() @ queries if ctx.needs_input_grad[1] else None
        return gq, gk, None


class PinballLoss(Function):
    """Quantile loss of (..., Q) predictions against (...) targets, mean over all; a tie has slope -tau/2 + (1-tau)/2."""

    @staticmethod
    def forward(ctx, pred, target, taus):
        real_floating("PinballLoss", pred, target)
        if pred.shape != (*target.shape, len(taus)) or pred.numel() == 0:
            raise ValueError("PinballLoss: pred must be non-empty, of target's shape plus one axis of quantiles")
        if not all(0 < t < 1 for t in taus):
            raise ValueError("PinballLoss: quantiles must lie strictly between 0 and 1")
        ctx.save_for_backward(pred, target)
        ctx.taus = tuple(taus)
        tau = pred.new_tensor(ctx.taus)
        err = target[..., None] - pred
        return torch.maximum(tau * err, (tau - 1) * err).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        pred, target = ctx.saved_tensors
        tau = pred.new_tensor(ctx.taus)
        err = target[..., None] - pred
        d = torch.where(err > 0, tau, torch.where(err < 0, tau - 1, tau - 0.5))
        d = d * (grad_out / pred.numel())
        return (-d if ctx.needs_input_grad[0] else None,
                d.sum(-1) if ctx.needs_input_grad[1] else None, None)


class WeightedBCE(Function):
    """Binary cross entropy on logits with an optional positive weight that broadcasts over the last axis."""

    @staticmethod
    def forward(ctx, logits, targets, pos_weight=None):
        real_floating("WeightedBCE", logits, targets, pos_weight)
        same_shape("WeightedBCE", logits, targets)
        if pos_weight is not None and pos_weight.shape != logits.shape[-1:]:
            raise ValueError("WeightedBCE: pos_weight must match the last axis")
        ctx.save_for_backward(logits, targets, pos_weight)
        w = 1 if pos_weight is None else pos_weight
        return w * targets * F.softplus(-logits) + (1 - targets) * F.softplus(logits)

    @staticmethod
    def backward(ctx, grad_out):
        logits, targets, pos_weight = ctx.saved_tensors
        w = 1 if pos_weight is None else pos_weight
        p = torch.sigmoid(logits)
        gl = gt = gw = None
        if ctx.needs_input_grad[0]:
            gl = grad_out * (p * (1 - targets) - w * targets * torch.sigmoid(-logits))
        if ctx.needs_input_grad[1]:
            gt = grad_out * (w * F.softplus(-logits) - F.softplus(logits))
        if pos_weight is not None and ctx.needs_input_grad[2]:
            gw = (grad_out * targets * F.softplus(-logits)).sum_to_size(pos_weight.shape)
        return gl, gt, gw


def soft_rows(*shape, seed=0, grad=False):
    p = torch.softmax(rand(*shape, seed=seed, grad=False), -1)
    return p.requires_grad_(grad)


def sparse_teacher():
    p = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    return p


def onehot(n, c, s, seed=0, grad=False):
    h = F.one_hot(integers(0, c, n, s, seed=seed), c).permute(0, 2, 1).to(torch.float64)
    return h.contiguous().requires_grad_(grad)


def units(*shape, seed=0):
    return F.normalize(rand(*shape, seed=seed, grad=False), dim=-1).requires_grad_()


CASES = [
    case("sigmoid_focal_loss", SigmoidFocalLoss,
         lambda: (rand(4, 3), integers(0, 2, 4, 3, seed=1).double(), 0.3, 2.0),
         "Focal loss whose targets are zeros and ones.",
         more=[lambda: (rand(4, 3), integers(0, 2, 4, 3, seed=1).double(), 0.3, 0.0),
               lambda: (rand(0, 3), torch.zeros(0, 3, dtype=torch.float64)),
               lambda: (rand(5, seed=2), uniform(5, grad=False), 0.25, 1.5)],
         refuses=[lambda: (rand(2), rand(2)), lambda: (rand(2), rand(2, grad=False), 0.2, 0.5)]),
    case("smoothed_cross_entropy", SmoothedCrossEntropy,
         lambda: (rand(5, 4), torch.tensor([0, 3, -1, 2, 1]), 0.1, -1),
         "Integer labels, one of them the ignored one.",
         more=[lambda: (rand(2, 4), torch.tensor([-100, -100])), lambda: (rand(1, 1), torch.tensor([0]), 0.0)]),
    case("soft_dice_loss", SoftDiceLoss,
         lambda: (soft_rows(2, 5, 3).permute(0, 2, 1).contiguous().requires_grad_(), onehot(2, 3, 5), 0.5),
         "Probabilities that sum to one over the classes, and one-hot masks.",
         more=[lambda: (uniform(2, 3, 4, 2), uniform(2, 3, 4, 2, seed=3)), lambda: (rand(1, 1, 1), onehot(1, 1, 1))]),
    case("wing_loss", WingLoss, lambda: (rand(4, 2, scale=2), rand(4, 2, seed=1)),
         "Piecewise loss with a kink at zero, where the sign convention gives zero.",
         more=[lambda: (rand(0), rand(0)), lambda: (rand(3), rand(3, seed=4, grad=False), 0.7, 0.1)]),
    case("log_cosh", LogCosh, lambda: (rand(3, 4, scale=3),),
         "Smooth absolute value with jvp and a generated vmap rule.", jvp=True, vmap=True,
         more=[lambda: (rand(),), lambda: (rand(0, 2),)]),
    case("distillation_kl", DistillationKL, lambda: (rand(3, 4), soft_rows(3, 4, seed=2), 3.0),
         "The teacher's rows are probabilities and must not require grad.",
         more=[lambda: (rand(2, 3), sparse_teacher())],
         refuses=[lambda: (rand(2, 3), soft_rows(2, 3, grad=True)), lambda: (rand(2, 3), soft_rows(2, 3), 0.0)]),
    case("info_nce", InfoNCE, lambda: (units(4, 3), units(4, 3, seed=1), 0.2),
         "Unit rows on both sides; the products stay in full precision under autocast.",
         more=[lambda: (rand(1, 2), rand(1, 2, seed=1))]),
    case("pinball_loss", PinballLoss, lambda: (rand(4, 3), rand(4, seed=5), (0.1, 0.5, 0.9)),
         "Quantile levels are a tuple of constants; second order is refused.", second="refused",
         more=[lambda: (rand(1), rand(seed=1), (0.3,))], refuses=[lambda: (rand(4, 1), rand(4), (1.0,))]),
    case("weighted_bce", WeightedBCE,
         lambda: (rand(3, 4), uniform(3, 4, seed=1), uniform(4, seed=2, low=0.5, high=3)),
         "Optional positive weight, broadcast over the leading axes.",
         more=[lambda: (rand(3, 4), uniform(3, 4, seed=1)), lambda: (rand(0, 4), uniform(0, 4), uniform(4))]),
]
