"""Sums, products, norms and scans along a dimension."""

import torch
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, real


class Sum(Function):
    """The sum of everything, a 0-d tensor; the gradient is an expanded view."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.shape)


class Mean(Function):
    """The mean along a dimension."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim, ctx.shape = dim, x.shape
        return x.mean(dim)

    @staticmethod
    def backward(ctx, grad_output):
        if not ctx.shape:
            return grad_output, None
        size = ctx.shape[ctx.dim]
        return (grad_output.unsqueeze(ctx.dim) / size).expand(ctx.shape), None


class Variance(Function):
    """The variance of each row, without correction."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Variance.of(x)

    @staticmethod
    def of(x):
        return (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        size = x.shape[-1] if x.dim() else 1
        return grad_output * (x - x.mean(-1, keepdim=True)) * (2 / size if size else 0.0)


class LogSumExp(Function):
    """`log(sum(exp(x)))` of each row, safe for large `x`, from the output."""

    @staticmethod
    def forward(ctx, x):
        y = torch.logsumexp(x, -1, keepdim=True)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * torch.exp(x - y)


class Softmax(pb.Function):
    """The softmax along `dim`, from its output."""

    @staticmethod
    def forward(ctx, x, dim):
        y = torch.softmax(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        weighted = grad_output * y
        return weighted - y * weighted.sum(ctx.dim, keepdim=True), None


class LogSoftmax(Function):
    """The logarithm of the softmax, from its output."""

    @staticmethod
    def forward(ctx, x, dim):
        y = torch.log_softmax(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output - y.exp() * grad_output.sum(ctx.dim, keepdim=True), None


class MaskedSoftmax(Function):
    """The softmax over the places where `mask` is true; a row without any gives zeros."""

    @staticmethod
    def forward(ctx, x, mask):
        if mask.shape != x.shape or mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool of shape {tuple(x.shape)}, got {mask.shape}")
        y = torch.softmax(x.masked_fill(~mask, -torch.inf), -1)
        y = y.masked_fill(~mask, 0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        weighted = grad_output * y
        return weighted - y * weighted.sum(-1, keepdim=True), None


class CumulativeSum(Function):
    """The running sum along a dimension; backward runs from the other end."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class CumulativeProduct(Function):
    """The running product of each row, right at zeros as well.

    With k <= j the derivative of y_j by x_k is the product of the others up to j; the scan below
    carries it from right to left and never divides.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cumprod(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if not x.dim():
            return grad_output.clone()
        before = torch.cat((torch.ones_like(x[..., :1]), x.cumprod(-1)[..., :-1]), -1)
        carried, parts = torch.zeros_like(x[..., :1]), []
        for k in range(x.shape[-1] - 1, -1, -1):
            here = grad_output[..., k : k + 1] + carried
            parts.insert(0, here * before[..., k : k + 1])
            carried = here * x[..., k : k + 1]
        return torch.cat(parts, -1) if parts else torch.zeros_like(x)


class Product(Function):
    """The product of each row, right when one or more factors are zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if not x.dim():
            return grad_output.clone()
        one = torch.ones_like(x[..., :1])
        before = torch.cat((one, x[..., :-1]), -1)[..., : x.shape[-1]].cumprod(-1)
        after = torch.cat((x[..., 1:], one), -1)[..., : x.shape[-1]].flip(-1).cumprod(-1).flip(-1)
        return grad_output.unsqueeze(-1) * before * after


class PNorm(Function):
    """The p-norm of each row for p > 1; the gradient at the zero row is 0."""

    @staticmethod
    def forward(ctx, x, p):
        if not p > 1:
            raise ValueError(f"p must be above 1, got {p}")
        y = torch.linalg.vector_norm(x, p, dim=-1, keepdim=True)
        ctx.p = p
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        # Divide first: neither power can overflow then.
        unit = (x / y).masked_fill(y == 0, 0)
        return grad_output * unit.sign() * unit.abs() ** (ctx.p - 1), None


