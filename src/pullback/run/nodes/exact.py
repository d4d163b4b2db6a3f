"""A node that is compiled for tensors of one layout, and its backwards.

A backward is compiled for the cotangents that the recipe was captured with. Others are copied into
that layout when they come for the first time, so that a first call compiles one backward; where
they come again, they get code of their own if that is faster than the copy. A backward that is
differentiated, or that lacks a cotangent, goes another way (`general.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.layouts import Layout
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.run.backend import Backend
from pullback.run.nodes.choosing import quickest
from pullback.run.nodes.general import CompiledGeneral, RecipeGeneral
from pullback.run.nodes.minimal import minimal
from pullback.run.nodes.node import Compiled, LayoutDemand, NodeSpec, Pull, ValueSource
from pullback.run.nodes.specs import Spec, SpecMaker, first_run
from pullback.run.nodes.verify import gradient_names, graph_difference

WAYS = 4  # how many layouts of cotangents get code of their own


def exact_spec(
    maker: SpecMaker, backend: Backend, recipe: Recipe, row: Sequence[Tensor]
) -> NodeSpec:
    """The node that is compiled for tensors of one layout."""
    count = recipe.captured.joint.output_count + recipe.saved_count
    forward = minimal(recipe.parts.forward, count)
    run = forward.bare.compiled(backend, row, "forward")
    spec = Spec(maker, recipe, row, forward.sources, run, first_run(run, forward, recipe, row))
    pulls = Pulls(spec, backend, _donated(spec, backend))
    text = RecipeGeneral(spec, lambda kept: spec.cotangents)
    general = CompiledGeneral(text, pulls, lambda x, like: Layout.of(x, needs=False) == like)
    made = spec.finish(LayoutDemand.LAYOUT, pulls, general)
    return replace(made, numbers=tuple(spec.numbers), donated=tuple(pulls.donated))


class Pulls:
    """The backwards of an exact node, by the layouts of the cotangents that they are given."""

    def __init__(self, spec: Spec, backend: Backend, donated: Sequence[int]) -> None:
        self.spec, self.backend, self.donated = spec, backend, donated
        self.minimal = minimal(spec.recipe.parts.backward)
        self.made: dict[Any, Pull] = {}
        self.met: set[Any] = set()  # layouts that came once

    def __call__(self, given: Sequence[Any]) -> Pull:
        usual = self.spec.cotangents
        first = len(given) - len(usual)
        layouts = tuple(Layout.of(x, needs=False) for x in given[first:])
        if _steps(layouts) == _steps(usual):
            return self._usual(given)
        key = _steps(layouts)
        if key not in self.made and key not in self.met:
            self.met.add(key)
            return replace(self._usual(_laid(given, first, usual)), is_kept=False)
        if key not in self.made:
            is_free = sum(pull.cotangents != usual for pull in self.made.values()) < WAYS
            own = self._own(given, layouts) if is_free else None
            self.made[key] = own or self._usual(_laid(given, first, usual))
        return self.made[key]

    def _usual(self, given: Sequence[Any]) -> Pull:
        usual = self.spec.cotangents
        key = _steps(usual)
        if key not in self.made:
            try:
                self.made[key] = Pull(self._compiled(given), usual)
            except CaptureError as error:
                self.spec.maker.refused(error)
                self.made[key] = Pull(self.spec.printed(), usual)
        return self.made[key]

    def _own(self, given: Sequence[Any], layouts: tuple[Layout, ...]) -> Pull | None:
        """Code for these very layouts, if it is right, and faster than a copy."""
        spec, first = self.spec, len(given) - len(layouts)
        usual = self._usual(_laid(given, first, spec.cotangents))
        try:
            run = self._compiled(given)
        except CaptureError:  # a view that does not take this layout: the usual code gets a copy
            return None
        if spec.maker.verifies:
            found = graph_difference(
                lambda row: run(self._spared(row)),
                self.minimal.printed("backward", spec.recipe),
                spec.recipe.parts.backward,
                given,
                gradient_names(spec.recipe),
                keeps_layout=False,
            )
            if found is not None:
                spec.maker.differs(found)
                return None
        times: dict[str, Callable[[], Any]] = {
            "own": lambda: run(self._spared(given)),
            "copy": lambda: usual.run(_laid(self._spared(given), first, spec.cotangents)),
        }
        with torch.no_grad():
            is_own = quickest(times, given) == "own"
        return Pull(run, layouts) if is_own else None

    def _compiled(self, given: Sequence[Any]) -> Compiled:
        return self.minimal.compiled(self.backend, given, "backward", self.donated)

    def _spared(self, given: Sequence[Any]) -> list[Any]:
        """The row, with copies of what the code may write over."""
        return [Layout.copy_of(x) if i in self.donated else x for i, x in enumerate(given)]


def _steps(layouts: Sequence[Layout]) -> tuple[tuple[int, ...], ...]:
    return tuple(one.steps for one in layouts)


def _laid(given: Sequence[Any], first: int, layouts: Sequence[Layout]) -> list[Any]:
    """The row with its cotangents copied into these layouts."""
    pairs = zip(given[first:], layouts, strict=True)
    laid = [x if Layout.of(x).steps == o.steps else o.filled(x) for x, o in pairs]
    return [*given[:first], *laid]


def _donated(spec: Spec, backend: Backend) -> list[int]:
    """The places of saved tensors that the compiled backward may write over."""
    if not backend.donates(spec.forward):
        return []
    pull = minimal(spec.recipe.parts.backward)
    places = _unshared(spec.recipe, spec.sources, spec.made or ())
    return [place for place in places if ValueSource(True, place) not in pull.sources]


def _unshared(recipe: Recipe, sources: Sequence[Any], made: Sequence[Any]) -> list[int]:
    """Places of saved tensors that forward made for backward alone, each with its own memory."""
    count = recipe.captured.joint.output_count
    outputs, saved = sources[:count], sources[count : count + recipe.saved_count]
    memory = [x.untyped_storage() if isinstance(x, Tensor) else None for x in made]
    begins = [one and one.data_ptr() for one in memory]
    places = []
    for place, source in enumerate(saved):
        if source.is_input or source in outputs or saved.count(source) > 1:
            continue
        x, own = made[source.place], memory[source.place]
        is_whole = own is not None and own.nbytes() == x.numel() * x.element_size() > 0
        if is_whole and begins.count(begins[source.place]) == 1:
            places.append(place)
    return places
