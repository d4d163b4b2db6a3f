"""One call of the user's function, and the backward passes through it.

Every run of an example starts from the same random numbers, on fresh copies of the arguments. An
error of forward is kept apart from one of backward: a forward that refuses its arguments is no
defect, a backward that fails after forward has accepted them is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pullback.function.isolation import seeded
from pullback.judge import progress
from pullback.judge.example import Example, can_differ, dense_of, exact_copy, tensors_in

_PLEA = "(Could this error message be improved?"  # PyTorch adds it to some errors


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, in one line: the name of its type, and the text that it came with."""

    type: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


class CallError(Exception):
    """The user's forward or backward raised."""

    def __init__(self, error: BaseException) -> None:
        self.raised = describe(error)
        super().__init__(str(self.raised))
        self.error = error


class ForwardRefusedError(CallError):
    """The user's forward raised: these arguments are outside of what it accepts."""


class BackwardFailedError(CallError):
    """The user's backward raised, after forward had accepted the arguments."""


def describe(error: BaseException) -> Raised:
    """An error in one line."""
    try:
        text = str(error).strip().splitlines()
    except Exception:  # it cannot say what it is
        text = []
    first = text[0].partition(_PLEA)[0].rstrip() if text else ""
    first = first if len(first) <= 160 else f"{first[:157]}..."
    return Raised(type(error).__name__, first)


@dataclass(slots=True)
class Run:
    """A call that went through: its arguments, its outputs, and how to pull through it."""

    example: Example
    names: tuple[str, ...]
    args: tuple[Any, ...]
    passed: tuple[Any, ...]
    result: Any
    outputs: tuple[Tensor, ...] = field(init=False)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.outputs = tuple(tensors_in(self.result))

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The inputs that require grad, by name; one that stands in two places counts once."""
        found: dict[str, Tensor] = {}
        for name, arg in zip(self.names, self.args, strict=False):
            if isinstance(arg, Tensor) and arg.requires_grad:
                if any(arg is other for other in found.values()):
                    continue
                found[name] = arg
        return found

    @property
    def live(self) -> tuple[int, ...]:
        """The positions of the outputs through which a gradient can flow."""
        return tuple(i for i, t in enumerate(self.outputs) if t.requires_grad)

    def pull(
        self,
        cotangents: Sequence[Tensor | None],
        *,
        wanted: Sequence[str] | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> dict[str, Tensor | None]:
        """Run backward once: the gradient of each input by name, None where there is none.

        `cotangents` has one entry per output; None leaves that output unused.
        """
        leaves = self.leaves
        wanted = list(leaves) if wanted is None else list(wanted)
        used = used_outputs(self.outputs, cotangents)
        if not used or not wanted:
            return dict.fromkeys(wanted)
        progress.current.begin(self.example.size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inputs = [leaves[name] for name in wanted]
                retain_graph = retain_graph or create_graph
                grads = pulled_gradients(
                    used, inputs, retain_graph=retain_graph, create_graph=create_graph
                )
        except Exception as error:
            found = None if create_graph else self._accumulated(used, wanted, retain_graph)
            if found is None:
                raise BackwardFailedError(error) from error
            return found
        return dict(zip(wanted, grads, strict=True))

    def _accumulated(
        self, used: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[str], retain_graph: bool
    ) -> dict[str, Tensor | None] | None:
        """The same by `backward`, which some Functions need (reentrant checkpoints)."""
        leaves = self.leaves
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs, cotangents = zip(*used, strict=True)
                torch.autograd.backward(outputs, cotangents, retain_graph=retain_graph)
        except Exception:  # the first error is the one to report
            return None
        grads = {name: dense_of(leaves[name].grad) for name in wanted}
        for leaf in leaves.values():
            leaf.grad = None
        return grads


def run(
    call: Callable[..., Any],
    example: Example,
    names: tuple[str, ...],
    *,
    needs: frozenset[int] | None = None,
    through_clone: bool = False,
    args: tuple[Any, ...] | None = None,
) -> Run:
    """Call `call` on fresh copies of the example's arguments, or raise `ForwardRefusedError`.

    With `through_clone`, the function gets clones of the leaves, as it would inside a network: a
    function that writes into its input can only be called so.
    """
    args = example.fresh(needs=needs) if args is None else args
    passed = tuple(_clone(arg, through_clone) for arg in args)
    progress.current.begin(example.size)
    try:
        with warnings.catch_warnings(record=True) as caught, seeded(example.seed):
            warnings.simplefilter("always")
            result = call(*passed)
    except Exception as error:
        raise ForwardRefusedError(error) from error
    messages = tuple(str(warning.message) for warning in caught)
    return Run(example, names, args, passed, result, warnings=messages)


def used_outputs(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> list[tuple[Tensor, Tensor]]:
    """The outputs that have a cotangent and a graph to pull it through, with that cotangent."""
    return [
        (output, cotangent)
        for output, cotangent in zip(outputs, cotangents, strict=True)
        if cotangent is not None and output.requires_grad
    ]


def pulled_gradients(
    used: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor], **options: bool
) -> list[Tensor | None]:
    """`torch.autograd.grad` of outputs with their cotangents; None for an input that is unused.

    A gradient that is sparse comes as an ordinary tensor.
    """
    if not used or not inputs:
        return [None] * len(inputs)
    outputs, cotangents = zip(*used, strict=True)
    found = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, **options)
    return [dense_of(gradient) for gradient in found]


def _clone(arg: Any, through_clone: bool) -> Any:
    if through_clone and can_differ(arg):
        return arg.clone()
    return arg


def cotangents_of(outputs: Sequence[Tensor], draw: int) -> tuple[Tensor | None, ...]:
    """The `draw`-th cotangent of each output, None for one that cannot have any.

    Quarters between 1/4 and 9/4 of either sign: exact in every dtype, short to print, never zero.
    """
    return tuple(cotangent_of(output, 1000 * i + draw) for i, output in enumerate(outputs))


def copies_of(cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Copies for a backward pass, so that the originals stay as they are for the reference."""
    return tuple(None if c is None else exact_copy(c) for c in cotangents)


