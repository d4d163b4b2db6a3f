"""The specs of nodes: what a recipe becomes for one layout, for open sizes, or as it is.

- `exact.py` compiles for tensors of one layout.
- `open_sizes.py` compiles for tensors of every size whose dimensions lie in memory as in a row.
- `text_spec` is the recipe's text, for everything that the recipe serves.
- `forward_only` is a function that gives the outputs, where nobody asks for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.layouts import Layout
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.graph.split import split
from pullback.run.backend import Backend
from pullback.run.nodes.general import RecipeGeneral, SizedLayouts
from pullback.run.nodes.minimal import Minimal, minimal
from pullback.run.nodes.node import Compiled, LayoutDemand, NodeSpec, Pull, ValueSource
from pullback.run.nodes.paths import UncompiledReason


@dataclass(frozen=True, slots=True, eq=False)
class SpecMaker:
    """What all specs of one composition share.

    `uncompiled` is called with why a backward runs without compiled code, `refused` why something
    cannot be compiled, and `differs` of compiled code that computes something else. Where
    `verifies`, backwards that are compiled later on are compared with their text.
    """

    name: str
    module: str
    derived: Any
    uncompiled: Callable[[UncompiledReason], None]
    refused: Callable[[CaptureError], None]
    differs: Callable[[object], None]
    verifies: bool


class Spec:
    """What a spec is made of: the recipe, a row of inputs, and the compiled forward."""

    def __init__(
        self,
        maker: SpecMaker,
        recipe: Recipe,
        row: Sequence[Tensor],
        sources: Sequence[Any],
        forward: Compiled,
        made: Sequence[Any] | None = None,
    ) -> None:
        self.maker, self.recipe, self.sources, self.forward = maker, recipe, sources, forward
        captured = recipe.captured
        self.inputs = [
            Layout.of(x, needs=one.needs) for x, one in zip(row, captured.inputs, strict=True)
        ]
        count = captured.joint.output_count
        self.end = count + recipe.saved_count
        saved = list(sources[count : self.end])
        self.made = made
        self.kept = (
            ()
            if made is None
            else tuple(
                Layout.of((row if s.is_input else made)[s.place], needs=False) for s in saved
            )
        )
        saved += [s for i in range(len(row)) if (s := ValueSource(True, i)) not in saved]
        self.saved = saved
        self.places = [saved.index(ValueSource(True, i)) for i in range(len(row))]
        self.live = recipe.live
        with torch.no_grad():
            outputs, _, self.numbers = recipe.run_row([x.detach() for x in row])
        self.cotangents = self.cotangents_of(outputs)

    def cotangents_of(self, outputs: Sequence[Any]) -> tuple[Layout, ...]:
        """How the cotangents of these outputs lie."""
        pairs = zip(self.live, self.recipe.orders, strict=True)
        return tuple(_dense(outputs[place], order) for place, order in pairs)

    def printed(self) -> Compiled:
        """The backward as Python."""
        return minimal(self.recipe.parts.backward).printed("backward", self.recipe)

    def finish(
        self,
        demand: LayoutDemand,
        backward: Callable[[Sequence[Any]], Pull],
        general: Callable[..., Sequence[Any]],
    ) -> NodeSpec:
        """The spec of a node that demands so much of layouts."""
        count = self.recipe.captured.joint.output_count
        return NodeSpec(
            name=self.maker.name,
            module=self.maker.module,
            demand=demand,
            inputs=tuple(self.inputs),
            forward=self.forward,
            outputs=tuple(self.sources[:count]),
            saved=tuple(self.saved),
            read=self.recipe.saved_count,
            numbers=tuple(self.sources[self.end :]),
            silent=self.recipe.silent,
            live=self.live,
            cotangents=self.cotangents,
            backward=backward,
            general=general,
            kept=self.kept,
        )


def _dense(output: Tensor, order: Sequence[int]) -> Layout:
    """The layout of a cotangent without gaps, its dimensions in this order in memory."""
    like = torch.empty_permuted(output.shape, list(order), device="meta")
    return Layout(tuple(output.shape), like.stride(), output.dtype, output.device, False)


def first_run(
    run: Compiled, forward: Minimal, recipe: Recipe, row: Sequence[Tensor]
) -> Sequence[Any]:
    """What a compiled forward makes.

    Raises if an output shares memory with another value: nobody would see it changed in place.
    """
    with torch.no_grad():
        made = run(list(row))
    count = recipe.captured.joint.output_count
    outputs = [one for one in forward.sources[:count] if isinstance(one, ValueSource)]
    tensors = [(ValueSource(True, i), x) for i, x in enumerate(row)]
    tensors += [(ValueSource(False, i), x) for i, x in enumerate(made) if isinstance(x, Tensor)]
    at = {source: x.untyped_storage().data_ptr() for source, x in tensors if x.numel()}
    for one in outputs:
        if one in at and sum(place == at[one] for place in at.values()) > 1:
            raise CaptureError(
                f"the outputs of `{recipe.captured.name}` must not share memory to be compiled",
                got="an output that is a view of an input or of another value",
                fix="clone it before it is returned",
            )
    return made


# ---- the text ----


def text_spec(maker: SpecMaker, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that runs the text."""
    parts = recipe.parts
    forward = minimal(parts.forward)

    def some(wanted: tuple[bool, ...]) -> Compiled:
        needed = tuple(place for place, want in enumerate(wanted) if want)
        graph = split(parts.joint, replace(parts.cut, needed=needed))[1]
        return minimal(graph).printed("backward", recipe)

    run = forward.bare.printed("forward", recipe)
    spec = Spec(maker, recipe, row, forward.sources, run)
    pull, general = Pull(spec.printed()), RecipeGeneral(spec, SizedLayouts(spec))
    return replace(spec.finish(LayoutDemand.NOTHING, lambda _: pull, general), some=some)


# ---- outputs alone ----


def forward_only(
    backend: Backend, recipe: Recipe, row: Sequence[Tensor]
) -> tuple[Callable[..., Any], Compiled, Minimal]:
    """A function of the row that gives the outputs: one as it is, several as a tuple.

    With it come the compiled graph, and the graph.
    """
    forward = minimal(recipe.parts.forward, recipe.captured.joint.output_count)
    code = forward.bare.compiled(backend, row, "forward")
    first_run(code, forward, recipe, row)
    run = forward.whole(code)

    def outputs(*row: Any) -> Any:
        with torch.no_grad():
            made = run(list(row))
        return made[0] if len(forward.sources) == 1 else tuple(made)

    return outputs, code, forward.bare
