"""Sound functions in the manner of well-known public repositories, written anew from what they do.

`SOUND` has the form of the tables in `benchmarks/faults/sound/`; each entry has a plain twin.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.sound.entry import Sound, cases_of, positive, real, whole

# ---- activations ----


class MemoryEfficientSwish(Function):
    """Swish that keeps its input alone, as image models do."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s + x * s * (1 - s))


class MemoryEfficientMish(Function):
    """`x tanh(softplus(x))`, keeping its input alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.tanh(F.softplus(x))
        return grad_output * (t + x * (1 - t * t) * torch.sigmoid(x))


class Snake(Function):
    """`x + sin(a x)^2 / a` with one `a` per channel, as vocoders use."""

    @staticmethod
    def forward(ctx, x, a):
        if x.dim() != 3 or a.shape != x.shape[1:2]:
            raise ValueError(f"takes (batch, channels, length), (channels), got {x.shape}")
        ctx.save_for_backward(x, a)
        return x + torch.sin(a[:, None] * x) ** 2 / a[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        wide = a[:, None]
        grad_x = grad_a = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * (1 + torch.sin(2 * wide * x))
        if ctx.needs_input_grad[1]:
            each = x * torch.sin(2 * wide * x) / wide - torch.sin(wide * x) ** 2 / wide**2
            grad_a = (grad_output * each).sum((0, 2))
        return grad_x, grad_a


# ---- reversible layers ----


class AdditiveCoupling(Function):
    """A reversible block: `y1 = x1 + tanh(w x2)`, `y2 = x2 + tanh(v y1)`; keeps its outputs alone.

    Backward finds the inputs again by running the block backwards.
    """

    @staticmethod
    def forward(ctx, x1, x2, w, v):
        if not x1.shape == x2.shape == w.shape == v.shape:
            raise ValueError("the four inputs must have one shape")
        y1 = x1 + torch.tanh(w * x2)
        y2 = x2 + torch.tanh(v * y1)
        ctx.save_for_backward(y1, y2, w, v)
        return y1, y2

    @staticmethod
    def backward(ctx, grad_1, grad_2):
        y1, y2, w, v = ctx.saved_tensors
        inner = torch.tanh(v * y1)
        x2 = y2 - inner
        outer = torch.tanh(w * x2)
        pulled = grad_2 * (1 - inner * inner)
        total_1 = grad_1 + pulled * v
        pushed = total_1 * (1 - outer * outer)
        need = ctx.needs_input_grad
        return (
            total_1 if need[0] else None,
            grad_2 + pushed * w if need[1] else None,
            pushed * x2 if need[2] else None,
            pulled * y1 if need[3] else None,
        )


class InvertibleLeaky(Function):
    """Leaky ReLU that keeps its output alone, as in-place activated batch norm does."""

    @staticmethod
    def forward(ctx, x, slope):
        if slope <= 0:
            raise ValueError(f"slope must be positive for an inverse to exist, got {slope}")
        y = F.leaky_relu(x, slope)
        ctx.slope = slope
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad_output, grad_output * ctx.slope), None


# ---- losses ----


class SigmoidFocalLoss(Function):
    """The focal loss of detectors, from logits, by element."""

    @staticmethod
    def forward(ctx, logits, target, alpha, gamma):
        ctx.alpha, ctx.gamma = alpha, gamma
        ctx.save_for_backward(logits, target)
        weight = torch.where(target > 0, alpha, 1 - alpha)
        margin = torch.where(target > 0, logits, -logits)
        return -weight * torch.sigmoid(-margin) ** gamma * F.logsigmoid(margin)

    @staticmethod
    def backward(ctx, grad_output):
        logits, target = ctx.saved_tensors
        sign = torch.where(target > 0, 1.0, -1.0).to(logits.dtype)
        weight = torch.where(target > 0, ctx.alpha, 1 - ctx.alpha)
        p, q = torch.sigmoid(sign * logits), torch.sigmoid(-sign * logits)
        slope = ctx.gamma * p * F.logsigmoid(sign * logits) - q
        return grad_output * sign * weight * q**ctx.gamma * slope, None, None, None


class Dice(Function):
    """One minus the Dice overlap of each row, smoothed."""

    @staticmethod
    def forward(ctx, p, target, smooth):
        if p.dim() == 0 or p.shape != target.shape:
            raise ValueError(f"p and target must be rows of one shape, got {p.shape}")
        ctx.smooth = smooth
        ctx.save_for_backward(p, target)
        overlap, total = Dice.parts(p, target, smooth)
        return (1 - overlap / total).squeeze(-1)

    @staticmethod
    def parts(p, target, smooth):
        overlap = 2 * (p * target).sum(-1, keepdim=True) + smooth
        return overlap, p.sum(-1, keepdim=True) + target.sum(-1, keepdim=True) + smooth

    @staticmethod
    def backward(ctx, grad_output):
        p, target = ctx.saved_tensors
        overlap, total = Dice.parts(p, target, ctx.smooth)
        slope = overlap / total**2 - 2 * target / total
        return grad_output.unsqueeze(-1) * slope, None, None


class LogCosh(Function):
    """`log(cosh(x - t))` without overflow."""

    @staticmethod
    def forward(ctx, x, target):
        if x.shape != target.shape:
            raise ValueError(f"x and target must have one shape, got {x.shape}")
        ctx.save_for_backward(x, target)
        size = (x - target).abs()
        return size + F.softplus(-2 * size) - 0.6931471805599453

    @staticmethod
    def backward(ctx, grad_output):
        x, target = ctx.saved_tensors
        grad = grad_output * torch.tanh(x - target)
        return (
            grad if ctx.needs_input_grad[0] else None,
            -grad if ctx.needs_input_grad[1] else None,
        )


class SSIM(Function):
    """Structural similarity of signals over windows of 3, by recomputation."""

    @staticmethod
    def forward(ctx, a, b):
        if a.dim() != 3 or a.shape != b.shape or a.shape[-1] < 3 or not a.numel():
            raise ValueError(f"takes two (batch, channels, 3 or more), got {a.shape}, {b.shape}")
        ctx.save_for_backward(a, b)
        return SSIM.similarity(a, b)

    @staticmethod
    def similarity(a, b):
        mean_a, mean_b = (F.avg_pool1d(t, 3, 1) for t in (a, b))
        var_a, var_b = (F.avg_pool1d(t * t, 3, 1) for t in (a, b))
        var_a, var_b = var_a - mean_a**2, var_b - mean_b**2
        both = F.avg_pool1d(a * b, 3, 1) - mean_a * mean_b
        top = (2 * mean_a * mean_b + 0.01) * (2 * both + 0.03)
        return top / ((mean_a**2 + mean_b**2 + 0.01) * (var_a + var_b + 0.03))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        inputs = [
            t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)
        ]
        with torch.enable_grad():
            y = SSIM.similarity(*inputs)
        grads = iter(torch.autograd.grad(y, [t for t in inputs if t.requires_grad], grad_output))
        return tuple(next(grads) if need else None for need in ctx.needs_input_grad)


# ---- sparse and sorted distributions ----


class Sparsemax(Function):
    """The projection of each row onto the simplex, from its output."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        y = sparsemax(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        support = y > 0
        inside = torch.where(support, grad_output, 0.0)
        mean = inside.sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return torch.where(support, grad_output - mean, 0.0)


