"""Plan: which units of a program should share a node, decided by measurement.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from torch import nn
from torch.autograd.function import Function as TorchFunction

if TYPE_CHECKING:
    from pullback.plan.planned import Plan

C = TypeVar("C", bound=Callable[..., Any])


@overload
def plan(
    program: type[TorchFunction],
    *examples: object,
    sizes: Iterable[tuple[Any, ...]] = ...,
    objective: str | float = ...,
    backends: Iterable[str] | None = ...,
    budget: float = ...,
    progress: bool | Callable[[int, int, str], None] | None = ...,
) -> Plan[Callable[..., Any]]: ...
@overload
def plan(
    program: C,
    *examples: object,
    sizes: Iterable[tuple[Any, ...]] = ...,
    objective: str | float = ...,
    backends: Iterable[str] | None = ...,
    budget: float = ...,
    progress: bool | Callable[[int, int, str], None] | None = ...,
) -> Plan[C]: ...
def plan(
    program: Callable[..., Any],
    *examples: object,
    sizes: Iterable[tuple[Any, ...]] = (),
    objective: str | float = "time",
    backends: Iterable[str] | None = None,
    budget: float = 60.0,
    progress: bool | Callable[[int, int, str], None] | None = None,
) -> Plan[Any]:
    """A `Plan`: the best way to run `program`, with the evidence for it: see `plan.planning`.

    Of a module, `best` is a module: see `plan.modules`.
    """
    make: Any
    if isinstance(program, nn.Module):
        from pullback.plan.modules import plan_module as make  # heavy
    else:
        from pullback.plan.planning import plan_program as make  # heavy
    found: Plan[Any] = make(
        program,
        *examples,
        sizes=sizes,
        objective=objective,
        backends=backends,
        budget=budget,
        progress=progress,
    )
    return found


@overload
def load_plan(
    path: str | Path, program: type[TorchFunction], *examples: object
) -> Plan[Callable[..., Any]]: ...
@overload
def load_plan(path: str | Path, program: C, *examples: object) -> Plan[C]: ...
def load_plan(path: str | Path, program: Callable[..., Any], *examples: object) -> Plan[Any]:
    """The `Plan` that was saved in `path`, for the same program: see `plan.planned`."""
    load: Any
    if isinstance(program, nn.Module):
        from pullback.plan.modules import load_module_plan as load  # heavy
    else:
        from pullback.plan.planned import load_program_plan as load  # heavy
    found: Plan[Any] = load(path, program, *examples)
    return found
