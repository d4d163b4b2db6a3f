"""How calls of one kind are run in chunks: the loops, what is compiled of them, and their node.

Where the program gives one number, its gradients are made in forward, with the logits at hand, for
a cotangent of one; backward multiplies them by the cotangent. A backward that was written by hand
need not be linear in it, and a program with several differentiable outputs has several: then
backward computes the chunks again.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import Function as TorchFunction

from pullback.capture.fake import keeps_graph
from pullback.capture.joint import Capture
from pullback.capture.modes import autocast_as, autocast_off
from pullback.capture.trees import flatten
from pullback.compose.rows.loops import Body, Chunk, RowLoops
from pullback.compose.rows.program import RowProgram, chunk_graph, is_contracted, pair
from pullback.derive.second import pull_again
from pullback.errors import CaptureError
from pullback.function.slots import new_class
from pullback.graph.cost import bytes_of, op_name
from pullback.graph.values import held_value
from pullback.run import backend_of
from pullback.run.nodes.paths import Paths, UncompiledReason
from pullback.run.nodes.verify import graph_difference


@dataclass(eq=False)
class ChunkedCall:
    """How calls of one kind are run; `over` names the arguments that have the rows."""

    name: str
    over: str
    program: Callable[..., Any]
    captured: Capture
    rows: int
    count: int
    backend: str

    def __post_init__(self) -> None:
        outputs = self.captured.outputs
        self.live = [o.index for o in outputs if o.differentiable and o.index is not None]
        self.needs_gradients = bool(self.live) and any(i.needs for i in self.captured.inputs)
        shapes = [held_value(self.captured.joint.outputs[i]).shape for i in self.live]
        is_one = len(shapes) == 1 and shapes[0].numel() == 1
        self.is_early = is_one and not self.captured.is_handwritten
        self.autocast = self.captured.autocast
        self.closures = [i.tensor for i in self.captured.closures if i.needs]
        space = {"forward": staticmethod(_forward), "backward": staticmethod(_backward)}
        self.node: Any = new_class(self.name, TorchFunction, space)
        self.paths = Paths(self.name, warns=self.backend != "eager")

    def is_current(self) -> bool:
        """Whether tensors from outside the program need gradients as when it was captured."""
        return all(
            one.tensor is None or one.tensor.requires_grad == one.needs or not self.needs_gradients
            for one in self.captured.closures
        )

    def text(self) -> str:
        """What it does, in a line."""
        sizes = math.ceil(self.rows / self.count)
        when = "forward" if self.is_early else "backward"
        made = f", gradients made in {when}" if self.needs_gradients else ""
        rows = f"{sizes} chunks of {self.count} rows of {self.over}"
        return f'chunked: {rows}{made}, backend "{self.backend}"'

    def costs(self) -> tuple[int, int]:
        """The bytes of a row in the largest tensor that must be there, and those of all sums."""
        program, part = self.all.program, self.all.chunks[0].rows
        paired = program.paired
        products = [n for n in program.chunked if op_name(n) in ("mm", "bmm", "addmm")]
        large = max((bytes_of(n) for n in products or program.chunked), default=0)
        small = {n: paired.part[n] for n in products or program.chunked}
        least = max((bytes_of(n) for n in small.values()), default=0)
        held = sum(2 * bytes_of(n) for n in program.sums if is_contracted(n))
        return (large - least) // max(self.rows - part, 1), held

    def build(
        self,
        graph: fx.Graph,
        parts: Mapping[int, fx.Graph],
        sizes: Sequence[int],
    ) -> None:
        """Make the loops: for outputs and gradients at once, or for each."""
        returned: Any = graph.output_node().args[0]
        count = self.captured.joint.output_count
        outputs, gradients = list(returned[:count]), list(returned[count:])
        paired = {size: pair(self.name, graph, part) for size, part in parts.items()}
        first = paired[self.count]

        def loops(wanted: Sequence[Any]) -> RowLoops:
            program = RowProgram(first, wanted)
            bodies = {
                size: [self._body(chunk_graph(program, loop, one.part)) for loop in program.loops]
                for size, one in paired.items()
            }
            starts = itertools.accumulate(sizes, initial=0)
            chunks = [
                Chunk(start, size, bodies[size]) for start, size in zip(starts, sizes, strict=False)
            ]
            return RowLoops(program, self.rows, chunks)

        if not self.needs_gradients:
            self.all = self.forward = loops(outputs)
        elif self.is_early:
            self.all = loops([*outputs, *gradients])
        else:
            self.forward, self.all = loops(outputs), loops(gradients)

    def _body(self, graph: fx.Graph) -> Body:
        module = fx.GraphModule({}, graph)

        def eager(given: list[Any]) -> Sequence[Any]:
            made: Sequence[Any] = module(*given)
            return made

        return eager if self.backend == "eager" else _Compiled(self.paths, graph, eager)

    # ---- a call ----

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """What the program gives."""
        if not self.needs_gradients:
            return self.captured.give(self.forward.run(self._row(tensors)))
        made = self.node.apply(self, *self.captured.linked(tensors), *self.closures)
        outputs = made if isinstance(made, tuple) else (made,)
        return self.captured.give(outputs)

    def _row(self, tensors: Sequence[Any], cotangents: Sequence[Any] = ()) -> list[Any]:
        rest = [None] * (len(self.live) - len(cotangents)) if self.needs_gradients else []
        return [*(x.detach() for x in self.captured.row(tensors)), *cotangents, *rest]

    def run_forward(self, tensors: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
        """The outputs, and where they are made in forward, the gradients for a cotangent of one."""
        if not self.is_early:
            return self.forward.run(self._row(tensors)), []
        one = held_value(self.captured.joint.cotangents[0])
        seed = torch.ones(one.shape, dtype=one.dtype, device=one.device)
        made = self.all.run(self._row(tensors, [seed]))
        count = self.captured.joint.output_count
        return made[:count], made[count:]

    def run_backward(self, tensors: Sequence[Tensor], given: Sequence[Any]) -> list[Any]:
        """The gradients for these cotangents."""
        kinds = [held_value(node) for node in self.captured.joint.cotangents]
        cotangents = [
            torch.zeros(kind.shape, dtype=kind.dtype, device=kind.device) if g is None else g
            for g, kind in zip(given, kinds, strict=True)
        ]
        return self.all.run(self._row(tensors, cotangents))

    def again(self, tensors: Sequence[Tensor], given: Sequence[Any]) -> list[Any]:
        """The gradients by the program as it is written, to be differentiated again."""
        count = self.captured.argument_count

        def run(row: Sequence[Tensor]) -> Sequence[Any]:
            with autocast_as(self.autocast):
                made = self.program(*self.captured.fill(row[:count]))
            leaves, _ = flatten(made)
            return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]

        closures = range(count, len(tensors))
        return pull_again(run, tensors, given, closures=closures)


class _Compiled:
    """A body that is compiled for the first chunk that it gets, and compared with its ops."""

    def __init__(self, paths: Paths, graph: fx.Graph, eager: Body) -> None:
        self.paths, self.graph, self.eager = paths, graph, eager
        self.run: Body | None = None
        self.layouts: Any = None
        self.lock = threading.Lock()

    def __call__(self, given: list[Any]) -> Sequence[Any]:
        if self.run is None:
            with self.lock:
                if self.run is None:
                    self.layouts = _layouts(given)
                    self.run = self._made(given)
        if _layouts(given) != self.layouts:
            return self.eager(given)
        return self.run(given)

    def _made(self, given: list[Any]) -> Body:
        try:
            run = backend_of("inductor").specialise(self.graph, given, name="forward")
        except CaptureError as error:
            got = error.facts["got"]
            reason = " ".join((error.rule + (f": {got}" if got else "")).split())
            fix = 'use backend="eager" to say so'
            self.paths.warn(UncompiledReason(reason, fix))
            return self.eager
        count = len(self.graph.output_node().args[0])  # type: ignore[arg-type]
        names = [f"value {number} of a chunk" for number in range(count)]
        found = graph_difference(run, self.eager, self.graph, given, names, keeps_layout=False)
        if found is not None:
            self.paths.differs("inductor", "a chunk", found)
            return self.eager
        return run


def _layouts(given: Sequence[Any]) -> list[Any]:
    return [(x.shape, x.stride()) if isinstance(x, Tensor) else x for x in given]


# ---- the node ----


def _forward(ctx: Any, call: ChunkedCall, *tensors: Tensor) -> Any:
    count = call.captured.argument_count
    outputs, gradients = call.run_forward(tensors[:count])
    ctx.call, ctx.count = call, len(tensors)
    ctx.empty = [gradient is None for gradient in gradients]
    ctx.save_for_backward(*tensors, *(one for one in gradients if one is not None))
    ctx.set_materialize_grads(False)
    silent = [one for i, one in enumerate(outputs) if i not in call.live]
    ctx.mark_non_differentiable(*(one for one in silent if isinstance(one, Tensor)))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _backward(ctx: Any, *cotangents: Any) -> Any:
    call = ctx.call
    saved = ctx.saved_tensors
    tensors, kept = saved[: ctx.count], iter(saved[ctx.count :])
    given = [cotangents[i] for i in call.live]
    places = _passed(call.captured)
    if all(one is None for one in given):
        return (None,) * (1 + len(places))
    if torch.is_grad_enabled():  # they are to be differentiated again
        return (None, *call.again(tensors, given))
    if call.is_early:
        gradients: list[Any] = [None if empty else next(kept) for empty in ctx.empty]
        gradients = [_scaled(one, given[0], keep=keeps_graph()) for one in gradients]
    else:
        count = call.captured.argument_count
        with autocast_off():
            gradients = call.run_backward(tensors[:count], given)
    rest = iter(gradients)
    needed = {i: next(rest) for i, one in enumerate(call.captured.inputs) if one.needs}
    return (None, *(needed.get(place) for place in places))


def _passed(captured: Capture) -> list[int]:
    """The inputs of a capture that are inputs of the node."""
    return [
        place
        for place, one in enumerate(captured.inputs)
        if one.kind == "argument" or (one.kind == "closure" and one.needs)
    ]


def _scaled(gradient: Tensor | None, by: Tensor, *, keep: bool) -> Tensor | None:
    """A gradient for another cotangent than one; in its own memory, if nobody needs it again."""
    if gradient is None:
        return None
    # Not of dimension 0, which would be rounded to the gradient's dtype before it multiplies.
    by = by.reshape(1) if gradient.dim() else by.reshape(())
    return torch.mul(gradient, by, out=torch.empty_like(gradient) if keep else gradient)
