"""Compiled code against the eager recipe that it was made from, before anyone uses it.

A compiled node is run beside its recipe on the inputs of the call that it was made for: outputs,
and the gradients of all cotangents together and of each alone. Where one of them is all zeros, or
not finite, those inputs tell nothing of it (a first call with zeros, or one behind a `relu`), and
the two are compared once more on drawn numbers. How far they may be apart is measured (see
`judge/closeness.py`). The tensors of the call, their gradients, hooks and the random numbers of
the process stay as they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from pullback.capture.fake import apart
from pullback.capture.indices import is_index
from pullback.capture.layouts import Layout, dense_cotangent
from pullback.capture.modes import autocast_off
from pullback.capture.seeds import normal
from pullback.derive.recipe import Recipe
from pullback.errors import PullbackError
from pullback.graph.cost import is_opaque, op_of
from pullback.graph.parts import calls
from pullback.graph.values import CASTS, flat_leaves, held_value, narrowed_to
from pullback.judge.closeness import (
    Measured,
    ValueDifference,
    coarsest_rounding,
    largest_number,
    value_difference,
)
from pullback.judge.example import can_differ, wide_of
from pullback.judge.sums import elements_in, longest_sum
from pullback.judge.tolerances import NUDGE
from pullback.run.nodes.node import MISS

MEMORY = 0.5  # the part of the free memory that double precision may take


def node_difference(
    node: Callable[..., Any], recipe: Recipe, row: Sequence[Tensor]
) -> tuple[ValueDifference | None, bool]:
    """How a node differs from its recipe on `row`, whose tensors need gradients as in a call.

    And whether a difference would have shown in every value. Where the node does not take the row,
    there is nothing to compare.
    """

    def differs(row: Sequence[Tensor]) -> tuple[ValueDifference | None, bool]:
        with apart(), autocast_off(), torch.enable_grad():
            try:
                return _node_differs(node, recipe, row)
            except Exception as error:
                return raised_difference(error, lambda: _run_whole(recipe, row)), True

    return _first_difference(differs, recipe.captured.joint.graph, row)


def raised_difference(error: Exception, run: Callable[[], Any]) -> ValueDifference:
    """That compiled code raises where `run`, the same by eager ops, does not; else that error.

    What is no fault of the code is raised again: no memory, a warning that is an error here.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError, PullbackError, Warning)):
        raise error
    run()
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return ValueDifference("what it raises", "", "nothing", said)


def _node_differs(
    node: Callable[..., Any], recipe: Recipe, row: Sequence[Tensor]
) -> tuple[ValueDifference | None, bool]:
    """The difference on one row, and whether the row would show one in every value."""
    captured, is_telling = recipe.captured, True
    live = [o.index for o in captured.outputs if o.differentiable and o.index is not None]
    given = [x.detach().requires_grad_(x.requires_grad) for x in row]
    made = node(*given)
    if made is MISS:
        return None, True
    outputs = [made] if isinstance(made, Tensor) else list(made)
    needing = [x for x, one in zip(given, captured.inputs, strict=True) if one.needs]
    names = [*_output_names(len(outputs)), *gradient_names(recipe)]
    patterns = _patterns(recipe, [outputs[place].detach() for place in live])
    for number, cotangents in enumerate(patterns):
        gradients = torch.autograd.grad(
            [outputs[place] for place in live],
            needing,
            cotangents,
            retain_graph=True,
            allow_unused=True,
        )
        trial = GraphTrial(
            captured.joint.graph, _run_of(recipe), (*(x.detach() for x in row), *cotangents)
        )
        found = trial.difference([*outputs, *gradients], names)
        found = found or layout_difference(outputs, trial.values, names)
        if found is not None:
            return found, True
        if number == 0:  # all cotangents together
            is_telling = all(map(_is_telling, trial.values))
    return None, is_telling


def graph_difference(
    compiled: Callable[[list[Any]], Sequence[Any]],
    text: Callable[[list[Any]], Sequence[Any]],
    graph: fx.Graph,
    row: Sequence[Any],
    names: Sequence[str],
    *,
    keeps_layout: bool,
) -> ValueDifference | None:
    """How a compiled graph differs from its text on one row of arguments.

    Where it `keeps_layout`, also in the strides of what it makes; those of gradients are free.
    """

    def differs(row: Sequence[Any]) -> tuple[ValueDifference | None, bool]:
        with apart(), autocast_off(), torch.no_grad():
            try:
                got = compiled(list(row))
            except Exception as error:
                return raised_difference(error, lambda: text(list(row))), True
            trial = GraphTrial(graph, lambda row: text(list(row)), tuple(row))
            found = trial.difference(got, names)
            if keeps_layout:
                found = found or layout_difference(got, trial.values, names)
            return found, found is not None or all(map(_is_telling, trial.values))

    return _first_difference(differs, graph, row)[0]


