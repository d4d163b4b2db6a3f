"""Runs a hand-written backward that returns gradients of shapes that the engine would refuse.

A Function is run as a subclass of itself, whose backward passes each such gradient to a callback
that returns one of the right shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from pullback.function.gradients import sums_down_to
from pullback.function.signature import forward_signature
from pullback.function.slots import new_class, no_vjp

Fit = Callable[[int, Tensor, Sequence[Any]], Tensor]
"""Replaces a gradient of the wrong shape: called with its position, itself and the right shape."""


def make_fitted(
    target: Any,
    fit: Fit,
    *,
    note: Callable[[Any], None] | None = None,
    order: Mapping[int, int] | None = None,
) -> Callable[..., Any]:
    """`target.apply`, with `fit` called for each gradient whose shape the engine would refuse.

    Arguments:
        target: The user's Function.
        fit: Returns the gradient to use instead.
        note: Called with the context of each backward.
        order: For positions whose gradients are returned elsewhere, where.
    """
    shapes: list[Any] = []
    key = "backward" if target.vjp is no_vjp else "vjp"
    backward = getattr(target, key)

    def fitting(ctx: Any, *cotangents: Any) -> Any:
        if note is not None:
            note(ctx)
        returned = _reordered(backward(ctx, *cotangents), order or {})
        return _fitted(target, returned, partial(_fit_one, fit, shapes))

    fitting.__name__ = key
    space = {key: staticmethod(fitting), "__module__": target.__module__}
    subclass = new_class(target.__name__, target, space)

    def apply(*args: Any) -> Any:
        shapes[:] = [arg.shape if isinstance(arg, Tensor) else None for arg in args]
        return subclass.apply(*args)

    return apply


def _reordered(returned: Any, order: Mapping[int, int]) -> Any:
    if not order or not isinstance(returned, (tuple, list)):
        return returned
    return tuple(returned[order.get(position, position)] for position in range(len(returned)))


def _fitted(target: Any, returned: Any, fit: Callable[[int, Any], Any]) -> Any:
    if isinstance(returned, Mapping):
        names = forward_signature(target).names
        return {
            name: fit(names.index(name), gradient) if name in names else gradient
            for name, gradient in returned.items()
        }
    if isinstance(returned, (tuple, list)):
        return tuple(fit(position, gradient) for position, gradient in enumerate(returned))
    return fit(0, returned)


def _fit_one(fit: Fit, shapes: Sequence[Any], position: int, gradient: Any) -> Any:
    shape = shapes[position] if position < len(shapes) else None
    if shape is None or not isinstance(gradient, Tensor) or sums_down_to(gradient.shape, shape):
        return gradient
    return fit(position, gradient, shape)


def zeros(position: int, gradient: Tensor, shape: Sequence[Any]) -> Tensor:
    """Zeros instead of a gradient of the wrong shape."""
    return gradient.new_zeros(tuple(shape))
