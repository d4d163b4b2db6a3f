"""The Triton backend: graphs of rows and columns as kernels of our own (`pullback.kernels`).

The text is that of `pb.emit(f, "triton")`, for sizes and strides that are numbers here, so that
nothing is left to compute for a launch. It is run once, and what it makes and launches is noted;
from then on the node of backend "native" takes these steps without Python, or, where that cannot be
built, Python calls the compiled kernels. What fits no kernel is refused, and runs by another
backend.

A recipe is cut anew for it (`prepared`): with fused ops written out, one number per row is saved
rather than a row.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback.derive.recipe import Recipe, printed_function
from pullback.errors import CaptureError, KernelError
from pullback.function.generated import run_text
from pullback.graph.simplify import simplify
from pullback.kernels.host import HostNames, PhaseText, phase_text
from pullback.kernels.module import IMPORTS, common_texts, kernel_text, usual_options
from pullback.kernels.primitives import TABLE, kernel_parts
from pullback.run import native
from pullback.run.backend import Backend
from pullback.run.inductor import BACKEND as INDUCTOR
from pullback.run.inductor import realigned
from pullback.run.launches import FORMATS, Launch, Place, Unread
from pullback.run.minimal import Minimal
from pullback.run.node import Compiled, NodeSpec, make_node
from pullback.run.retrace import retrace

_TYPES = {"i1": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "l", "u32": "I", "u64": "K",
          "fp32": "f", "fp64": "d"}  # fmt: skip
"""Triton's types of numbers, in the letters of `launches.FORMATS`."""


class TritonBackend(Backend):
    """Kernels over rows and columns."""

    def __init__(self) -> None:
        self._prepared: weakref.WeakKeyDictionary[Recipe, Any] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def absence(self) -> str | None:
        """Why kernels cannot be run here, in one line."""
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if torch.cuda.is_available() and torch.version.hip is None:
            return None
        return None if _is_interpreted() else "there is no GPU that Triton compiles for"

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
        self,
        graph: fx.Graph,
        row: Sequence[Any],
        *,
        name: str,
        free_sizes: bool = False,
        donated: Sequence[int] = (),
    ) -> Compiled:
        """See `Backend`; for open sizes as Inductor does it."""
        if free_sizes:
            return INDUCTOR.specialise(graph, row, name=name, free_sizes=True)
        if not any(isinstance(x, Tensor) and x.numel() for x in row):
            raise CaptureError(f"the {name} graph must have elements to become kernels")
        try:
            program = _Program(graph, row, name)
        except KernelError as error:
            raise _refused(error) from None
        return program.compiled()

    def make_node(self, spec: NodeSpec) -> Callable[..., Any]:
        """The node of backend "native" where that is built, else that of `node`."""
        return native.BACKEND.make_node(spec) if _has_native() else make_node(spec)

    def whole(self, minimal: Minimal, compiled: Compiled) -> Compiled:
        """As `minimal.whole`; without Python where `compiled` is."""
        if _has_native():
            return native.BACKEND.whole(minimal, compiled)
        return minimal.whole(compiled)


BACKEND = TritonBackend()


def _refused(error: KernelError) -> CaptureError:
    facts = {key: value for key, value in error.facts.items() if value}
    return CaptureError(error.rule, **facts)


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "") == "1"


def _has_native() -> bool:
    """Whether a node of C++ can be had without waiting for it."""
    if _is_interpreted() or native.BACKEND.absence() is not None:
        return False
    return native.BACKEND.is_ready(_nobody.notify)


class _Nobody:
    def notify(self) -> None:
        """Nothing: the next node that is made asks again."""


_nobody = _Nobody()


def _prepared(recipe: Recipe) -> Recipe:
    parts = kernel_parts(recipe.captured, "auto")
    for graph in (parts.forward, parts.backward):
        phase_text(graph, "forward", HostNames())  # refused here what no kernel computes
    forward = printed_function(parts.forward, "forward", recipe.captured.name, parts.names)
    return replace(recipe, parts=parts, forward=forward, backwards={}, served=set())