def layout_difference(
    got: Sequence[Any], expected: Sequence[Any], names: Sequence[str]
) -> ValueDifference | None:
    """The first of some outputs that lies otherwise in memory: a `view` of it could fail."""
    for name, mine, theirs in zip(names, got, expected, strict=False):
        if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor) or not mine.numel():
            continue
        if Layout.of(mine).steps != Layout.of(theirs).steps:
            said = f"strides {theirs.stride()}", f"strides {mine.stride()}"
            return ValueDifference(name, "", *said)
    return None


def _first_difference(
    differs: Callable[[Sequence[Any]], tuple[ValueDifference | None, bool]],
    graph: fx.Graph,
    row: Sequence[Any],
) -> tuple[ValueDifference | None, bool]:
    """The difference on `row`; where it tells nothing of a value, on drawn numbers too."""
    found, is_telling = differs(row)
    for draw in (_any_number, _positive) if not is_telling and _may_draw(graph) else ():
        try:
            found, is_telling = differs([_drawn(x, seed, draw) for seed, x in enumerate(row)])
        except Exception:  # numbers that the program refuses (`cholesky`), or no memory for them
            continue
        if found is not None or is_telling:
            break
    return found, is_telling


def _is_telling(value: Any) -> bool:
    """Whether code that is wrong could show in this value: something in it is finite, not zero."""
    if not can_differ(value) or not value.numel():
        return True
    return bool((value.isfinite() & (value != 0)).any())


def _may_draw(graph: fx.Graph) -> bool:
    """Whether any numbers will do.

    Not where some become integers, which may point somewhere, nor for kernels that are not
    PyTorch's, which may trust them.
    """
    drawn = {node for node in graph.find_nodes(op="placeholder") if can_differ(held_value(node))}
    for node in calls(graph):
        has_numbers = any(isinstance(x, Tensor) for x in flat_leaves(held_value(node)))  # no sizes
        if has_numbers and not drawn.isdisjoint(node.all_input_nodes):
            is_foreign = op_of(node) is not None and is_opaque(node)
            if is_foreign or (node.target in CASTS and is_index(held_value(node))):
                return False
            drawn.add(node)
    return True


def _drawn(x: Any, seed: int, draw: Callable[[Tensor], Tensor]) -> Any:
    """Other numbers in the layout of `x`; `x` itself where it holds no such, or repeats some."""
    if not can_differ(x) or Layout.of(x).overlaps:
        return x
    return Layout.of(x).filled(draw(normal(x, seed))).requires_grad_(x.requires_grad)


def _any_number(drawn: Tensor) -> Tensor:
    return drawn


def _positive(drawn: Tensor) -> Tensor:
    return drawn.abs() + 0.5


def _run_of(recipe: Recipe) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The recipe as a function of inputs and cotangents, like its joint graph."""
    count = len(recipe.captured.inputs)
    needs = [one.needs for one in recipe.captured.inputs]

    def run(row: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            outputs, saved, numbers = recipe.run_row(row[:count])
            pulled = recipe.pull(saved, numbers, row[count:])
        return [*outputs, *(g for g, need in zip(pulled, needs, strict=True) if need)]

    return run


def _run_whole(recipe: Recipe, row: Sequence[Tensor]) -> None:
    """Run a recipe forward and backward, for what it may raise."""
    given = [x.detach() for x in row]
    with torch.no_grad():
        outputs = recipe.run_row(given)[0]
    for cotangents in _patterns(recipe, [outputs[place] for place in recipe.live]):
        _run_of(recipe)((*given, *cotangents))


def _patterns(recipe: Recipe, outputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Rows of cotangents for these outputs: all of them, then each alone."""
    drawn = [
        dense_cotangent(normal(y, seed), order)
        for seed, (y, order) in enumerate(zip(outputs, recipe.orders, strict=True))
    ]
    yield drawn
    if len(drawn) > 1:
        for place in range(len(drawn)):
            yield [c if i == place else torch.zeros_like(c) for i, c in enumerate(drawn)]


def _output_names(count: int) -> list[str]:
    return ["the output"] if count == 1 else [f"output {place}" for place in range(count)]


def gradient_names(recipe: Recipe) -> list[str]:
    """What the gradients of a recipe are called in messages."""
    return [f"the gradient of `{one.name}`" for one in recipe.captured.inputs if one.needs]


# ---- one graph on one row ----


