"""`plan` of a module: the best way to run its `forward`, and a module that runs it so.

What is planned is `forward` as a program of the module's tensors (`compose.functional`). `best` is
used like the module, and shares everything with it, as what `combine` gives does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pullback.compose.functional import (
    ModuleLayout,
    changed_by,
    module_program,
    odd_tensor,
    require_values,
    with_own_tensors,
)
from pullback.compose.modules import ModuleNodes, plain_of, served
from pullback.compose.nested import as_written
from pullback.errors import PlanError
from pullback.plan import planned, planning, store
from pullback.plan.fingerprint import redrawn_arguments

_OTHERWISE = "the module is not as it was when it was planned"


def plan_module(
    module: nn.Module, *examples: Any, sizes: Iterable[Any] = (), **options: Any
) -> planned.Plan[Any]:
    """The best way to run a module, with the evidence for it: see `plan.planning`."""
    further = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in sizes]
    first = examples or next(iter(further), ())
    planned_as = _Planned.of(plain_of(module), first)
    row = planned_as.row
    found = planned_as.run(
        planning.plan_program,
        *((*row, *examples) if examples else ()),
        sizes=[(*row, *one) for one in further],
        held=len(row),
        **options,
    )
    return planned_as.used_like_the_module(found)


def load_module_plan(path: str | Path, module: nn.Module, *examples: Any) -> planned.Plan[Any]:
    """The plan of a module that was saved in `path`: see `plan.planned`."""
    plain = plain_of(module)
    count = len(ModuleLayout(plain).names)
    file = Path(path)
    read = store.read(file).signature
    args = examples or store.guarded(file, lambda: redrawn_arguments(read[count:]))
    planned_as = _Planned.of(plain, args)

    def load(program: Any, *row: Any) -> planned.Plan[Any]:
        return planned.load_program_plan(path, program, *row)

    return planned_as.used_like_the_module(planned_as.run(load, *planned_as.row, *args))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A module as the program that is planned; `row` is what it is given before its arguments."""

    layout: ModuleLayout
    changing: frozenset[str]
    program: Callable[..., Any]
    row: Sequence[Tensor]

    @classmethod
    def of(cls, module: nn.Module, examples: Sequence[Any]) -> _Planned:
        """A module, which changes buffers as in a call with `examples`."""
        require_values(module)
        layout = ModuleLayout(module)
        row = layout.row()
        reason = layout.reason or odd_tensor(layout, row)
        if reason:
            raise PlanError(
                f"`{type(module).__name__}` must be one that can be combined to be planned",
                got=reason,
            )
        changing = changed_by(layout, row, examples, {}) if layout.buffers else frozenset[str]()
        given = [t.clone() if n in changing else t for n, t in zip(layout.names, row, strict=True)]
        return cls(layout, changing, module_program(layout, changing), given)

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of the program; as written, that is the module, if it changes nothing."""
        if self.changing:
            return function(self.program, *args, **options)

        def call(*row: Any, **options: Any) -> Any:
            return function(self.program, *args, **options)

        return with_own_tensors(call, self.row, (), options)

    def used_like_the_module(self, plan: planned.Plan[Any]) -> planned.Plan[Any]:
        """`plan`, whose `best` is a module."""
        nodes = ModuleNodes(self.layout.module, lambda program, *_: as_written(program, _OTHERWISE))
        nodes.know(self.layout, self.changing, _Best(plan.best, plan.explain))
        plan.best = served(self.layout.module, nodes, None)
        return plan


@dataclass(frozen=True, slots=True)
class _Best:
    """What was chosen, as a composition."""

    call: Callable[..., Any]
    explain: Callable[[], str]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)
