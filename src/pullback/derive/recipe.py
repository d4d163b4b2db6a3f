"""A recipe: how to run a captured program forward, what to save, and how to run it backward.

A capture is simplified, cut into what is saved and what is computed again, split into a forward
and a backward graph, and each is printed as a Python function and compiled. What runs is the text.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import numbers_of
from pullback.capture.joint import Capture, source_of
from pullback.capture.layouts import dense_cotangent, memory_order
from pullback.capture.modes import autocast_now
from pullback.capture.trees import is_row, tensor_leaves
from pullback.derive.call_table import MISS
from pullback.errors import InternalError
from pullback.function.generated import run_text
from pullback.function.slots import is_ordinary_moment, version_of
from pullback.graph.absent import without_absent
from pullback.graph.cost import is_random
from pullback.graph.cut import cut
from pullback.graph.cut_problem import Cut, ancestors
from pullback.graph.names import Names, names_of
from pullback.graph.parts import JointGraph, calls
from pullback.graph.simplify import EXACT, READABLE, simplify
from pullback.graph.split import split
from pullback.graph.text import function_text
from pullback.graph.values import is_smooth
from pullback.judge.closeness import HalfTheDigits, value_difference

_LAYOUTS = 1024  # how many that a recipe serves are remembered


@dataclass(frozen=True, slots=True)
class Parts:
    """A captured program in two graphs, and what goes from one to the other.

    `forward` takes the inputs and returns the outputs and what is saved; `backward` takes what is
    saved and the cotangents, and returns the gradients of the inputs that need one.
    """

    joint: JointGraph
    cut: Cut
    forward: fx.Graph
    backward: fx.Graph
    names: Names

    @property
    def between(self) -> list[int]:
        """The places of what is saved between inputs and outputs: PyTorch loses its history."""
        known = (*self.joint.inputs, *self.joint.outputs)
        saved = enumerate(self.cut.saved)
        return [place for place, node in saved if node not in known and is_smooth(node)]


@dataclass(frozen=True, eq=False)
class Recipe:
    """A capture, compiled.

    `program` is what was captured, `state` what it read from outside it then, and `autocast` how
    that stood. `served` are layouts of arguments that it was found to serve.
    """

    captured: Capture
    parts: Parts
    forward: Callable[..., Any]
    program: Callable[..., Any]
    state: Any
    autocast: Any = ()
    backwards: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    served: set[Any] = field(default_factory=set)

    def serves(self, tensors: Sequence[Tensor], layouts: Any) -> bool:
        """Whether the capture is right for these tensors, laid out so; asked once per layout."""
        if layouts in self.served:
            return self.captured.begins_like(tensors)
        is_served = self.captured.serves(tensors)
        if is_served:
            if len(self.served) >= _LAYOUTS:
                self.served.clear()
            self.served.add(layouts)
        return is_served

    @functools.cached_property
    def saved_count(self) -> int:
        """How many tensors are saved."""
        return len(self.parts.cut.saved)

    @functools.cached_property
    def argument_count(self) -> int:
        """How many tensors are arguments of the program."""
        return self.captured.argument_count

    @functools.cached_property
    def closures(self) -> list[Tensor]:
        """The tensors from outside the program that need a gradient."""
        found = [one.tensor for one in self.captured.closures if one.needs]
        return [tensor for tensor in found if tensor is not None]

    @functools.cached_property
    def live(self) -> tuple[int, ...]:
        """The places of the outputs that carry a gradient."""
        outputs = self.captured.outputs
        return tuple(o.index for o in outputs if o.differentiable and o.index is not None)

    @functools.cached_property
    def silent(self) -> tuple[int, ...]:
        """The places of the outputs that are tensors and carry none."""
        tensors = [o for o in self.captured.outputs if o.kind == "tensor" and not o.differentiable]
        return tuple(o.index for o in tensors if o.index is not None)

    @functools.cached_property
    def saves_between(self) -> bool:
        """Whether something is saved between inputs and outputs."""
        return bool(self.parts.between)

    @functools.cached_property
    def passed(self) -> tuple[int | None, ...]:
        """Each input's place among those of the Function; None for one without a gradient."""
        places = itertools.count()
        return tuple(
            next(places)
            if one.kind == "argument" or (one.kind == "closure" and one.needs)
            else None
            for one in self.captured.inputs
        )

    @functools.cached_property
    def is_random(self) -> bool:
        """Whether the program draws random numbers."""
        return any(is_random(node) for node in calls(self.captured.joint.graph))

    def run(self, tensors: Sequence[Tensor]) -> tuple[list[Any], list[Tensor], list[Any]]:
        """Outputs, saved tensors and saved numbers, for these tensors as arguments."""
        return self.run_row(self.captured.row(tensors))

    def run_row(self, row: Sequence[Tensor]) -> tuple[list[Any], list[Tensor], list[Any]]:
        """As `run`, for what each placeholder of the inputs is given."""
        count = self.captured.joint.output_count
        values, end = self.forward(*row), count + self.saved_count
        return list(values[:count]), list(values[count:end]), list(values[end:])

    def pull(
        self,
        saved: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Tensor],
        wanted: Sequence[bool] | None = None,
        absent: frozenset[int] = frozenset(),
    ) -> list[Tensor | None]:
        """One gradient per input of the capture; None where it needs or has none.

        `wanted` says for each input whether its gradient is asked for; by default all are. `absent`
        are the places of missing cotangents: zeros stand there.
        """
        laid = [dense_cotangent(c, o) for c, o in zip(cotangents, self.orders, strict=True)]
        needs = [one.needs for one in self.captured.inputs]
        asked = needs if wanted is None else wanted
        mask = tuple(ask for ask, need in zip(asked, needs, strict=True) if need)
        if not any(mask):
            return [None] * len(needs)
        given = (*saved, *numbers, *laid)
        pulled = iter(self._backward(mask, absent, given)(*given))
        return [next(pulled) if needed else None for needed in needs]

    def _backward(
        self, mask: tuple[bool, ...], absent: frozenset[int], given: Sequence[Any]
    ) -> Callable[..., Any]:
        """The backward that computes the gradients of `mask`, and nothing for the others.

        One that leaves out what leads to absent cotangents is compared at its first call with the
        one that gets zeros for them, which takes its place if they differ.
        """
        key = mask, absent
        if key not in self.backwards:
            graph = self._backward_graph(mask)
            if absent:
                graph = without_absent(graph, len(self.parts.joint.cotangents), absent)
            run = printed_function(graph, "backward", self.captured.name, self.parts.names)
            if absent and not _can_compare():
                return run
            if absent:
                whole = self._backward(mask, frozenset(), given)
                run = run if _agree(run, whole, given) else whole
            self.backwards[key] = run
        return self.backwards[key]

    def _backward_graph(self, mask: tuple[bool, ...]) -> fx.Graph:
        if all(mask):
            return self.parts.backward
        needed = tuple(place for place, wanted in enumerate(mask) if wanted)
        return split(self.parts.joint, replace(self.parts.cut, needed=needed))[1]

    @functools.cached_property
    def orders(self) -> list[list[int]]:
        """For each cotangent, its dimensions as they lie in memory, the outermost first."""
        strides = [numbers_of(n.meta["val"].stride()) for n in self.captured.joint.cotangents]
        return list(map(memory_order, strides))

    @functools.cached_property
    def sources(self) -> list[frozenset[int] | None]:
        """For each input, the cotangents that its gradient is made of; None if it has none."""
        cotangents = self.captured.joint.cotangents
        gradients = iter(self.captured.joint.gradients)
        found: list[frozenset[int] | None] = []
        for one in self.captured.inputs:
            gradient = next(gradients) if one.needs else None
            behind = None if gradient is None else ancestors([gradient])
            places = (i for i, node in enumerate(cotangents) if behind and node in behind)
            found.append(None if behind is None else frozenset(places))
        return found