@dataclass(frozen=True, eq=False)
class GraphTrial:
    """A graph on one row of arguments: by eager ops (`run`), in double precision, and nearby."""

    graph: fx.Graph
    run: Callable[[Sequence[Any]], Sequence[Any]]
    row: tuple[Any, ...]

    def difference(self, got: Sequence[Any], names: Sequence[str]) -> ValueDifference | None:
        """The first of the values that differs, for what another way to run the graph gave."""
        for place, (name, mine, theirs) in enumerate(zip(names, got, self.values, strict=True)):
            measured = Measured(
                functools.partial(self._exact_at, place),
                functools.partial(self._near_at, place),
                self.terms,
                self.steps,
                lambda: self.largest,
            )
            found = value_difference(name, mine, theirs, measured)
            if found is not None:
                return found
        return None

    @functools.cached_property
    def values(self) -> Sequence[Any]:
        """What eager ops give."""
        return self.run(self.row)

    @functools.cached_property
    def exact(self) -> Sequence[Any] | None:
        """What the graph gives in double precision; None if that cannot be had."""
        is_coarse = coarsest_rounding(self.graph) > torch.finfo(torch.float64).eps
        if not is_coarse or not self._fits():
            return None
        try:
            with torch.no_grad():
                values: Sequence[Any] = _Doubled(fx.GraphModule({}, self.graph)).run(
                    *map(_double, self.row)
                )
        except Exception:  # whatever an op has against doubles
            return None
        return values

    @functools.cached_property
    def nearby(self) -> Sequence[Sequence[Any]]:
        """What eager ops give for rows that are a few units in the last place away."""
        return [self.run(_nudged(self.row, sign, draw)) for draw in (0, 1) for sign in (1, -1)]

    @functools.cached_property
    def largest(self) -> float:
        """The largest number of the row and of what is made of it."""
        return max(map(largest_number, (*self.row, *self.values)), default=0.0)

    def _exact_at(self, place: int) -> Any:
        return None if self.exact is None else self.exact[place]

    def _near_at(self, place: int) -> Sequence[Any]:
        return [values[place] for values in self.nearby]

    # ---- sizes ----

    @functools.cached_property
    def steps(self) -> int:
        """How many ops there are."""
        return max(1, sum(1 for _ in calls(self.graph)))

    @functools.cached_property
    def terms(self) -> int:
        """How many numbers the longest sum adds up."""
        return longest_sum(self._elements)

    @functools.cached_property
    def _elements(self) -> dict[fx.Node, int]:
        return elements_in(self.graph, self.row)

    def _fits(self) -> bool:
        """Whether all values in double precision fit into a part of the free memory."""
        device = next((x.device for x in self.row if isinstance(x, Tensor) and x.is_cuda), None)
        return 8 * sum(self._elements.values()) < MEMORY * _free(device)


def _free(device: torch.device | None) -> float:
    if device is not None:
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # this system does not say
        return 2.0**30


# ---- rows ----


def _double(value: Any) -> Any:
    return wide_of(value) if can_differ(value) else value


def _nudged(row: Sequence[Any], sign: int, draw: int) -> list[Any]:
    """The row, its numbers moved by a few units in the last place, each to one side or the other.

    The strides stay, since a capture may go by them.
    """
    moved = []
    for seed, x in enumerate(row):
        if can_differ(x) and x.numel():
            shape, x = x.shape, _without_repeats(x)
            eps = torch.finfo(x.dtype).eps
            drawn = normal(torch.empty(x.shape, device=x.device), len(row) * draw + seed)
            sides = drawn.sign() * sign
            step = (sides * (NUDGE * eps)).to(x.dtype)
            x = Layout.of(x).filled(x.detach() + x.detach() * step).expand(shape)
        moved.append(x)
    return moved


def _without_repeats(x: Tensor) -> Tensor:
    """The part of `x` whose elements have places of their own; to be expanded again."""
    for dim, step in enumerate(x.stride()):
        x = x.narrow(dim, 0, 1) if step == 0 else x
    return x


# ---- double precision ----


class _Doubled(fx.Interpreter):
    """Runs a graph in double precision, but for the roundings that it asks for.

    A cast to a narrower dtype rounds, and the result goes on in double.
    """

    def run_node(self, n: fx.Node) -> Any:
        """As its base does, with dtypes widened."""
        if n.op != "call_function":
            return fx.Interpreter.run_node(self, n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = map_aggregate((args, kwargs), _widened)
        made = n.target(*args, **kwargs)  # type: ignore[operator]
        narrowed = narrowed_to(n)
        return made if narrowed is None else made.to(narrowed).to(made.dtype)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value.is_complex:
        return torch.complex128
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value
