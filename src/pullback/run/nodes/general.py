"""The gradients of a call that no compiled backward serves as it is.

A backward that is differentiated, batched, or given back other tensors than it saved goes to the
recipe: its text, or the program run again (`Recipe`, `derive.call`). One that only lacks a
cotangent is compiled all the same, with zeros in the place of what is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.capture.layouts import Layout
from pullback.derive.recipe import DerivedCall, Inputs
from pullback.function.slots import is_batched
from pullback.run.nodes.node import Pull
from pullback.run.nodes.paths import ABSENT, BATCHED, HOOKED, INFINITE, TWICE, UncompiledReason

if TYPE_CHECKING:
    from pullback.run.nodes.specs import Spec

_SIZES = 64  # for how many sizes of the inputs it is remembered how the cotangents lie

Layouts = Callable[[Sequence[Any]], Sequence[Layout]]
"""How the cotangents of a call lie, by what it saved."""


class SizedLayouts:
    """The layouts of the cotangents of a node that serves many sizes: those of the inputs tell."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.known: dict[Any, tuple[Layout, ...]] = {}

    def __call__(self, kept: Sequence[Any]) -> tuple[Layout, ...]:
        row = [kept[place].detach() for place in self.spec.places]
        key = tuple(x.shape for x in row)
        if key not in self.known:
            if len(self.known) >= _SIZES:
                self.known.clear()
            self.known[key] = self.spec.cotangents_of(self.spec.recipe.run_row(row)[0])
        return self.known[key]


class RecipeGeneral:
    """The gradients by the recipe, which serves every call."""

    def __init__(self, spec: Spec, layouts: Layouts) -> None:
        self.spec, self.layouts = spec, layouts

    def __call__(
        self,
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool] | None = None,
    ) -> tuple[Tensor | None, ...]:
        spec = self.spec
        call = DerivedCall(
            spec.recipe,
            numbers,
            Inputs(spec.places),
            lambda: [(one.shape, one.dtype, one.device) for one in self.layouts(kept)],
            spec.recipe.autocast,
            None,
            is_bare=True,
        )
        asked = [one.needs for one in spec.inputs] if wanted is None else wanted
        return tuple(spec.maker.derived.pull(call, kept, cotangents, asked))


class CompiledGeneral:
    """The gradients by the compiled `backward`, with zeros for absent cotangents; else by `text`.

    `is_as_saved` says whether the backward can read what was saved as it came back.
    """

    def __init__(
        self,
        text: RecipeGeneral,
        backward: Callable[[Sequence[Any]], Pull],
        is_as_saved: Callable[[Tensor, Layout], bool],
    ) -> None:
        self.text, self.backward, self.is_as_saved = text, backward, is_as_saved
        self.spec = text.spec

    def __call__(
        self,
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool] | None = None,
    ) -> tuple[Tensor | None, ...]:
        reason = self._reason(kept, cotangents)
        if reason is None:
            absent = {place for place, c in enumerate(cotangents) if c is None}
            made = self._with_zeros(kept, numbers, cotangents)
            asked = [True] * len(made) if wanted is None else wanted
            flows = zip(made, asked, self.spec.recipe.sources, strict=True)
            found = [g if ask and not (flow and flow <= absent) else None for g, ask, flow in flows]
            if not self._is_spoiled(found, absent):
                return tuple(found)
            reason = INFINITE
        self.spec.maker.uncompiled(reason)
        return self.text(kept, numbers, cotangents, wanted)

    def _reason(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> UncompiledReason | None:
        """Why the compiled backward cannot serve; None if it can, with zeros for what is absent."""
        present = [c for c in cotangents if c is not None]
        if torch.is_grad_enabled():
            return TWICE
        if any(map(is_batched, (*kept, *present))):
            return BATCHED
        pairs = zip(kept, self.spec.kept, strict=False)
        if any(x.is_neg() or x.is_conj() or not self.is_as_saved(x, like) for x, like in pairs):
            return HOOKED
        is_absent = len(present) < len(cotangents)
        return ABSENT if is_absent and self.spec.recipe.captured.is_handwritten else None

    def _with_zeros(
        self, kept: Sequence[Any], numbers: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Tensor | None]:
        """The gradient of each input that has one, with zeros for absent cotangents."""
        recipe = self.spec.recipe
        pairs = zip(cotangents, self.text.layouts(kept), strict=True)
        laid = [like.empty().zero_() if c is None else like.filled(c) for c, like in pairs]
        # The compiled backward may write over what is saved: it gets copies, with the strides that
        # it goes by, which a clone of a slice has not.
        saved = [(x, Layout.of(x, needs=False)) for x in kept[: recipe.saved_count]]
        read = [x if like.overlaps else like.filled(x) for x, like in saved]
        row = [*read, *numbers, *laid]
        made = iter(self.backward(row).run(list(row)))
        return [next(made) if one.needs else None for one in recipe.captured.inputs]

    def _is_spoiled(self, made: Sequence[Tensor | None], absent: set[int]) -> bool:
        """Whether zeros for absent cotangents may have made a gradient of others what it is not."""
        flows = zip(made, self.spec.recipe.sources, strict=True)
        mixed = [g for g, flow in flows if g is not None and flow and flow & absent]
        return not all(bool(g.isfinite().all()) for g in mixed)