# ---- one call ----


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The inputs of one call: by their places among what was saved.

    Those that were not are weak references, with the number of changes in place by then.
    """

    places: Sequence[int | None]
    refs: Mapping[int, tuple[Any, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Sequence[Tensor], saved: Sequence[Tensor]) -> Inputs:
        """Those of `row`, some of which are `saved`."""
        at = {id(tensor): place for place, tensor in enumerate(saved)}
        places = [at.get(id(tensor)) for tensor in row]
        rest = [(i, x) for i, x in enumerate(row) if places[i] is None]
        refs = {i: (weakref.ref(source_of(x)), version_of(x)) for i, x in rest}
        return cls(places, refs)

    def find(self, saved: Sequence[Any]) -> list[Tensor] | None:
        """The inputs as forward saw them, or None when one is gone or changed."""
        row: list[Any] = [None if place is None else saved[place] for place in self.places]
        for i, (ref, version) in self.refs.items():
            tensor = row[i] = ref()
            if tensor is None or version_of(tensor) != version:
                return None
        return row


@dataclass(frozen=True, slots=True, eq=False)
class DerivedCall:
    """One call of a derived Function, as its backward sees it.

    `numbers` are those that were saved; `kinds` gives shape, dtype and device of each output that
    carries a gradient. `autocast` and `draws` are how these stood when the program ran. `is_bare`
    says that what was saved comes back without its history.
    """

    recipe: Recipe
    numbers: Sequence[Any]
    inputs: Inputs
    kinds: Callable[[], Sequence[Any]]
    autocast: Any
    draws: Any
    is_bare: bool = False


def called_with(
    node: Callable[..., Any],
    captured: Capture,
    args: Sequence[Any],
    held: Sequence[Tensor],
    general: Callable[..., Any],
) -> Callable[..., Any]:
    """A function of arguments like `args` that calls `node` with their tensors and those `held`.

    The node gives the outputs of the capture: one as it is, several as a tuple.
    """
    closures: list[tuple[Any, bool]] = [(one.tensor, one.needs) for one in captured.closures]
    places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    is_nested = any(isinstance(arg, (list, tuple, dict)) for arg in args)
    give = _giving(captured)
    given = tensor_leaves(args)
    is_idle = any(a is not b for a, b in zip(given, captured.linked(given), strict=True))
    if not (held or closures or give or is_idle) and len(places) == len(args):
        return node

    def run(*args: Any) -> Any:
        for tensor, needs in closures:
            if tensor.requires_grad is not needs:
                return general(*args)
        given = tensor_leaves(args) if is_nested else [args[place] for place in places]
        outputs = node(*(captured.linked(given) if is_idle else given), *held)
        return outputs if give is None or outputs is MISS else give(outputs)

    return run


def _giving(captured: Capture) -> Callable[[Any], Any] | None:
    """How a node's outputs become what the program returns; None if they are that already."""
    spec, outputs = captured.out_spec, captured.outputs
    is_single = captured.joint.output_count == 1
    in_order = [o.index for o in outputs if o.returned] == list(range(len(outputs)))
    if in_order and (spec.is_leaf() if is_single else spec.type is tuple and is_row(spec)):
        return None
    if is_single:
        return lambda output: captured.give((output,))
    return captured.give


