"""A recorded program with some of its units combined, ready to run.

A recording holds the decisions and numbers of one call, so a *flow* serves calls of the same kind
and the same sizes. The nodes in it do not: two groups that are written alike share one class, in
one program, in calls of other sizes, and in other groupings of the same program.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import is_dense, is_odd
from pullback.capture.layouts import strided_copy
from pullback.capture.names import identifier
from pullback.capture.trees import flatten, map_leaves, tensor_leaves, unflatten
from pullback.capture.units import Part, Program, Ref, Unit, part_of, record
from pullback.capture.watch import shielded
from pullback.compose.fast_path import with_nodes
from pullback.compose.grouping import (
    Groups,
    groups_of,
    is_in_order,
    unfit,
)
from pullback.compose.options import ComposeOptions
from pullback.compose.reasons import REFUSALS, reason_text
from pullback.compose.text import NodeCall, units_function
from pullback.derive.backward import make_derived
from pullback.derive.returned import record_of
from pullback.derive.traced import traceable
from pullback.errors import CaptureError, first_line
from pullback.function.isolation import ChangeInPlaceError, TorchState, isolated


@dataclass(frozen=True, eq=False)
class Flow:
    """A program as a row of nodes and units.

    `nodes` has for each group that is one node its class, `parts` what it computes, and `reasons`
    for each that should be a node and is not, why. `needs` says which tensors from around the
    program needed a gradient.
    """

    program: Program
    groups: Groups
    nodes: dict[tuple[int, ...], Any]
    parts: dict[tuple[int, ...], Part]
    reasons: dict[tuple[int, ...], str]
    function: Callable[..., Any]
    needs: tuple[bool, ...]

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """What the program gives, for these tensors among its arguments."""
        row = self.function(*tensors)
        if self.is_single:
            return row[0]
        rest, outputs = iter(row), self.program.outputs
        leaves = [next(rest) if isinstance(o, Ref) else o for o in outputs]
        return unflatten(leaves, self.program.out_spec)

    @functools.cached_property
    def is_single(self) -> bool:
        """Whether the program returns one tensor."""
        return self.program.out_spec.is_leaf() and isinstance(self.program.outputs[0], Ref)

    def is_as_it_was(self) -> bool:
        """Whether the tensors from outside the program need gradients as when it was recorded."""
        return self.needs == _needs(self.program)


def _needs(program: Program) -> tuple[bool, ...]:
    return tuple(closure.tensor.requires_grad for closure in program.closures)


def skeleton(program: Program) -> tuple[Any, ...]:
    """What two recordings must share for one grouping to mean the same in both."""
    return tuple((u.name, u.kind, u.inputs, u.outputs, u.changed) for u in program.units)


# ---- recording ----


def recorded_units(program: Callable[..., Any], args: Sequence[Any]) -> Program:
    """`program` as units, run on copies of `args`; tensors and random states stay as they are.

    Raises `CaptureError` for what cannot be repeated unit by unit.
    """
    with _alone(args):
        try:
            program(
                *changeable_copies(args)
            )  # a recording is real: what it would change, is seen here
        except ChangeInPlaceError:
            raise CaptureError(
                f"`{getattr(program, '__name__', 'program')}` must leave tensors from outside it "
                "as they are",
                got="a change in place",
            ) from None
        return record(program, *changeable_copies(args))


def changeable_copies(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with tensors of their own, laid out alike, that may be changed in place."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        is_plain = type(leaf) is Tensor and not is_odd(leaf)
        if is_plain and not (is_dense(leaf) and not leaf.storage_offset()):
            return strided_copy(leaf, is_leaf=not leaf.requires_grad)
        copy = leaf.detach().clone()
        return copy.requires_grad_().clone() if leaf.requires_grad else copy

    copies: tuple[Any, ...] = map_leaves(copied, tuple(args))
    return copies


@contextmanager
def _alone(args: Sequence[Any]) -> Iterator[None]:
    """Whoever watches or hooks around a call is not told; random numbers stay undrawn."""
    with shielded(), isolated(tuple(args), 0):
        yield


# ---- making ----


def flow_of(
    program: Program,
    groups: Sequence[Sequence[int]],
    args: Sequence[Any],
    options: ComposeOptions,
    module: str,
) -> Flow:
    """The flow of a recording, with a node for each group of several units.

    `args` are those that it was recorded with: the nodes are captured with the values that arise.
    `module` is where the program is written.
    """
    ordered = groups_of(program, groups)
    if not is_in_order(ordered):
        ordered = groups_of(program, groups, _drawing(program, args))
    with _alone(args):
        values = program.values(*changeable_copies(args))
        wanted = {tuple(sorted(group)) for group in groups}
        reasons = unfit(program, ordered, wanted)
        nodes, parts = dict[Any, Any](), dict[Any, Part]()
        for group in ordered:
            if group not in wanted or group in reasons:
                continue
            parts[group] = part = _live(program, part_of(program, group), args)
            try:
                nodes[group] = node_of(part, values, options, module)
            except REFUSALS as error:
                reasons[group] = reason_text(error)
            except RuntimeError as error:  # the program has run, but its backward does not
                reasons[group] = f"PyTorch cannot differentiate it on its own: {first_line(error)}"
    steps: list[Unit | NodeCall] = []
    for group in ordered:
        if group in nodes:
            steps.append(NodeCall(nodes[group].apply, parts[group].inputs, parts[group].outputs))
        else:
            steps += part_of(program, group).units
    function = _function(program, steps)
    return Flow(program, ordered, nodes, parts, reasons, function, _needs(program))


def _function(program: Program, steps: Sequence[Unit | NodeCall]) -> Callable[..., Any]:
    closures = {closure.number: closure.tensor for closure in program.closures}
    outputs = [output.number for output in program.outputs if isinstance(output, Ref)]
    inputs = [number for number, _ in program.inputs]
    return units_function("run", steps, inputs, outputs, closures)  # type: ignore[no-any-return]


def _live(program: Program, part: Part, args: Sequence[Any]) -> Part:
    """`part` without the units that nothing of what it gives depends on, unless they are random.

    A node is tied to all of its inputs: backward would go on through those that do not matter.
    """
    needed, live = set(part.outputs), list[Unit]()
    for unit in reversed(part.units):
        if not needed.isdisjoint(unit.makes):
            live.append(unit)
            needed |= set(unit.needs)
    if len(live) == len(part.units):
        return part
    drawing = _drawing(program, args)
    kept = [unit for unit in part.units if unit in live or unit.number in drawing]
    inputs = part_of(program, [unit.number for unit in kept]).inputs
    return Part(tuple(kept), inputs, part.outputs)


def _drawing(program: Program, args: Sequence[Any]) -> list[int]:
    """The units that draw random numbers."""
    found = []
    with _alone(args):
        given = tensor_leaves(changeable_copies(args))
        values = dict(zip((number for number, _ in program.inputs), given, strict=True))
        values |= {closure.number: closure.tensor for closure in program.closures}
        for unit in program.units:
            before = TorchState()
            unit.run(values)
            if not before.is_now():
                found.append(unit.number)
    return found


# ---- nodes ----

_nodes: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def node_of(part: Part, values: dict[int, Tensor], options: ComposeOptions, module: str) -> Any:
    """The class of a node that makes the calls of `part`; parts written alike share it."""
    key = (_written(part), options)
    with _lock:
        known = _nodes.get(key)
        if known is None:
            name, numbers = _name(part.units), (part.inputs, part.outputs)
            program = units_function(name, part.units, *numbers, module=module)
            examples = [values[number] for number in part.inputs]
            known = make_derived(
                program, examples, options.policy(), keeps_inputs=True, opaque=True
            )
            general = partial(record_of(known).call, known)
            call, known.nodes = with_nodes(known, general, options)
            known = traceable(known, call)
            _nodes[key] = known
        return known


def _name(units: Sequence[Unit]) -> str:
    names = [identifier(unit.name) for unit in units]
    return "_".join(names if len(names) <= 4 else [*names[:3], f"and_{len(names) - 3}"])


def _written(part: Part) -> tuple[Any, ...]:
    """How a part is written, whatever the numbers of its values are."""
    places: dict[int, int] = {}

    def place(number: int) -> int:
        return places.setdefault(number, len(places))

    row: list[Any] = [tuple(map(place, part.inputs))]
    for unit in part.units:
        leaves, spec = flatten((unit.args, unit.kwargs))
        given = tuple(_leaf(leaf, place) for leaf in leaves)
        changed = tuple((place(old), place(new)) for old, new in unit.changed)
        made = tuple(map(place, unit.outputs))
        row.append((unit.kind, _Is(unit.target), spec, given, made, changed, unit.modes))
    return (*row, tuple(map(place, part.outputs)))


_PLAIN = (bool, int, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def _leaf(leaf: Any, place: Callable[[int], int]) -> Any:
    if isinstance(leaf, Ref):
        return Ref, place(leaf.number)
    if isinstance(leaf, (float, slice)):
        return type(leaf), repr(leaf)
    return (type(leaf), leaf) if isinstance(leaf, _PLAIN) else _Is(leaf)


@dataclass(frozen=True, eq=False, slots=True)
class _Is:
    """A thing that counts by its identity, and is kept alive so that this stays its own."""

    it: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)
