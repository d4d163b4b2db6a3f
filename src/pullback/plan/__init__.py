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
    """The best way to run `program`, and the evidence for it.

    Every grouping of its units is considered, with every backend and policy of saving: by what its
    groups cost, each measured by itself. The best few are then measured side by side with the
    program as written and combined, and that decides.

    Arguments:
        program: as for `combine`.
        examples: arguments of the size to plan for.
        sizes: further arguments, a tuple for each further size; the plan then follows the size.
        objective: "time", "memory" (bytes kept for backward), or a number between: 0 is time, 1 is
            memory.
        backends: the names of those to try; all that are available unless it is given.
        budget: seconds, more or less. The program as written, and combined with the last backend
            and each policy of saving, is always measured.
        progress: whether to show a bar, or a function of the steps done, the steps known of, and a
            text. Unless it is given, there is a bar on a terminal.

    Of a module, `best` is a module. Ctrl-C ends the search: the plan is then made of what is known.

    >>> import torch
    >>> x = torch.ones(8, requires_grad=True)
    >>> p = plan(lambda x: x.sin().exp(), x, budget=0, backends=["eager"])
    >>> bool(p.best(x).equal(x.sin().exp()))
    True
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
    """The plan in the file `path`, for the program that it was measured with.

    Nothing is measured again. The program is recorded once, to see that it is the same: on
    `examples`, or on tensors like those of the plan's smallest size. Raises `PlanFileError` for a
    program that was written anew, and for a file that is no plan.

    >>> import tempfile, torch
    >>> from pullback.plan import plan
    >>> def program(x):
    ...     return x.sin().exp()
    >>> x = torch.ones(8, requires_grad=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan(program, x, budget=0, backends=["eager"]).save(f"{folder}/plan.json")
    ...     loaded = load_plan(f"{folder}/plan.json", program)
    >>> bool(loaded.best(x).equal(program(x)))
    True
    """
    load: Any
    if isinstance(program, nn.Module):
        from pullback.plan.modules import load_module_plan as load  # heavy
    else:
        from pullback.plan.planned import load_program_plan as load  # heavy
    found: Plan[Any] = load(path, program, *examples)
    return found
