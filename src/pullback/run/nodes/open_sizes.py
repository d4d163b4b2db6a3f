"""A node that is compiled once for tensors of every size that lie in memory as a row does.

Its code may not serve every size after all: the text serves those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pullback.capture.fake import is_dense
from pullback.capture.layouts import memory_order
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.run.backend import Backend
from pullback.run.nodes.general import CompiledGeneral, RecipeGeneral, SizedLayouts
from pullback.run.nodes.minimal import minimal
from pullback.run.nodes.node import Compiled, LayoutDemand, NodeSpec, Pull
from pullback.run.nodes.specs import Spec, SpecMaker, first_run

_SIZES = 4096  # of how many it is remembered what serves them


def open_spec(
    maker: SpecMaker, backend: Backend, recipe: Recipe, row: Sequence[Tensor]
) -> NodeSpec:
    """The node that is compiled once for tensors of every size."""
    forward = minimal(recipe.parts.forward)
    code = forward.bare.compiled_for_sizes(backend, row, "forward")
    run = OpenSizes(*code, forward.bare.printed("forward", recipe), maker.refused)
    spec = Spec(maker, recipe, row, forward.sources, run, first_run(run, forward, recipe, row))
    pull = OpenPull(spec, backend)
    text = RecipeGeneral(spec, SizedLayouts(spec))
    general = CompiledGeneral(text, pull, lambda x, like: x.dtype == like.dtype)
    return spec.finish(LayoutDemand.PATTERN, pull, general)


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
            code = pull.compiled_for_sizes(self.backend, given, "backward")
        except CaptureError as error:
            spec.maker.refused(error)
            return Pull(text)
        return Pull(OpenSizes(*code, text, spec.maker.refused))


class OpenSizes:
    """Code with open sizes, and the text for sizes and strides that it does not serve."""

    def __init__(
        self,
        code: Compiled,
        meets: Callable[[Sequence[Any]], bool],
        text: Compiled,
        refused: Callable[[CaptureError], None],
    ) -> None:
        self.code, self.meets, self.text, self.refused = code, meets, text, refused
        self.found: dict[Any, Compiled] = {}

    def __call__(self, row: list[Any]) -> Sequence[Any]:
        key = tuple([(v.shape, v.stride()) if isinstance(v, Tensor) else v for v in row])
        run = self.found.get(key)
        if run is None:
            run = self._look(row)
            if len(self.found) >= _SIZES:
                self.found.clear()
            self.found[key] = run
        return run(row)

    def _look(self, row: Sequence[Any]) -> Compiled:
        if self.meets(row):
            return self.code
        shapes = ", ".join(str(list(v.shape)) for v in row if isinstance(v, Tensor))
        self.refused(CaptureError("code for open sizes must serve the sizes of a call", got=shapes))
        return self.text


def stride_pattern(row: Sequence[Tensor]) -> tuple[Any, ...]:
    """How tensors lie in memory, whatever their sizes: code for open sizes serves one pattern."""
    return tuple(_pattern(x) for x in row)


def _pattern(x: Tensor) -> tuple[Any, ...]:
    if x.is_contiguous():
        return ()
    strides = x.stride()
    return (*memory_order(strides), is_dense(x), *(step == 0 for step in strides))
