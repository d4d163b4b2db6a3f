"""Bytes that a Function keeps for backward, and that one made by pullback would keep.

A Function is compared with the one derived from its forward, and the module in which it is called
together with others is compared with itself as one node. Both are made and run at the arguments
that they get in the model; what cannot be made is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pullback.check.processes.isolate import Died, answer_of, why_no_fork
from pullback.compose.modules import combine_module, module_nodes
from pullback.derive.backward import derive_function
from pullback.errors import PullbackError
from pullback.function.plain import forward_of
from pullback.judge.example import exact_copy, mapped

SECONDS = 20.0  # of work, for one comparison


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes kept by one call as it is written, and by what pullback makes of it."""

    written: int
    made: int

    @property
    def fewer(self) -> int:
        """How many bytes are saved."""
        return max(0, self.written - self.made)


def kept_bytes(call: Callable[..., Any], args: Sequence[Any], held: Sequence[Tensor] = ()) -> int:
    """The memory that a second call keeps for backward, each piece once, but for what is `held`.

    The first call of what is made compares it with what is written.
    """
    call(*args)
    pieces: dict[int, int] = {}
    alive: list[Tensor] = []
    known = {tensor.untyped_storage().data_ptr() for tensor in held}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in known:
                pieces[memory.data_ptr()] = memory.nbytes()
            alive.append(tensor.detach())  # so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call(*args)
    return sum(pieces.values())


def derived_saving(function: Any, args: tuple[Any, ...]) -> Saving | None:
    """A Function against the one that is derived from its forward; None where there is none."""

    def compare() -> Saving:
        made = derive_function(forward_of(function), *_again(args))
        return Saving(kept_bytes(function.apply, _again(args)), kept_bytes(made, _again(args)))

    return _answer(compare)


def combined_saving(module: nn.Module, args: tuple[Any, ...]) -> Saving | None:
    """A module as it is written against itself as one node; None where it cannot be one."""

    def compare() -> Saving | None:
        made = combine_module(module, *_again(args), backend="eager", save="auto")
        if module_nodes(made).reasons:
            return None
        held = [*module.parameters(), *module.buffers()]
        written = kept_bytes(module, _again(args), held)
        return Saving(written, kept_bytes(made, _again(args), held))

    return _answer(compare)


def _answer(compare: Callable[[], Saving | None]) -> Saving | None:
    """What a comparison gives in a process of its own, in which anything may happen."""

    def task() -> Saving | None:
        try:
            return compare()
        except (PullbackError, RuntimeError, TypeError, ValueError):
            return None

    if why_no_fork():
        return None
    try:
        found: Saving | None = answer_of(task, SECONDS)
    except Died:
        return None
    return found


def _again(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of the arguments, which require grad where they do."""

    def copy(tensor: Tensor) -> Tensor:
        return exact_copy(tensor).requires_grad_(tensor.requires_grad)

    return tuple(mapped(arg, copy) for arg in args)
