"""One call, forward and backward, the same for a candidate and for its reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.candidates.trials import Trial, TrialMaker
from pullback.check.inputs.layouts import dense
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.run import pulled_gradients


@dataclass(frozen=True, slots=True)
class Called:
    """What a call gave: outputs, and the gradients of the inputs that require one, in order."""

    args: tuple[Any, ...]
    result: Any
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...] = ()

    @property
    def tensors(self) -> list[Tensor | None]:
        """All that is compared: the outputs first."""
        return [*self.outputs, *self.gradients]


def requiring_grad(args: Sequence[Any]) -> list[Tensor]:
    """The arguments that require grad."""
    return [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]


def forward(call: Callable[..., Any], args: tuple[Any, ...]) -> Called:
    """The outputs of a call, with their graph."""
    result = call(*args)
    return Called(args, result, tuple(tensors_in(result)))


def backward(called: Called, cotangents: Sequence[Tensor | None]) -> Called:
    """The same call with its gradients."""
    pairs = zip(called.outputs, cotangents, strict=True)
    used = [(output, c) for output, c in pairs if c is not None and output.requires_grad]
    gradients = pulled_gradients(used, requiring_grad(called.args))
    return Called(called.args, called.result, called.outputs, tuple(gradients))


def call_once(
    call: Callable[..., Any], example: Example, draw: int, *, gradients: bool, asked: Any = None
) -> Called:
    """Outputs and, where asked, gradients at fresh copies of the arguments.

    `asked` are tensors whose dtypes the cotangents are rounded to, where those of the outputs are
    wider.
    """
    needs = None if gradients else frozenset[int]()
    args = example.fresh(needs=needs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        called = forward(call, args)
        if not gradients:
            return called
        return backward(called, cotangents_for(called.outputs, draw, asked))


def cotangents_for(
    outputs: Sequence[Tensor], draw: int, asked: Sequence[Tensor] | None = None
) -> list[Tensor | None]:
    """Random cotangents: the same for outputs of the same shapes, whoever gave them."""
    made: list[Tensor | None] = []
    for number, output in enumerate(outputs):
        if not (output.is_floating_point() or output.is_complex()):
            made.append(None)
            continue
        generator = torch.Generator(output.device).manual_seed((draw ^ 0x5BD1E995) + number)
        dtype = torch.complex64 if output.is_complex() else torch.float32
        numbers = torch.randn(output.shape, generator=generator, device=output.device, dtype=dtype)
        rounded = asked[number].dtype if asked is not None else output.dtype
        made.append(numbers.to(rounded).to(output.dtype))
    return made


def reactions(call: Callable[..., Any], maker: TrialMaker, trial: Trial, side: int) -> list[bool]:
    """By argument: whether the outputs change with its first (0) or last (1) half.

    The halves are along the last dimension.
    """
    example = maker.made(trial)
    if example is None:
        return []
    usual = call_once(call, example, trial.draw, gradients=False)
    found = []
    for place, arg in enumerate(example.args):
        if not can_differ(arg) or not arg.dim() or arg.shape[-1] < 2:
            found.append(True)
            continue
        changed = dense(arg)
        middle = changed.shape[-1] // 2
        part = changed[..., middle:] if side else changed[..., :middle]
        part.mul_(1.5).add_(0.25)
        other = call_once(call, example.put(place, changed, ""), trial.draw, gradients=False)
        pairs = zip(usual.outputs, other.outputs, strict=False)
        found.append(any(not torch.equal(a, b) for a, b in pairs))
    return found
