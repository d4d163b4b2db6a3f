"""Gradients that are differentiated once more: whether they can be, and the number that is."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pullback.check.watching.nodes import nodes_from
from pullback.judge.example import can_differ


class OnceError(RuntimeError):
    """A Function on the way can be differentiated once."""


def leads_to_refusal(gradient: Tensor) -> bool:
    """Whether its history begins in a Function that can be differentiated once.

    PyTorch raises there only if the way goes on to something that needs a gradient.
    """
    nodes = nodes_from([gradient.grad_fn])
    return any(node.name().rpartition("::")[2] == "Error" for node in nodes)


def weighted_sum(grads: Sequence[Tensor | None], weights: Sequence[Tensor | None]) -> Tensor | None:
    """`Re <w, grads>`, None where there is no gradient."""
    total: Tensor | None = None
    for grad, weight in zip(grads, weights, strict=True):
        if grad is None or weight is None or not can_differ(grad) or grad.shape != weight.shape:
            continue
        term = (weight.conj() * grad).sum()
        term = term.real if term.is_complex() else term
        total = term if total is None else total + term
    return total