# ---- one graph ----


@dataclass(eq=False)
class _Noted:
    """What the launching function did when it was run: registers that it filled, and launches."""

    registers: list[Tensor] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    launches: list[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = field(
        default_factory=list
    )

    def place_of(self, tensor: Tensor) -> int:
        """The register that holds a tensor."""
        return next(i for i, one in enumerate(self.registers) if one is tensor)


class _Program:
    """A graph as kernels, for arguments that are laid out as those of a row."""

    def __init__(self, graph: fx.Graph, row: Sequence[Any], name: str) -> None:
        self.row, self.name = row, name
        simple = simplify(graph, TABLE)
        try:
            retraced = retrace(simple, row, {})
        except Exception as error:  # any: sizes that kernels take to be the same, and are not
            raise CaptureError(
                f"the {name} graph must fit its arguments", got=f"{type(error).__name__}: {error}"
            ) from error
        made = retraced.module.graph
        names = HostNames({node.name: f"v_{node.name}" for node in made.nodes})
        self.phase = phase_text(made, name, names)
        self.text = _text(self.phase)

    def compiled(self) -> Compiled:
        """The function; it has been run once on the row."""
        space: dict[str, Any] = {"__name__": f"pullback kernels of {self.name}"}
        run_text(self.text, f"kernels of {self.name}", space)
        function = space[self.phase.name]
        taken = [i for i, x in enumerate(self.row) if isinstance(x, Tensor)]
        noted = self._noted(space, function)
        if _is_interpreted():
            return lambda given: _interpreted(space, function, self.phase, given)
        if _has_native():
            try:
                return self._native(noted, taken)
            except Unread:
                pass
        return realigned(_in_python(noted, taken, self._made(noted)), self.row)

    def _noted(self, space: dict[str, Any], function: Callable[..., Any]) -> _Noted:
        """Run the launching function once, with what makes tensors and launches listened to."""
        noted = _Noted([x for x in self.row if isinstance(x, Tensor)])

        def empty(shape: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return kept(torch.empty(shape, dtype=dtype, device=device))

        def permuted(shape: Any, order: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
            return kept(torch.empty_permuted(shape, order, dtype=dtype, device=device))

        def kept(tensor: Tensor) -> Tensor:
            facts = {"sizes": list(tensor.shape), "strides": list(tensor.stride())}
            to = len(noted.registers)
            noted.registers.append(tensor)
            noted.steps.append(
                {"kind": "empty", "to": to, "from": [], "dtype": tensor.dtype, **facts}
            )
            return tensor

        usual = {source.name: usual_options(source) for source in self.phase.kernels}

        def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
            def run(*args: Any, **given: Any) -> None:
                options = {**usual[kernel.fn.__name__], **given}
                compiled = kernel[grid](*args, **options)
                noted.launches.append((compiled, grid, args, options))
                noted.steps.append({"kind": "launch", "at": len(noted.launches) - 1})

            return run

        names = {"empty": empty, "empty_permuted": permuted}
        space["torch"] = _Listening(names)
        with torch.no_grad():
            self.results = function(*self.row, launch=launch)
        return noted

    def _made(self, noted: _Noted) -> list[int]:
        return [-1 if one is None else noted.place_of(one) for one in self.results]

    def _native(self, noted: _Noted, taken: list[int]) -> Compiled:
        steps = []
        for step in noted.steps:
            if step["kind"] != "launch":
                steps.append(step)
                continue
            launch = _launch_of(noted, *noted.launches[step["at"]])
            pointers = [one.register for one in launch.arguments if isinstance(one, Place)]
            facts = {"function": launch.function, "grid": launch.grid, "threads": launch.threads}
            facts |= {"shared": launch.shared, "numbers": launch.numbers(), "owner": launch.owner}
            steps.append({"kind": "launch", "to": 0, "from": pointers, **facts})
        device = self.row[taken[0]].device.index or 0
        rows: Any = list(taken), steps, [], self._made(noted)
        return native.native_extension().steps(device, [], len(noted.registers), *rows)  # type: ignore[no-any-return]


def _interpreted(
    space: dict[str, Any], function: Callable[..., Any], phase: PhaseText, given: list[Any]
) -> Sequence[Any]:
    """The launching function in Triton's interpreter."""
    usual = {source.name: usual_options(source) for source in phase.kernels}
    space["torch"] = torch

    def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        options = usual[kernel.fn.__name__]
        return lambda *args, **given: kernel[grid](*args, **{**options, **given})

    found: Sequence[Any] = function(*given, launch=launch)
    return found


class _Listening:
    """`torch`, with some of its functions replaced."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _text(phase: PhaseText) -> str:
    """The module of a phase; of the configurations, the usual one is taken."""
    kernels = [kernel_text(source, is_tuned=False) for source in phase.kernels]
    return "\n\n\n".join([IMPORTS, *common_texts([phase]), *kernels, phase.function("Launch.")])


def _launch_of(
    noted: _Noted,
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Launch:
    """How a compiled kernel is launched, as the driver is told."""
    try:
        metadata, signature = kernel.metadata, kernel.src.signature
        if metadata.global_scratch_size or getattr(metadata, "profile_scratch_size", 0):
            raise Unread("a kernel with memory of its own")
        if getattr(metadata, "launch_cooperative_grid", False) or metadata.num_ctas != 1:
            raise Unread("a kernel that is launched in another way")
        facts = int(kernel.function), 32 * int(metadata.num_warps), int(metadata.shared)
    except AttributeError as error:
        raise Unread("another Triton") from error
    named = zip(signature.items(), (*args, *[None] * len(signature)), strict=False)
    letters = ""
    values: list[Any] = []
    for (_, kind), value in named:
        if kind == "constexpr":
            continue
        if kind.startswith("*"):
            letters, values = letters + "O", [*values, Place(noted.place_of(value))]
        elif kind in _TYPES and _TYPES[kind] in FORMATS:
            letters, values = letters + _TYPES[kind], [*values, value]
        else:
            raise Unread(kind)
    function, threads, shared = facts
    x, y, z = (*grid, 1, 1, 1)[:3]
    # Two more pointers, to memory that no kernel of ours has; they are null.
    return Launch(
        kernel, function, (x, y, z), threads, shared, letters + "OO", (*values, None, None)
    )


def _in_python(noted: _Noted, taken: list[int], made: list[int]) -> Compiled:
    """The noted steps, taken by Python."""
    makers: list[Callable[[list[Any]], None]] = []
    for step in noted.steps:
        if step["kind"] == "launch":
            makers.append(_launcher(noted, *noted.launches[step["at"]]))
        else:
            makers.append(_maker(noted.registers[step["to"]]))

    def run(given: list[Any]) -> Sequence[Any]:
        registers = [given[place] for place in taken]
        for make in makers:
            make(registers)
        return [None if place < 0 else registers[place] for place in made]

    return run


def _maker(like: Tensor) -> Callable[[list[Any]], None]:
    shape, stride, dtype, device = like.shape, like.stride(), like.dtype, like.device
    empty = torch.empty_strided

    def make(registers: list[Any]) -> None:
        registers.append(empty(shape, stride, dtype=dtype, device=device))

    return make


def _launcher(
    noted: _Noted,
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Callable[[list[Any]], None]:
    places = [(i, noted.place_of(x)) for i, x in enumerate(args) if isinstance(x, Tensor)]
    constants = [
        options.get(name)
        for name, kind in list(kernel.src.signature.items())[len(args) :]
        if kind == "constexpr"
    ]
    fixed = [*args, *constants]
    for place, _ in places:
        fixed[place] = None  # no tensor is kept
    x, y, z = (*grid, 1, 1, 1)[:3]
    run = kernel[(x, y, z)]

    def launch(registers: list[Any]) -> None:
        given = fixed.copy()
        for i, place in places:
            given[i] = registers[place]
        run(*given)

    return launch