# ---- making ----


def parts_of(captured: Capture, save: str | int, *, readable: bool = False) -> Parts:
    """The program of a capture, simplified, cut and split."""
    joint = simplify(captured.joint, READABLE if readable else EXACT, across_phases=readable)
    if not isinstance(joint, JointGraph):
        raise InternalError("simplify must give back what it was given", got=type(joint).__name__)
    free = frozenset(i for i, one in enumerate(captured.inputs) if one.free)
    chosen = cut(joint, save, free=free)
    forward, backward = split(joint, chosen)
    given = tuple(one.name for one in captured.inputs)
    needed = [i for i, one in enumerate(captured.inputs) if one.needs]
    names = names_of(joint, captured.local_names, given, differentiated=needed)
    return Parts(joint, chosen, forward, backward, names)


def recipe_of(
    captured: Capture,
    save: str | int,
    program: Callable[..., Any],
    state: Any = (),
) -> Recipe:
    """The program of a capture, compiled to Python."""
    parts = parts_of(captured, save)
    forward = printed_function(parts.forward, "forward", captured.name, parts.names)
    return Recipe(captured, parts, forward, program, state, autocast_now())


def _agree(run: Callable[..., Any], whole: Callable[..., Any], given: Sequence[Any]) -> bool:
    """Whether two backwards give the same, but where zeros made NaN or infinity of a gradient."""
    row = [one.detach() if isinstance(one, Tensor) else one for one in given]
    with torch.no_grad():
        pairs = zip(run(*row), whole(*row), strict=True)
        return all(_is_same(got, expected) for got, expected in pairs)


def _is_same(got: Tensor | None, expected: Tensor | None) -> bool:
    if got is None or expected is None:
        return expected is None or not bool(expected[expected.isfinite()].any())
    known = torch.where(expected.isfinite(), expected, got)
    return value_difference("gradient", got, known, HalfTheDigits(is_strict=True)) is None


def _can_compare() -> bool:
    """Whether numbers can be looked at now: no transform, no CUDA graph that is being recorded."""
    is_recorded = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return is_ordinary_moment() and not is_recorded


def printed_function(
    graph: fx.Graph, name: str, program: str, names: Mapping[fx.Node, str]
) -> Callable[..., Any]:
    """A graph as a Python function that returns a tuple, by way of its text."""
    text = function_text(graph, name, names, is_row=True)
    space: dict[str, Any] = {"torch": torch}
    run_text(text, f"derived {name} of {program}", space)
    function: Callable[..., Any] = space[name]
    return function
