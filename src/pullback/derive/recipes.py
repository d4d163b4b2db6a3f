"""The recipes of one program: captured when a call of a new kind comes, and kept.

A call is looked up by everything that a capture depends on. Sizes are symbols in a capture, so a
call with other sizes usually finds a recipe that serves it; what is not served is captured anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.check import verify
from pullback.capture.joint import capture
from pullback.capture.trees import flatten, tensors_in
from pullback.derive.recipe import Recipe, recipe_of

KINDS, CALLS = 64, 4096  # how many recipes, and how many looked-up calls, are kept


class Recipes:
    """The recipes of `program` under one policy of saving; safe to use from several threads."""

    def __init__(self, program: Callable[..., Any], save: str | int) -> None:
        self.program = program
        self.save = save
        self._kinds: OrderedDict[Any, list[Recipe]] = OrderedDict()
        self._calls: dict[Any, Recipe] = {}
        self._lock = threading.RLock()

    def find(self, args: Sequence[Any]) -> tuple[Recipe, list[Tensor]]:
        """The recipe for a call with `args`, and the tensors among them."""
        leaves, spec = flatten(tuple(args))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        # A float by its text: 0.0 and -0.0 are equal, and not the same.
        plain = tuple(
            None if isinstance(leaf, Tensor) else repr(leaf) if isinstance(leaf, float) else leaf
            for leaf in leaves
        )
        kinds = tuple((t.dtype, t.device, t.dim(), t.requires_grad) for t in tensors)
        kind = (spec, plain, tuple(map(type, plain)), kinds, _modes())
        call = (kind, tuple((t.shape, t.stride()) for t in tensors))
        recipe = self._calls.get(call)
        if recipe is None:
            recipe = self._look(kind, call, args, tensors)
        return recipe, tensors

    def _look(self, kind: Any, call: Any, args: Sequence[Any], tensors: list[Tensor]) -> Recipe:
        with self._lock:
            known = self._kinds.setdefault(kind, [])
            self._kinds.move_to_end(kind)
            recipe = next((r for r in known if r.captured.serves(tensors)), None)
            if recipe is None:
                recipe = self._make(args)
                known.append(recipe)
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
            if len(self._calls) > CALLS:
                self._calls.clear()
            self._calls[call] = recipe
            return recipe

    def _make(self, args: Sequence[Any], needs: Sequence[bool] | None = None) -> Recipe:
        captured = capture(self.program, args, needs=needs)
        verify(captured, self.program, args)
        return recipe_of(captured, self.save)

    def general(self, args: Sequence[Any]) -> Recipe:
        """A recipe with a gradient for every input of `args` that can have one."""
        tensors = tensors_in(tuple(args))
        return self._make(args, [t.is_floating_point() or t.is_complex() for t in tensors])


def _modes() -> tuple[Any, ...]:
    """What the surroundings decide about a call: autocast."""
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    return tuple((device, torch.get_autocast_dtype(device)) for device in devices)
