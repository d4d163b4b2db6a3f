"""Losses, forward and backward, written out. A reduction is 0 for none, 1 for mean, 2 for sum."""

from __future__ import annotations

from typing import Any

import torch

from pullback.graph.rewrite import Table
from pullback.graph.simplify.composites import composite
from pullback.graph.values import Value, aten, named_value

MEAN, SUM = 1, 2  # as ATen numbers a loss's reduction


def reduced(loss: Any, reduction: int) -> Any:
    """A loss per element, reduced."""
    if reduction == MEAN:
        return loss.mean()
    return loss.sum() if reduction == SUM else loss


def averaged(gradient: Any, x: Any, reduction: int) -> Any:
    """The gradient per element of a loss that was reduced."""
    return gradient / x.numel() if reduction == MEAN else gradient


def mse_loss(x: Any, y: Any, reduction: int = MEAN) -> Any:
    """(x - y)²."""
    return reduced((x - y) ** 2, reduction)


def mse_loss_backward(g: Any, x: Any, y: Any, reduction: int) -> Any:
    """2 (x - y), which is divided first, so that it overflows where the kernel's does."""
    return averaged(x - y, x, reduction) * 2.0 * g


def huber_loss_backward(g: Any, x: Any, y: Any, reduction: int, delta: float) -> Any:
    """x - y, held within delta."""
    return averaged((x - y).clamp(-delta, delta), x, reduction) * g


def smooth_l1_loss_backward(g: Any, x: Any, y: Any, reduction: int, beta: float) -> Any:
    """(x - y) / beta, held within one."""
    if not beta:
        return None  # PyTorch calls it `l1_loss` then
    return averaged(((x - y) / beta).clamp(-1.0, 1.0), x, reduction) * g


def binary_cross_entropy_backward(
    g: Any, x: Any, y: Any, weight: Any = None, reduction: int = MEAN
) -> Any:
    """(x - y) / (x (1 - x)), as the kernel guards it against zero."""
    slope = g * (x - y) / ((1 - x) * x).clamp(min=1e-12)
    return averaged(slope if weight is None else slope * weight, x, reduction)


# ---- negative log-likelihood of classes ----


def _chosen(target: Any, ignored: int) -> tuple[Any, Any]:
    """Which samples do not count, and the classes of all of them, made safe to index with."""
    skip = named_value("skip", target.eq(ignored).unsqueeze(1))
    return skip, named_value("classes", target.unsqueeze(1).masked_fill(skip, 0))


def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    """The loss, and the sum of the weights that it was divided by."""
    if weight is not None or x.dim() != 2:
        return None
    loss = _nll(x, target, reduction, ignored)
    if reduction not in (MEAN, SUM):
        return loss, x.new_zeros([])
    return loss, named_value("count", target.ne(ignored).sum()).to(x.dtype)


def _nll(x: Any, target: Any, reduction: int, ignored: int) -> Any:
    """The loss by its own name: PyTorch gives the sum of the weights to its backward alone."""
    if isinstance(x, Value):
        return x.made(aten.nll_loss.default, target, None, reduction, ignored)
    return torch.ops.aten.nll_loss(x, target, None, reduction, ignored)


def nll_loss_backward(
    g: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, count: Any
) -> Any:
    """-1 at the class of each sample that counts."""
    if weight is not None or x.dim() != 2:
        return None
    skip, classes = _chosen(target, ignored)
    g = g / count if reduction == MEAN else g
    # Zeros are put in: where no sample counts, the quotient is infinite, and times zero it is NaN.
    share = named_value("share", (-g if reduction else -g.unsqueeze(1)).masked_fill(skip, 0))
    return x.new_zeros(x.shape).scatter(1, classes, share)


TABLE: Table = (
    composite(aten.mse_loss.default, mse_loss),
    composite(aten.mse_loss_backward.default, mse_loss_backward),
    composite(aten.huber_loss_backward.default, huber_loss_backward),
    composite(aten.smooth_l1_loss_backward.default, smooth_l1_loss_backward),
    composite(aten.binary_cross_entropy_backward.default, binary_cross_entropy_backward),
    composite(aten.nll_loss_forward.default, nll_loss),
    composite(aten.nll_loss_backward.default, nll_loss_backward),
)
