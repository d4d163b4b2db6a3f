"""The backwards of a compiled node: one for each layout of cotangents, and one for all other calls.

A backward is compiled for the cotangents that the recipe was captured with. Others are copied into
that layout when they come for the first time, so that a first call compiles one backward; where
they come again, they get code of their own if that is faster than the copy. A backward that is
differentiated, or that lacks a cotangent, goes another way (`General`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.derive.call import DerivedCall, Inputs
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.function.slots import is_batched
from pullback.run.backend import Backend
from pullback.run.choosing import quickest
from pullback.run.minimal import minimal
from pullback.run.node import ANY, EXACT, Compiled, Layout, Pull, ValueSource
from pullback.run.open_sizes import OpenSizes
from pullback.run.paths import ABSENT, BATCHED, HOOKED, INFINITE, TWICE, UncompiledReason
from pullback.run.verify import gradient_names, graph_difference

if TYPE_CHECKING:
    from pullback.run.specs import Spec

WAYS = 4  # how many layouts of cotangents get code of their own
_SIZES = 64  # for how many sizes of the inputs it is remembered how the cotangents lie


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
            return dataclasses.replace(self._usual(_laid(given, first, usual)), is_kept=False)
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
        return self.minimal.compiled(
            self.backend, given, "backward", is_open=False, donated=self.donated
        )

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


class OpenPull:
    """The backward of a node with open sizes, compiled for the first row that it is given."""

    def __init__(self, spec: Spec, backend: Backend) -> None:
        self.spec, self.backend = spec, backend
        self.made: Pull | None = None

    def __call__(self, given: Sequence[Any]) -> Pull:
        if self.made is None:
            self.made = self._compiled(given)
        return self.made

    def _compiled(self, given: Sequence[Any]) -> Pull:
        spec, text = self.spec, self.spec.printed()
        pull = minimal(spec.recipe.parts.backward)
        try:
            code = pull.compiled(self.backend, given, "backward", is_open=True)
        except CaptureError as error:
            spec.maker.refused(error)
            return Pull(text)
        return Pull(OpenSizes(code, text, spec.maker.refused))


def donated_by(spec: Spec, backend: Backend) -> list[int]:
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


# ---- what no compiled backward serves as it is ----


class General:
    """The gradients of a call that the compiled backward does not serve as it is."""

    def __init__(self, spec: Spec, backward: Callable[[Sequence[Any]], Pull], demands: str) -> None:
        self.spec, self.backward, self.demands = spec, backward, demands
        self.known: dict[Any, tuple[Layout, ...]] = {}

    def __call__(
        self,
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool] | None = None,
    ) -> Any:
        spec = self.spec
        wanted = [one.needs for one in spec.inputs] if wanted is None else wanted
        if self.demands != ANY:
            reason = self._reason(kept, cotangents)
            if reason is None:
                made = self._with_zeros(kept, numbers, cotangents, wanted)
                if not self._is_spoiled(made, cotangents):
                    return made
                reason = INFINITE
            spec.maker.uncompiled(reason)
        call = DerivedCall(
            spec.recipe,
            numbers,
            Inputs(spec.places),
            lambda: self._kinds(kept),
            spec.recipe.autocast,
            None,
            is_bare=True,
        )
        return tuple(spec.maker.derived.pull(call, kept, cotangents, wanted))

    def _reason(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> UncompiledReason | None:
        """Why the compiled backward cannot serve; None if it can, with zeros for what is absent."""
        present = [c for c in cotangents if c is not None]
        if torch.is_grad_enabled():
            return TWICE
        if any(map(is_batched, (*kept, *present))):
            return BATCHED
        if not self._are_as_saved(kept):
            return HOOKED
        is_absent = len(present) < len(cotangents)
        return ABSENT if is_absent and self.spec.recipe.captured.is_handwritten else None

    def _are_as_saved(self, kept: Sequence[Any]) -> bool:
        pairs = list(zip(kept, self.spec.kept, strict=False))
        if any(_is_lazy(x) for x, _ in pairs):
            return False
        if self.demands == EXACT:
            return all(Layout.of(x, needs=False) == like for x, like in pairs)
        return all(x.dtype == like.dtype for x, like in pairs)

    def _with_zeros(
        self,
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool],
    ) -> tuple[Any, ...]:
        """The gradients with zeros for absent cotangents, and none where only these lead."""
        recipe = self.spec.recipe
        absent = {place for place, c in enumerate(cotangents) if c is None}
        pairs = zip(cotangents, self._layouts(kept), strict=True)
        laid = [like.empty().zero_() if c is None else like.filled(c) for c, like in pairs]
        # The compiled backward may write over what is saved: it gets copies, with the strides that
        # it goes by, which a clone of a slice has not.
        saved = [(x, Layout.of(x, needs=False)) for x in kept[: recipe.saved_count]]
        read = [x if like.overlaps else like.filled(x) for x, like in saved]
        row = [*read, *numbers, *laid]
        made = iter(self.backward(row).run(list(row)))
        pulled = [next(made) if one.needs else None for one in recipe.captured.inputs]
        flows = zip(pulled, wanted, recipe.sources, strict=True)
        return tuple(
            g if want and not (flow and flow <= absent) else None for g, want, flow in flows
        )

    def _is_spoiled(self, made: Sequence[Any], cotangents: Sequence[Any]) -> bool:
        """Whether zeros for absent cotangents may have made a gradient of others what it is not."""
        absent = {place for place, c in enumerate(cotangents) if c is None}
        flows = zip(made, self.spec.recipe.sources, strict=True)
        mixed = [g for g, flow in flows if g is not None and flow and flow & absent]
        return not all(bool(g.isfinite().all()) for g in mixed)

    def _kinds(self, kept: Sequence[Any]) -> list[Any]:
        """Shape, dtype and device of each output that carries a gradient."""
        return [(one.shape, one.dtype, one.device) for one in self._layouts(kept)]

    def _layouts(self, kept: Sequence[Any]) -> tuple[Layout, ...]:
        """How the cotangents of a call lie, which the sizes of its inputs tell."""
        if self.demands == EXACT:
            return self.spec.cotangents
        row = [kept[place].detach() for place in self.spec.places]
        key = tuple(x.shape for x in row)
        if key not in self.known:
            if len(self.known) >= _SIZES:
                self.known.clear()
            self.known[key] = self.spec.cotangents_of(self.spec.recipe.run_row(row)[0])
        return self.known[key]


def _is_lazy(x: Tensor) -> bool:
    return x.is_neg() or x.is_conj()
