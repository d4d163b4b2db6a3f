"""The Triton backend: graphs of rows and columns as kernels of our own (`pullback.triton_codegen`).

The text is that of `pb.emit(f, "triton")`, for sizes and strides that are numbers here, and is run
in Triton's interpreter, which shows that the kernels are right. They have not been measured on a
GPU, so nothing runs them there: `absence` says so. What fits no kernel is refused and runs eagerly.

A recipe is cut anew for it (`prepared`): with fused ops written out, one number per row is saved
rather than a row.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from pullback.derive.recipe import Recipe, printed_function
from pullback.errors import CaptureError, KernelError
from pullback.function.generated import run_text
from pullback.graph.simplify import simplify
from pullback.run.backend import Backend
from pullback.run.lowering.retrace import retrace
from pullback.run.nodes.node import Compiled
from pullback.triton_codegen.host import HostNames, PhaseText, phase_text
from pullback.triton_codegen.module import IMPORTS, common_texts, kernel_text, usual_options
from pullback.triton_codegen.primitives import TABLE, kernel_parts

_ON_A_GPU = (
    "its kernels are run in Triton's interpreter only (TRITON_INTERPRET=1), not yet measured on a "
    'GPU; `pb.emit(f, "triton")` writes them as a module to use there'
)


class TritonBackend(Backend):
    """Kernels over rows and columns, in Triton's interpreter."""

    def __init__(self) -> None:
        self._prepared: weakref.WeakKeyDictionary[Recipe, Any] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def absence(self) -> str | None:
        """Why kernels cannot be run here, in one line."""
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        return None if os.environ.get("TRITON_INTERPRET", "") == "1" else _ON_A_GPU

    def prepared(self, recipe: Recipe) -> Recipe:
        """A recipe in primitive ops, with what is saved chosen for few bytes moved."""
        with self._lock:
            if recipe not in self._prepared:
                try:
                    self._prepared[recipe] = _prepared(recipe)
                except KernelError as error:
                    self._prepared[recipe] = error
            found = self._prepared[recipe]
        if isinstance(found, KernelError):
            raise _refused(found)
        return found  # type: ignore[no-any-return]

    def specialise(
        self, graph: fx.Graph, row: Sequence[Any], *, name: str, donated: Sequence[int] = ()
    ) -> Compiled:
        """See `Backend`."""
        tensors = [x for x in row if isinstance(x, Tensor)]
        if not any(x.numel() for x in tensors):
            raise CaptureError(f"the {name} graph must have elements to become kernels")
        if any(x.device.type != "cpu" for x in tensors):
            raise CaptureError(f"the {name} graph must have tensors on the CPU", got=_ON_A_GPU)
        try:
            return _interpreted(_phase(graph, row, name))
        except KernelError as error:
            raise _refused(error) from None


BACKEND = TritonBackend()


def _refused(error: KernelError) -> CaptureError:
    facts = {key: value for key, value in error.facts.items() if value}
    return CaptureError(error.rule, **facts)


def _prepared(recipe: Recipe) -> Recipe:
    parts = kernel_parts(recipe.captured, "auto")
    for graph in (parts.forward, parts.backward):
        phase_text(graph, "forward", HostNames())  # refused here what no kernel computes
    forward = printed_function(parts.forward, "forward", recipe.captured.name, parts.names)
    return replace(recipe, parts=parts, forward=forward, backwards={}, served=set())


# ---- one graph ----


def _phase(graph: fx.Graph, row: Sequence[Any], name: str) -> PhaseText:
    """The kernels of a graph, for arguments that are laid out as those of a row."""
    try:
        made = retrace(simplify(graph, TABLE), row, {}).module.graph
    except Exception as error:  # any: sizes that kernels take to be the same, and are not
        raise CaptureError(
            f"the {name} graph must fit its arguments", got=f"{type(error).__name__}: {error}"
        ) from error
    names = HostNames({node.name: f"v_{node.name}" for node in made.nodes})
    return phase_text(made, name, names)


def _interpreted(phase: PhaseText) -> Compiled:
    """The function that launches the kernels; of their configurations, the usual one is taken."""
    kernels = [kernel_text(source, is_tuned=False) for source in phase.kernels]
    parts = [IMPORTS, *common_texts([phase]), *kernels, phase.function("Launch.")]
    space: dict[str, Any] = {"__name__": f"pullback kernels of {phase.name}"}
    run_text("\n\n\n".join(parts), f"kernels of {phase.name}", space)
    usual = {source.name: usual_options(source) for source in phase.kernels}
    function = space[phase.name]

    def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        options = usual[kernel.fn.__name__]
        return lambda *args, **given: kernel[grid](*args, **{**options, **given})

    def run(given: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = function(*given, launch=launch)
        return found

    return run
