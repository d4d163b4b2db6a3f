"""Second derivatives of a program made of hand-written Functions, each with its whole history.

A program is differentiated twice by running it again with gradient recording on and differentiating
the backward that the engine then runs. That backward is the user's own, so a surrogate gradient (a
straight-through rounding, a reversal) stays what it is. The one thing that PyTorch gets wrong
there, intermediates that come back without history, is repaired by running its Functions as
`pullback.Function`s, which give them one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.function.function import Function
from pullback.function.signature import has_setup_context
from pullback.function.slots import new_class

_shadow_classes: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


def with_history(cls: Any) -> Any:
    """A `pullback.Function` with the methods of `cls`; `cls` itself if it is one already."""
    if issubclass(cls, Function):
        return cls
    shadow = _shadow_classes.get(cls)
    if shadow is None:
        names = ("forward", "backward", "vjp", "jvp", "vmap")
        space: dict[str, Any] = {n: staticmethod(getattr(cls, n)) for n in names}
        if has_setup_context(cls):
            space["setup_context"] = staticmethod(cls.setup_context)
        space |= {"generate_vmap_rule": cls.generate_vmap_rule, "__module__": cls.__module__}
        shadow = _shadow_classes[cls] = new_class(cls.__name__, Function, space)
    return shadow


@contextmanager
def keeping_history() -> Iterator[list[Any]]:
    """Inside, every Function that this thread applies keeps the history of its intermediates.

    That is computed from the arguments of the call when a backward first asks for it. So that they
    are still there then, hold on to the list that this gives until the first backward is done.
    """
    held: list[Any] = []

    def handle(cls: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        held.append((args, kwargs))
        return call(*args, **kwargs) if issubclass(cls, Function) else _run(cls, args, kwargs)

    with watching(handle):
        yield held


def _run(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return with_history(cls).apply(*args, **kwargs)


def pull_again(
    program: Callable[[Sequence[Tensor]], Sequence[Any]],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    *,
    closures: Collection[int] = (),
    wanted: Sequence[bool] | None = None,
    record: bool = True,
) -> list[Tensor | None]:
    """The gradients of `inputs`, recorded so that they can be differentiated again.

    Arguments:
        program: gives outputs for a row of tensors; what carries no gradient among them is ignored.
        inputs: the row; those that require grad get a gradient.
        cotangents: one per output, or None.
        closures: the places of inputs that the program does not take but reaches by itself.
        wanted: for each input, whether its gradient is asked for; by default all are.
        record: whether the gradients are to be differentiated again.
    """
    with torch.enable_grad(), keeping_history() as held:
        # Aliases, so that a tensor given twice has a gradient for each place.
        row = [
            x.view_as(x) if x.requires_grad and place not in closures else x
            for place, x in enumerate(inputs)
        ]
        outputs = program(row)
    asked = [True] * len(row) if wanted is None else wanted
    flags = [x.requires_grad and ask for x, ask in zip(row, asked, strict=True)]
    chosen = [x for x, flag in zip(row, flags, strict=True) if flag]
    pulled = iter(gradients_of(outputs, chosen, cotangents, record=record))
    held.clear()
    return [next(pulled) if flag else None for flag in flags]


def gradients_of(
    outputs: Sequence[Any], inputs: Sequence[Tensor], cotangents: Sequence[Any], *, record: bool
) -> Sequence[Tensor | None]:
    """The gradients of `inputs`, from those outputs that have a history and a cotangent."""
    pairs = [
        (output, cotangent)
        for output, cotangent in zip(outputs, cotangents, strict=True)
        if cotangent is not None and isinstance(output, Tensor) and output.requires_grad
    ]
    if not pairs or not inputs:
        return [None] * len(inputs)
    live, given = zip(*pairs, strict=True)
    return torch.autograd.grad(live, inputs, given, create_graph=record, allow_unused=True)


def push(
    program: Callable[[Sequence[Tensor]], Sequence[Any]],
    inputs: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The tangents of the outputs, for tangents of `inputs`: forward mode, by two pulls.

    A pull is linear in its cotangents, so pulling along it a second time, from the gradients to the
    cotangents, is the push. It needs a backward of each op and no forward-mode rule.
    """
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
    records = torch.is_grad_enabled()
    with torch.enable_grad(), keeping_history() as held:
        row = [_movable(x) if i in moving else x for i, x in enumerate(inputs)]
        outputs = program(row)
        linked = [i for i, o in enumerate(outputs) if isinstance(o, Tensor) and o.requires_grad]
        if not linked:
            return [None] * len(outputs)
        weights = [torch.zeros_like(outputs[i]).requires_grad_() for i in linked]
        pulled = torch.autograd.grad(
            [outputs[i] for i in linked],
            [row[i] for i in moving],
            weights,
            create_graph=True,
            allow_unused=True,
        )
        pairs = [
            (g, tangents[i])
            for g, i in zip(pulled, moving, strict=True)
            if g is not None and g.requires_grad
        ]
        if not pairs:
            return [None] * len(outputs)
        pushed = torch.autograd.grad(
            [g for g, _ in pairs],
            weights,
            [v for _, v in pairs],
            create_graph=records,
            allow_unused=True,
        )
    held.clear()
    found = dict(zip(linked, pushed, strict=True))
    return [found.get(i) for i in range(len(outputs))]


def _movable(x: Tensor) -> Tensor:
    """`x` as something to differentiate by, linked to its history if it has one."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
