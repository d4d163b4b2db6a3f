"""A program at one size: its units, the values between them, and tasks to measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pullback.capture.trees import tensor_leaves
from pullback.capture.units import Part, Program, Unit, part_of
from pullback.capture.watch import versions_of
from pullback.compose.flow import changeable_copies, recorded_units
from pullback.compose.grouping import groups_of, unfit, waits
from pullback.compose.reasons import is_refusal, reason_text
from pullback.compose.text import units_function
from pullback.function.isolation import TorchState, isolated, keeping_random_state
from pullback.plan.groupings import Group
from pullback.plan.measure import Task, measuring
from pullback.plan.precision import Gradients, exact_gradients


@dataclass(eq=False)
class SizedProgram:
    """A program with arguments of one size; `units` is None where it could not be recorded."""

    program: Callable[..., Any]
    args: tuple[Any, ...]
    size: int
    units: Program | None
    reason: str = ""
    _exact: Gradients | None = None

    # ---- the whole program ----

    @cached_property
    def changes_inputs(self) -> bool:
        """Whether the program changes its inputs."""
        copies = changeable_copies(self.args)
        before = versions_of(tensor_leaves(copies))
        with keeping_random_state(self.args), measuring():
            self.program(*copies)
        return before != versions_of(tensor_leaves(copies))

    @cached_property
    def closure_tensors(self) -> list[Tensor]:
        """The tensors that the program closes over."""
        return [closure.tensor for closure in self.units.closures] if self.units else []

    def task(self, function: Callable[..., Any]) -> Task:
        """A task that calls `function` as the program is called here."""
        leaves = [t for t in (*tensor_leaves(self.args), *self.closure_tensors) if t.requires_grad]
        return Task(function, self.args, leaves, changes_inputs=self.changes_inputs)

    @property
    def spared(self) -> list[Tensor]:
        """Tensors that exist anyway: keeping them for backward costs nothing."""
        return [*tensor_leaves(self.args), *self.closure_tensors]

    @property
    def rounding(self) -> float:
        """The coarsest rounding among the numbers that go in."""
        kinds = [t.dtype for t in self.spared if t.is_floating_point() or t.is_complex()]
        return max((torch.finfo(kind).eps for kind in kinds), default=0.0)

    def reference(self, task: Task) -> Gradients | None:
        """The gradients of `task` in double precision; None if there are none to compare with.

        A program that draws random numbers draws other ones in double precision.
        """
        if self.units is None or self.drawing:
            return None
        if task.cotangents is None:
            task()
        if self._exact is None and task.cotangents is not None:
            self._exact = exact_gradients(self.units, self.args, task.cotangents)
        return self._exact

    # ---- its units ----

    @property
    def names(self) -> list[str]:
        """The names of the units."""
        return [unit.name for unit in self.units.units] if self.units else []

    @cached_property
    def _run(self) -> tuple[dict[int, Tensor], list[int]]:
        """Every value, and the units that draw random numbers."""
        assert self.units is not None
        drawing = []
        with measuring(), isolated((), 0):
            given = tensor_leaves(changeable_copies(self.args))
            values = dict(zip((n for n, _ in self.units.inputs), given, strict=True))
            values |= {closure.number: closure.tensor for closure in self.units.closures}
            for unit in self.units.units:
                before = TorchState()
                unit.run(values)
                if not before.is_now():
                    drawing.append(unit.number)
        return values, drawing

    @property
    def values(self) -> dict[int, Tensor]:
        """Every value that flows between the units."""
        return self._run[0]

    @property
    def drawing(self) -> list[int]:
        """The units that draw random numbers."""
        return self._run[1]

    @property
    def waits(self) -> list[set[int]]:
        """For each unit, the units that must have run before it."""
        assert self.units is not None
        return waits(self.units, self.drawing)

    def part(self, group: Group) -> Part:
        """A group as a function of its own."""
        assert self.units is not None
        return part_of(self.units, group)

    def crosses(self, group: Group) -> bool:
        """Whether a change in place crosses the border of the group: it cannot be a node."""
        assert self.units is not None
        return bool(unfit(self.units, groups_of(self.units, [group], self.drawing), {group}))

    def task_of_node(self, part: Part, node: Any) -> Task:
        """A task that calls a node for a group."""
        return self._task(node.apply, part)

    def task_of_unit(self, unit: Unit) -> Task:
        """A task that calls a unit as it is written."""
        part = self.part((unit.number,))
        run = units_function("unit", part.units, part.inputs, part.outputs)
        return self._task(run, part, changes_inputs=bool(unit.changed))

    def _task(
        self, function: Callable[..., Any], part: Part, *, changes_inputs: bool = False
    ) -> Task:
        args = [_leaf(self.values[number]) for number in part.inputs]
        return Task(
            function, args, [t for t in args if t.requires_grad], changes_inputs=changes_inputs
        )

    @property
    def kept_anyway(self) -> list[Tensor]:
        """The values that exist anyway: inputs, and tensors that the program closes over."""
        assert self.units is not None
        return [*(self.values[number] for number, _ in self.units.inputs), *self.closure_tensors]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def sized_program(program: Callable[..., Any], args: Sequence[Any], size: int) -> SizedProgram:
    """A program at the size of `args`. Raises what the program raises."""
    with measuring():
        with keeping_random_state(args):
            program(*changeable_copies(args))
        units, reason = _recorded(program, args)
    return SizedProgram(program, tuple(args), size, units, reason)


def _recorded(program: Callable[..., Any], args: Sequence[Any]) -> tuple[Program | None, str]:
    try:
        return recorded_units(program, args), ""
    except Exception as error:
        if not is_refusal(error):
            raise
        return None, reason_text(error)
