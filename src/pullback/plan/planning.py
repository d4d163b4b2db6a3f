"""`plan`: every way to run a program, measured, and the best of them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pullback.capture.names import parameter_names
from pullback.capture.trees import tensor_leaves
from pullback.compose.nested import callable_of
from pullback.compose.reasons import call_text
from pullback.errors import PlanError
from pullback.function.isolation import keeping_random_state
from pullback.plan.choice import choose_measurement, size_of, size_place, weight_of
from pullback.plan.evidence import PlanEvidence, Sized
from pullback.plan.fingerprint import arguments_signature, fingerprint_of
from pullback.plan.measure import Meter
from pullback.plan.measurements import AS_WRITTEN
from pullback.plan.planned import Plan
from pullback.plan.progress import reporting
from pullback.plan.search import PlanSearch
from pullback.plan.sized_program import SizedProgram, sized_program
from pullback.run import AUTO, backend_of, backends_of

SAVES = ("everything", "auto", "factors")


def plan_program(
    program: Callable[..., Any],
    *examples: Any,
    sizes: Iterable[tuple[Any, ...]] = (),
    objective: str | float = "time",
    backends: Iterable[str] | None = None,
    budget: float = 60.0,
    progress: bool | Callable[[int, int, str], None] | None = None,
    held: int = 0,
) -> Plan[Any]:
    """The best way to run `program`, and the evidence for it.

    As `pullback.plan`; `held` is how many of the first arguments belong to the program, and do not
    count for the size.
    """
    program = callable_of(program)
    rows = _examples(program, examples, sizes)
    weight = weight_of(objective)
    _require_budget(budget)
    names = tuple(backends_of(AUTO) if backends is None else backends)
    for one in names:
        backend_of(one)
    place = size_place(rows, held)
    name = "" if place is None else parameter_names(program, len(rows[0]))[place]
    cases = _cases(program, rows, place, name)
    # What usually wins comes first: the budget may be spent before the rest.
    saves = SAVES if weight < 0.5 else (*SAVES[1:], SAVES[0])
    pairs = [(backend, save) for backend in reversed(names) for save in saves]
    meter = Meter(_device(rows))
    with keeping_random_state(), reporting(progress) as report:
        search = PlanSearch(program, cases, pairs, weight, float(budget), meter, report)
        search.run()
    return _plan_of(search, objective, place, name)


# ---- what is asked for ----


def _examples(
    program: Callable[..., Any], examples: tuple[Any, ...], sizes: Iterable[Any]
) -> list[tuple[Any, ...]]:
    """The arguments of each size."""
    further = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in sizes]
    rows = ([examples] if examples else []) + further
    if not rows or not all(tensor_leaves(row) for row in rows):
        raise PlanError(
            f"`{_name(program)}` must be planned with examples of its arguments",
            expected="tensors like those it will be called with, and its other arguments",
            got="no example" if not rows else "an example without a tensor",
        )
    return rows


def _require_budget(budget: Any) -> None:
    if not isinstance(budget, (int, float)) or isinstance(budget, bool) or not budget >= 0:
        raise PlanError(
            "`budget` must be a number of seconds",
            expected="0 or more",
            got=repr(budget),
        )


def _cases(
    program: Callable[..., Any], rows: Sequence[tuple[Any, ...]], place: int | None, name: str
) -> list[SizedProgram]:
    """The program at each size, smallest first."""
    by_size: dict[int, tuple[Any, ...]] = {}
    for row in rows:
        size = size_of(row, {}, name) if place is None else row[place].numel()
        if size in by_size:
            raise PlanError(
                "`sizes` must be examples of different sizes",
                got=f"{call_text(by_size[size])} and {call_text(row)}, both of {size} elements",
            )
        by_size[size] = row
    return [sized_program(program, by_size[size], size) for size in sorted(by_size)]


def _device(rows: Sequence[Any]) -> torch.device:
    devices = [tensor.device for tensor in tensor_leaves(rows)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def _name(program: Any) -> str:
    """What the user calls a program; for `apply` of a Function, that is the class."""
    owner = getattr(program, "__self__", None)
    named = owner if isinstance(owner, type) else program
    return getattr(named, "__name__", type(program).__name__)


# ---- what is found ----


def _plan_of(search: PlanSearch, objective: str | float, place: int | None, name: str) -> Plan[Any]:
    sized = []
    for case in search.cases:
        rows = search.rows.get(case.size, ())
        chosen = choose_measurement(rows, search.weight).candidate if rows else AS_WRITTEN
        sized.append(Sized(case.size, call_text(case.args), rows, chosen))
    first = search.cases[0]
    evidence = PlanEvidence(
        program=_name(search.program),
        objective=objective,
        sized=tuple(sized),
        place=place,
        argument=name,
        notes=(*search.notes, *([search.stopped] if search.stopped else [])),
        refused=dict(search.refused),
        made_with=_machine(search.meter.device, search.meter.now() - search.start),
        fingerprint=fingerprint_of(search.program, first.units),
        signature=arguments_signature(first.args),
    )
    return Plan(search.program, evidence, search.functions)


def _machine(device: torch.device, seconds: float) -> dict[str, Any]:
    cuda: Any = torch.cuda
    is_cuda = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "device": cuda.get_device_name(device) if is_cuda else platform.machine() or "cpu",
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
    }