class Cosine(Function):
    """The cosine between rows, with `eps` below the lengths as in torch."""

    @staticmethod
    def forward(ctx, a, b):
        la = torch.linalg.vector_norm(a, dim=-1, keepdim=True).clamp(min=1e-8)
        lb = torch.linalg.vector_norm(b, dim=-1, keepdim=True).clamp(min=1e-8)
        ctx.save_for_backward(a, b)
        return ((a / la) * (b / lb)).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        la = torch.linalg.vector_norm(a, dim=-1, keepdim=True).clamp(min=1e-8)
        lb = torch.linalg.vector_norm(b, dim=-1, keepdim=True).clamp(min=1e-8)
        ua, ub = a / la, b / lb
        g = grad_output.unsqueeze(-1)
        cosine = (ua * ub).sum(-1, keepdim=True)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = (g * (ub - cosine * ua) / la).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_b = (g * (ua - cosine * ub) / lb).sum_to_size(b.shape)
        return grad_a, grad_b


class PairwiseSquares(Function):
    """Squared distances between the rows of two matrices."""

    @staticmethod
    def forward(ctx, a, b):
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
            raise ValueError(f"takes matrices of one width, got {a.shape} and {b.shape}")
        ctx.save_for_backward(a, b)
        return (a[:, None] - b[None]).square().sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        weighted = 2 * grad_output.unsqueeze(-1) * (a[:, None] - b[None])
        grad_a = weighted.sum(1) if ctx.needs_input_grad[0] else None
        grad_b = -weighted.sum(0) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


class Entropy(Function):
    """The entropy of the softmax of each row, without `log(0)`."""

    @staticmethod
    def forward(ctx, x):
        logs = torch.log_softmax(x, -1)
        ctx.save_for_backward(x)
        return -(logs.exp() * logs).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        logs = torch.log_softmax(x, -1)
        p = logs.exp()
        entropy = -(p * logs).sum(-1, keepdim=True)
        return -(grad_output.unsqueeze(-1) if x.dim() else grad_output) * p * (logs + entropy)


def _masked_softmax(x, mask):
    return torch.softmax(x.masked_fill(~mask, -torch.inf), -1)


def _row_mask():
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 1:3] = mask[2, 4] = False
    return mask


def _cosine(a, b):
    return torch.nn.functional.cosine_similarity(a, b, -1)


def _entropy(x):
    logs = torch.log_softmax(x, -1)
    return -(logs.exp() * logs).sum(-1)


SOUND = {
    "sum": Sound(Sum, lambda: (real(4, 5),), torch.sum),
    "mean": Sound(Mean, lambda: (real(4, 5), 0), lambda x, d: x.mean(d)),
    "variance": Sound(Variance, lambda: (real(4, 5),), Variance.of),
    "log-sum-exp": Sound(
        LogSumExp, lambda: (real(4, 5),), lambda x: torch.logsumexp(x, -1, keepdim=True)
    ),
    "softmax": Sound(Softmax, lambda: (real(4, 5), -1), torch.softmax),
    "log-softmax": Sound(LogSoftmax, lambda: (real(4, 5), 1), torch.log_softmax),
    "masked-softmax": Sound(MaskedSoftmax, lambda: (real(3, 5), _row_mask()), _masked_softmax),
    "cumulative-sum": Sound(CumulativeSum, lambda: (real(4, 5), 1), torch.cumsum),
    "cumulative-product": Sound(CumulativeProduct, lambda: (real(3, 5),), lambda x: x.cumprod(-1)),
    "product": Sound(Product, lambda: (real(3, 5),), lambda x: x.prod(-1)),
    "p-norm": Sound(
        PNorm,
        lambda: (real(4, 5), 3),
        lambda x, p: torch.linalg.vector_norm(x, p, dim=-1, keepdim=True),
    ),
    "cosine": Sound(Cosine, lambda: (real(4, 5), real(4, 5, seed=1)), _cosine),
    "pairwise-squares": Sound(
        PairwiseSquares,
        lambda: (real(3, 4), real(5, 4, seed=1)),
        lambda a, b: (a[:, None] - b[None]).square().sum(-1),
    ),
    "softmax-entropy": Sound(Entropy, lambda: (real(4, 5),), _entropy),
}

CASES = cases_of(SOUND)
