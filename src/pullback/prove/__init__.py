"""Prove: a hand-written backward is right for all inputs, or numbers show where it is not.

Gradients are read from graphs as expressions of unknown numbers, and compared. The public function
stands here and imports what it needs when it is called: the algebra brings in sympy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pullback.prove.proof import Proof


def prove(target: object, *examples: object, seconds: float = 10.0) -> Proof:
    """Decide whether the hand-written gradients of `target` are right for all inputs.

    `target` is a Function class, or a pair of a program with a hand-written backward and a
    reference program; `examples` are arguments to call it with. What is not decided within
    `seconds` of processor time is "unknown": see `prove.proof`.

    >>> import torch
    >>> class Square(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_tensors
    ...         return 3 * x * gradient
    >>> prove(Square, torch.randn(3)).verdict
    'refuted'
    """
    from pullback.prove.proof import proof_of  # heavy

    return proof_of(target, *examples, seconds=seconds)