def sparsemax(x):
    """The projection onto the simplex in plain torch."""
    ordered = x.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1, device=x.device).to(x.dtype)
    totals = ordered.cumsum(-1)
    count = (1 + ranks * ordered > totals).sum(-1, keepdim=True)
    threshold = (totals.gather(-1, count - 1) - 1) / count
    return (x - threshold).clamp(min=0)


class Entmax15(Function):
    """The 1.5-entmax of each row, from its output; the threshold is found by bisection."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] == 0:
            raise ValueError(f"rows must not be empty, got x of shape {tuple(x.shape)}")
        y = Entmax15.solved(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def solved(x):
        half = (x - x.amax(-1, keepdim=True)) / 2
        low = torch.full_like(half[..., :1], -1.0)
        high = torch.zeros_like(low)
        for _ in range(60):
            middle = (low + high) / 2
            heavy = (half - middle).clamp(min=0).square().sum(-1, keepdim=True) >= 1
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        return (half - low).clamp(min=0).square()

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        # The root has no slope at 0, so outside the support nothing is taken.
        inside = y > 0
        root = torch.where(inside, torch.where(inside, y, 1.0).sqrt(), 0.0)
        pulled = grad_output * root
        return pulled - root * pulled.sum(-1, keepdim=True) / root.sum(-1, keepdim=True)


class SoftSort(Function):
    """The softmax of minus distances to the sorted values: a soft permutation of each row."""

    @staticmethod
    def forward(ctx, x, temperature):
        if x.dim() != 2 or x.shape[1] == 0:
            raise ValueError(f"takes rows that are not empty, got {tuple(x.shape)}")
        ordered, order = x.sort(dim=-1, descending=True)
        y = torch.softmax(-(ordered[:, :, None] - x[:, None, :]).abs() / temperature, -1)
        ctx.temperature = temperature
        ctx.save_for_backward(x, y, order)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y, order = ctx.saved_tensors
        weighted = y * grad_output
        scores = weighted - y * weighted.sum(-1, keepdim=True)
        sign = (x.gather(-1, order)[:, :, None] - x[:, None, :]).sign()
        pulled = scores * sign / ctx.temperature
        direct, sorted_part = pulled.sum(1), -pulled.sum(2)
        return direct + torch.zeros_like(x).scatter(-1, order, sorted_part), None


class SinkhornStep(Function):
    """One step of Sinkhorn in logarithms: rows, then columns, are made to sum to one."""

    @staticmethod
    def forward(ctx, x):
        if x.dim() != 2 or not x.numel():
            raise ValueError(f"takes a matrix that is not empty, got {tuple(x.shape)}")
        ctx.save_for_backward(x)
        return torch.log_softmax(torch.log_softmax(x, 1), 0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        rows = torch.log_softmax(x, 1)
        g = grad_output - torch.softmax(rows, 0) * grad_output.sum(0, keepdim=True)
        return g - rows.exp() * g.sum(1, keepdim=True)


# ---- quantisers and other declared surrogates ----


class GumbelStraightThrough(Function):
    """One-hot forward, the gradient of the softmax; the noise is an argument."""

    declares: ClassVar = {"surrogate": "logits"}

    @staticmethod
    def forward(ctx, logits, noise, temperature):
        if logits.dim() == 0 or logits.shape != noise.shape or not logits.shape[-1]:
            raise ValueError(f"logits and noise must be rows of one shape, got {logits.shape}")
        ctx.temperature = temperature
        ctx.save_for_backward(logits, noise)
        soft = (logits + noise) / temperature
        return torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0)

    @staticmethod
    def backward(ctx, grad_output):
        logits, noise = ctx.saved_tensors
        soft = torch.softmax((logits + noise) / ctx.temperature, -1)
        weighted = soft * grad_output
        return (weighted - soft * weighted.sum(-1, keepdim=True)) / ctx.temperature, None, None


class BinarizeWeights(Function):
    """The sign times the mean size, with the gradient of the identity."""

    declares: ClassVar = {"surrogate": "w"}

    @staticmethod
    def forward(ctx, w):
        return torch.where(w >= 0, 1.0, -1.0).to(w.dtype) * w.abs().mean()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class GradientReversal(Function):
    """The identity with the gradient turned round, for domain adaptation."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = lambd
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.lambd * grad_output, None


