"""Bytes that a Function keeps for backward, and that one made by pullback would keep.

A Function is compared with the one derived from its forward, and the module in which it is called
together with others is compared with itself as one node. Both are made and run at the arguments
that they get in the model; what cannot be made is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of, why_no_fork
from pullback.compose import combine
from pullback.compose.modules import module_nodes
from pullback.derive.backward import derive_function
from pullback.errors import PullbackError
from pullback.function.plain import forward_of
from pullback.judge.example import Example, describe_value, exact_copy, mapped
from pullback.judge.run import run

SECONDS = 20.0  # of work, for one comparison
MOST = 4  # kinds of modules that are tried
PARTS = 24  # modules inside one: a larger one is not tried


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
        made = combine(module, *_again(args), backend="eager", save="auto")
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


# ---- modules in which a Function is called together with others ----


@dataclass(frozen=True, slots=True)
class SharedModule:
    """Modules of one class that get the like arguments: the first, and what one node saves."""

    path: str
    paths: frozenset[str]
    saving: Saving

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.paths)

    def holds(self, places: Mapping[str, int]) -> bool:
        """Whether a Function is called in one of them."""
        return any(_is_within(place, path) for place in places for path in self.paths)


def combined_modules(
    model: nn.Module, example: Example, places: Mapping[str, Mapping[str, int]]
) -> list[SharedModule]:
    """The modules above the calls of Functions, each kind once, with what one node would save."""
    modules = dict(model.named_modules())
    wanted: dict[str, nn.Module] = {}
    for path in dict.fromkeys(path for one in places.values() for path in one):
        above = _holder(modules, path)
        if above is not None:
            wanted[above] = modules[above]
    calls = _calls_of(model, example, wanted)
    kinds: dict[Any, list[str]] = {}
    for path, args in calls.items():
        kinds.setdefault((type(wanted[path]), *map(describe_value, args)), []).append(path)
    found = []
    for paths in list(kinds.values())[:MOST]:
        saving = combined_saving(wanted[paths[0]], calls[paths[0]])
        if saving is not None:
            found.append(SharedModule(paths[0] or type(model).__name__, frozenset(paths), saving))
    return found


def _holder(modules: Mapping[str, nn.Module], path: str) -> str | None:
    """The smallest module that calls more than the Function at a path; None for a large one."""
    while path and path in modules and not any(True for _ in modules[path].children()):
        path = path.rpartition(".")[0]
    module = modules.get(path)
    while isinstance(module, (nn.ModuleList, nn.ModuleDict)) and path:
        path = path.rpartition(".")[0]
        module = modules.get(path)
    if module is None or sum(1 for _ in module.modules()) > PARTS:
        return None
    return path


def _calls_of(
    model: nn.Module, example: Example, wanted: Mapping[str, nn.Module]
) -> dict[str, tuple[Any, ...]]:
    """What these modules are called with, first, in a pass through the model."""
    found: dict[str, tuple[Any, ...]] = {}

    def noting(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if path not in found and not kwargs:
                found[path] = _again(args)

        return hook

    handles = [
        module.register_forward_pre_hook(noting(path), with_kwargs=True)
        for path, module in wanted.items()
    ]
    try:
        run(model, example, ())
    except Exception:  # reported by the pass before
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return found


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")