def cotangent_of(output: Tensor, draw: int) -> Tensor | None:
    """The `draw`-th cotangent of one output: see `cotangents_of`."""
    if not can_differ(output):
        return None
    draws = _drawn if output.numel() <= _SMALL_OUTPUT else _drawn.__wrapped__
    values = draws(tuple(output.shape), draw, output.is_complex())
    return values.to(device=output.device, dtype=output.dtype, copy=True)


def of_span(output: Tensor, cotangent: Tensor | None) -> Tensor | None:
    """A cotangent that asks for the span of a basis alone, where an output is one.

    The columns of a tall matrix that are orthonormal are known up to a rotation among them, and
    which rotation it is changes by chance: a loss that depends on it has no gradient.
    """
    if cotangent is None or output.dim() < 2 or output.is_complex() or not output.numel():
        return cotangent
    basis = output.detach()
    rows, columns = basis.shape[-2:]
    if not rows > columns > 1:
        return cotangent
    inner = basis.mT @ basis
    one = torch.eye(columns, dtype=basis.dtype, device=basis.device)
    if not torch.allclose(inner, one.expand_as(inner), 0.0, 100 * torch.finfo(basis.dtype).eps):
        return cotangent
    turned = basis.mT @ cotangent
    return cotangent - basis @ (turned - turned.mT) / 2


_SMALL_OUTPUT = 10_000  # elements: the same few small cotangents are drawn again and again


@lru_cache(maxsize=64)
def _drawn(shape: tuple[int, ...], draw: int, is_complex: bool) -> Tensor:
    generator = torch.Generator().manual_seed(7919 * draw + 13)
    values = _quarters(shape, generator)
    return torch.complex(values, _quarters(shape, generator)) if is_complex else values


def _quarters(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    size = torch.randint(1, 10, shape, generator=generator).double() / 4
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return size * sign