class LearnedStepQuantise(Function):
    """Quantisation with a learned step: straight through for `x`, a scaled sum for the step."""

    declares: ClassVar = {"surrogate": ("x", "step")}

    @staticmethod
    def forward(ctx, x, step, low, high):
        if step.dim() != 0:
            raise ValueError(f"step must be a 0-d tensor, got shape {tuple(step.shape)}")
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x, step)
        return (x / step).clamp(low, high).round() * step

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, step = ctx.saved_tensors
        level = x / step
        below, above = level <= ctx.low, level >= ctx.high
        grad_x = grad_step = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output.masked_fill(below | above, 0)
        if ctx.needs_input_grad[1]:
            inside = torch.where(above, float(ctx.high), level.round() - level)
            each = torch.where(below, float(ctx.low), inside)
            grad_step = (grad_output * each).sum().to(step.dtype)
        return grad_x, grad_step, None, None


class LookupFreeQuantise(Function):
    """Each number to its sign, and the signs of a row as one integer code."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x):
        if x.dim() == 0 or x.shape[-1] > 62:
            raise ValueError(f"rows must have at most 62 elements, got {tuple(x.shape)}")
        bits = x > 0
        weights = 2 ** torch.arange(x.shape[-1], device=x.device)
        code = (bits * weights).sum(-1)
        ctx.mark_non_differentiable(code)
        return torch.where(bits, 1.0, -1.0).to(x.dtype), code

    @staticmethod
    def backward(ctx, grad_output, _):
        return grad_output


# ---- gathering ----


class RegionMean(Function):
    """The mean of rows `start` to `end` of each region; regions may overlap."""

    @staticmethod
    def forward(ctx, x, regions):
        if x.dim() != 2 or regions.dim() != 2 or regions.shape[1] != 2:
            raise ValueError(f"takes (n, d) and (regions, 2), got {x.shape}, {regions.shape}")
        if not bool(((regions[:, 0] < regions[:, 1]) & (regions[:, 1] <= len(x))).all()):
            raise ValueError("regions must be rows (start, end) within x, none of them empty")
        ctx.rows = len(x)
        ctx.save_for_backward(regions)
        return RegionMean.weights(regions, len(x), x) @ x

    @staticmethod
    def weights(regions, rows, like):
        at = torch.arange(rows, device=regions.device)
        inside = (at >= regions[:, :1]) & (at < regions[:, 1:])
        inside = inside.to(like.dtype)
        return inside / inside.sum(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        (regions,) = ctx.saved_tensors
        return RegionMean.weights(regions, ctx.rows, grad_output).t() @ grad_output, None


class SegmentMax(Function):
    """The largest row entry of each segment and where it was; an empty segment gives 0."""

    @staticmethod
    def forward(ctx, x, segment, count):
        if x.dim() != 2 or segment.shape != x.shape[:1]:
            raise ValueError(f"takes (n, d) and (n), got {x.shape} and {segment.shape}")
        wide = segment[:, None].expand_as(x)
        low = x.new_full((count, x.shape[1]), -torch.inf)
        best = low.scatter_reduce(0, wide, x, "amax")
        rows = torch.arange(len(x), device=x.device)[:, None].expand_as(x)
        candidates = rows.masked_fill(x != best.gather(0, wide), len(x))
        place = torch.full_like(best, len(x), dtype=torch.long)
        place = place.scatter_reduce(0, wide, candidates, "amin")
        ctx.shape = x.shape
        ctx.save_for_backward(place)
        ctx.mark_non_differentiable(place)
        return best.masked_fill(place == len(x), 0), place

    @staticmethod
    def backward(ctx, grad_output, _):
        (place,) = ctx.saved_tensors
        rows, width = ctx.shape
        # One row more takes what empty segments give, and is cut off.
        return (
            grad_output.new_zeros(rows + 1, width).scatter(0, place, grad_output)[:-1],
            None,
            None,
        )


class WarpedRow(Function):
    """A row sampled at moving places, linearly, zeros outside: both get gradients."""

    @staticmethod
    def forward(ctx, x, places):
        if x.dim() != 1 or places.dim() != 1 or not x.numel():
            raise ValueError(f"takes two rows, the first not empty, got {x.shape}")
        ctx.save_for_backward(x, places)
        left, share = WarpedRow.split(places)
        at = WarpedRow.read
        return at(x, left) * (1 - share) + at(x, left + 1) * share

    @staticmethod
    def split(places):
        left = places.detach().floor()
        return left.long(), places - left

    @staticmethod
    def read(x, index):
        inside = (index >= 0) & (index < x.numel())
        return torch.where(inside, x[index.clamp(0, x.numel() - 1)], 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        x, places = ctx.saved_tensors
        left, share = WarpedRow.split(places)
        grad_x = grad_places = None
        if ctx.needs_input_grad[0]:
            padded = x.new_zeros(x.numel() + 2)
            index = (left + 1).clamp(0, x.numel() + 1)
            after = (left + 2).clamp(0, x.numel() + 1)
            padded = padded.index_add(0, index, grad_output * (1 - share))
            grad_x = padded.index_add(0, after, grad_output * share)[1:-1]
        if ctx.needs_input_grad[1]:
            slope = WarpedRow.read(x, left + 1) - WarpedRow.read(x, left)
            grad_places = grad_output * slope
        return grad_x, grad_places


class PairwiseHaversine(Function):
    """Great-circle distances between points given as latitude and longitude."""

    @staticmethod
    def forward(ctx, a, b):
        if a.dim() != 2 or a.shape != b.shape or a.shape[1] != 2:
            raise ValueError(f"takes two (n, 2), got {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return 2 * torch.asin(PairwiseHaversine.chord(a, b).sqrt())

    @staticmethod
    def chord(a, b):
        half = (b - a) / 2
        return (
            torch.sin(half[:, 0]) ** 2
            + torch.cos(a[:, 0]) * torch.cos(b[:, 0]) * torch.sin(half[:, 1]) ** 2
        )

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        h = PairwiseHaversine.chord(a, b)
        scale = grad_output / (h * (1 - h)).sqrt()
        d_lat, d_lon = torch.sin(b - a).unbind(1)
        ca, cb = torch.cos(a[:, 0]), torch.cos(b[:, 0])
        wide = torch.sin((b - a)[:, 1] / 2) ** 2
        east = ca * cb * d_lon / 2
        lat_a = -d_lat / 2 - torch.sin(a[:, 0]) * cb * wide
        lat_b = d_lat / 2 - ca * torch.sin(b[:, 0]) * wide
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = scale.unsqueeze(1) * torch.stack((lat_a, -east), 1)
        if ctx.needs_input_grad[1]:
            grad_b = scale.unsqueeze(1) * torch.stack((lat_b, east), 1)
        return grad_a, grad_b


# ---- plain twins ----


def _coupling(x1, x2, w, v):
    y1 = x1 + torch.tanh(w * x2)
    return y1, x2 + torch.tanh(v * y1)


def _focal(logits, target, alpha, gamma):
    p = torch.sigmoid(logits)
    hit = torch.where(target > 0, p, 1 - p)
    weight = torch.where(target > 0, alpha, 1 - alpha)
    bce = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
    return weight * (1 - hit) ** gamma * bce


def _dice(p, target, smooth):
    overlap = 2 * (p * target).sum(-1) + smooth
    return 1 - overlap / (p.sum(-1) + target.sum(-1) + smooth)


def _entmax15(x):
    half = (x - x.amax(-1, keepdim=True)) / 2
    ordered = half.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1).to(x.dtype)
    mean = ordered.cumsum(-1) / ranks
    spread = ranks * (ordered.square().cumsum(-1) / ranks - mean**2)
    delta = (1 - spread) / ranks
    threshold = mean - torch.where(delta > 0, delta, 1.0).sqrt().where(delta > 0, 0.0)
    count = (threshold <= ordered).sum(-1, keepdim=True)
    return (half - threshold.gather(-1, count - 1)).clamp(min=0).square()


def _soft_sort(x, temperature):
    ordered = x.sort(dim=-1, descending=True).values
    return torch.softmax(-(ordered[:, :, None] - x[:, None, :]).abs() / temperature, -1)


def _gumbel(logits, noise, temperature):
    soft = torch.softmax((logits + noise) / temperature, -1)
    hard = torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0)
    return soft + (hard - soft).detach()


def _straight(value, x):
    return x + (value - x).detach()


def _binarize(w):
    return _straight(torch.where(w >= 0, 1.0, -1.0).to(w.dtype) * w.abs().mean(), w)


def _reversal(x, lambd):
    return -lambd * x + ((1 + lambd) * x).detach()


def _learned_step(x, step, low, high):
    level = (x / step.detach()).detach()
    rounded = level.clamp(low, high).round()
    inside = ((level > low) & (level < high)).to(x.dtype)
    each = torch.where(inside > 0, rounded - level, rounded)
    surrogate = x * inside + step * each
    return _straight(rounded * step, surrogate)


def _lookup_free(x):
    bits = x > 0
    code = (bits * 2 ** torch.arange(x.shape[-1])).sum(-1)
    return _straight(torch.where(bits, 1.0, -1.0).to(x.dtype), x), code


def _region_mean(x, regions):
    if regions.dim() != 2:
        raise ValueError("regions must be rows")
    return torch.stack([x[a:b].mean(0) for a, b in regions.tolist()])


def _segment_max(x, segment, count):
    columns, places = [], []
    for i in range(count):
        rows = (segment == i).nonzero().flatten()
        if not len(rows):
            columns.append(torch.zeros_like(x.sum(0)))
            places.append(torch.full(x.shape[1:], len(x)))
            continue
        # The first of equal ones, as the Function takes.
        which = (x[rows] == x[rows].amax(0)).to(torch.int8).argmax(0)
        columns.append(x[rows].gather(0, which[None])[0])
        places.append(rows[which])
    return torch.stack(columns), torch.stack(places)


def _warped(x, places):
    padded = F.pad(x, (2, 2))
    left = places.detach().floor()
    share = places - left
    index = (left.long() + 2).clamp(0, len(padded) - 2)
    return padded[index] * (1 - share) + padded[index + 1] * share


def _haversine(a, b):
    return 2 * torch.asin(PairwiseHaversine.chord(a, b).sqrt())


def _regions():
    return torch.tensor([[0, 3], [2, 5], [1, 2]])


def _places():
    return torch.tensor([0.3, 2.6, -0.4, 4.5, 1.2], dtype=torch.float64, requires_grad=True)


def _coordinates(seed):
    return (real(4, 2, seed=seed).detach() * 0.5).requires_grad_()


SOUND = {
    "public-swish": Sound(MemoryEfficientSwish, lambda: (real(4, 5),), F.silu),
    "public-mish": Sound(MemoryEfficientMish, lambda: (real(4, 5),), F.mish),
    "public-snake": Sound(
        Snake,
        lambda: (real(2, 3, 4), positive(3)),
        lambda x, a: x + torch.sin(a[:, None] * x) ** 2 / a[:, None],
        convention=False,
    ),
    "public-reversible": Sound(
        AdditiveCoupling, lambda: tuple(real(3, 4, seed=i) for i in range(4)), _coupling
    ),
    "public-invertible-leaky": Sound(InvertibleLeaky, lambda: (real(4, 5), 0.1), F.leaky_relu),
    "public-focal-loss": Sound(
        SigmoidFocalLoss, lambda: (real(4, 5), whole(4, 5, high=2), 0.25, 2.0), _focal
    ),
    "public-dice": Sound(
        Dice,
        lambda: (positive(4, 5), whole(4, 5, high=2).double(), 1.0),
        _dice,
    ),
    "public-log-cosh": Sound(
        LogCosh,
        lambda: (real(4, 5), real(4, 5, seed=1)),
        lambda x, t: torch.log(torch.cosh(x - t)),
    ),
    "public-ssim": Sound(
        SSIM, lambda: (real(2, 3, 7), real(2, 3, 7, seed=1)), SSIM.similarity, order=1
    ),
    "public-sparsemax": Sound(Sparsemax, lambda: (real(4, 5),), sparsemax, convention=False),
    "public-entmax": Sound(Entmax15, lambda: (real(4, 5),), _entmax15, convention=False, low=False),
    "public-soft-sort": Sound(SoftSort, lambda: (real(3, 5), 0.7), _soft_sort, convention=False),
    "public-sinkhorn-step": Sound(
        SinkhornStep, lambda: (real(4, 5),), lambda x: x.log_softmax(1).log_softmax(0)
    ),
    "public-gumbel-straight-through": Sound(
        GumbelStraightThrough,
        lambda: (real(4, 5), positive(4, 5).detach(), 0.5),
        _gumbel,
        surrogate=True,
    ),
    "public-binarize": Sound(BinarizeWeights, lambda: (real(4, 5),), _binarize, surrogate=True),
    "public-gradient-reversal": Sound(
        GradientReversal, lambda: (real(4, 5), 0.3), _reversal, surrogate=True
    ),
    "public-learned-step": Sound(
        LearnedStepQuantise,
        lambda: (real(4, 5), torch.tensor(0.3, dtype=torch.float64, requires_grad=True), -4, 3),
        _learned_step,
        order=1,
        convention=False,
        low=False,
        surrogate=True,
    ),
    "public-lookup-free": Sound(
        LookupFreeQuantise, lambda: (real(4, 5),), _lookup_free, surrogate=True
    ),
    "public-region-mean": Sound(RegionMean, lambda: (real(5, 3), _regions()), _region_mean),
    "public-segment-max": Sound(
        SegmentMax, lambda: (real(7, 3), whole(7, high=4), 5), _segment_max
    ),
    "public-warped-row": Sound(WarpedRow, lambda: (real(5), _places()), _warped, low=False),
    "public-haversine": Sound(
        PairwiseHaversine,
        lambda: (_coordinates(0), _coordinates(1)),
        _haversine,
        convention=False,
        low=False,
    ),
}

CASES = cases_of(SOUND)
