"""Outputs and gradients of two functions of tensors, compared in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Any]
Tensors = Callable[[int], tuple[Tensor, ...]]

ROWS = 3
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
TORCH_TAKES_KEYWORDS = TORCH >= (2, 13)  # `torch.autograd.Function.apply`


def leaves(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Fresh copies that require grad."""
    return tuple(x.detach().clone().requires_grad_() for x in tensors)


def flat(outputs: Any) -> tuple[Tensor, ...]:
    """The tensors among the outputs, in order."""
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(out for out in outputs if isinstance(out, Tensor))


def floating(outputs: Any) -> tuple[Tensor, ...]:
    return tuple(out for out in flat(outputs) if out.is_floating_point())


def cotangent(like: Tensor, draw: int = 0) -> Tensor:
    """Fixed weights of the shape of `like`, none of them zero or alike."""
    steps = torch.arange(like.numel(), dtype=like.dtype, device=like.device)
    return (1.5 + torch.cos(draw + 1.7 * steps)).reshape(like.shape)


def weighed(outputs: Any, draw: int = 0) -> Tensor:
    """One number from all floating outputs, each element with a weight of its own."""
    outs = floating(outputs)
    return sum(((out * cotangent(out, draw + i)).sum() for i, out in enumerate(outs)), 0.0)


def loss_of(f: Call) -> Call:
    return lambda *tensors: weighed(f(*tensors))


def gradients(f: Call, tensors: Sequence[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """The gradients of the weighed outputs with respect to fresh leaves."""
    xs = leaves(tensors)
    return torch.autograd.grad(weighed(f(*xs)), xs, **options)


def second_gradients(f: Call, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of the weighed gradients: zeros where the gradient is constant."""
    xs = leaves(tensors)
    # A square behind `f` so that the second derivative also sees the cotangent change.
    first = torch.autograd.grad(weighed(f(*xs)) ** 2, xs, create_graph=True)
    return torch.autograd.grad(weighed(first, draw=3), xs, materialize_grads=True)


def assert_equal(actual: Any, expected: Any) -> None:
    """Equal in value up to float64 rounding, and equal in structure, shape and dtype."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def assert_same_pull(f: Call, reference: Call, tensors: Sequence[Tensor]) -> None:
    """The outputs of `f` and its gradients are those of `reference`."""
    detached = [x.detach().clone() for x in tensors]

    assert_equal(flat(f(*detached)), flat(reference(*detached)))
    assert_equal(gradients(f, tensors), gradients(reference, tensors))
