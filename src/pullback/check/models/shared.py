"""Modules in which a Function is called together with others: what one node would keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from pullback.check.models.savings import Saving, combined_saving
from pullback.judge.example import Example, describe_value, exact_copy, mapped
from pullback.judge.run import run

MOST = 4  # kinds of modules that are tried
PARTS = 24  # modules inside one: a larger one is not tried


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
                found[path] = tuple(mapped(arg, _leaf) for arg in args)

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


def _leaf(tensor: Any) -> Any:
    copy = exact_copy(tensor)
    return copy.requires_grad_(tensor.requires_grad)


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")
