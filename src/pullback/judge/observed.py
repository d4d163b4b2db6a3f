"""What a call gives: outputs, which of them require grad, gradients of first and second order.

Needs torch and nothing else: a new process runs this file for what was emitted (the op of a
library, the Function of a module), and what it notes is compared with what the program gives.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Call = Callable[[list[Tensor]], Sequence[Any]]
"""Takes the tensors of a row, and gives the leaves of what is returned: always the same ones."""

JOB, RESULTS = "job.pt", "results.pt"
SEED = 1
TOGETHER = "all outputs"


@dataclass
class Observed:
    """What was seen of one call.

    `outputs` are its results; `live` says which of them require grad, and `alone` the same for each
    input that alone requires grad. `first` are the gradients, for the cotangent of each output
    alone and then for all together; `second` their derivatives. `error` is what the call raised,
    the first line of it, and `error_type` the name of its class.
    """

    outputs: list[Any] = field(default_factory=list)
    live: list[bool] = field(default_factory=list)
    alone: dict[int, list[bool]] = field(default_factory=dict)
    first: dict[str, list[Any]] = field(default_factory=dict)
    second: list[Any] | None = None
    error: str = ""
    error_type: str = ""


@dataclass(frozen=True)
class Wanted:
    """What is asked of a call: gradients by which inputs, with which of them changed in place.

    `held` are the inputs that a program has by itself, and that are none of its arguments: they are
    taken as they are. Where it `sees_changes`, the inputs that are changed are outputs, too.
    `is_alone` asks for what requires grad where one input alone does, `is_twice` for second
    derivatives.
    """

    needs: tuple[bool, ...]
    changed: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    sees_changes: bool = False
    is_alone: bool = False
    is_twice: bool = False


def observed(call: Call, row: Sequence[Tensor], wanted: Wanted) -> Observed:
    """What `call` gives for the tensors of `row`."""
    found = Observed()
    try:
        given, leaves = given_to(row, wanted)
        outputs = list(call(given))
        seen = [*outputs, *(given[place] for place in wanted.changed if wanted.sees_changes)]
        found.outputs = [y.detach().clone() if isinstance(y, Tensor) else y for y in seen]
        found.live = _live(outputs)
        found.first = _first(outputs, leaves)
        if wanted.is_alone:
            found.alone = _alone(call, row, wanted)
        if wanted.is_twice and any(found.live):
            found.second = second_derivatives(call, row, wanted)
    except Exception as error:
        found.error_type = type(error).__name__
        found.error = (str(error).splitlines() or [found.error_type])[0]
    return found


def given_to(
    row: Sequence[Tensor], wanted: Wanted, only: int | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """What a call is given, and the leaves that it is differentiated by.

    A leaf cannot be changed in place; what is made of it can.
    """
    own = [
        t
        if place in wanted.held
        else t.detach().clone().requires_grad_(need and only in (None, place))
        for place, (t, need) in enumerate(zip(row, wanted.needs, strict=True))
    ]
    given = [x.clone() if place in wanted.changed else x for place, x in enumerate(own)]
    return given, [x for x, need in zip(own, wanted.needs, strict=True) if need]


def live_alone(call: Call, row: Sequence[Tensor], wanted: Wanted, place: int) -> list[bool]:
    """Which outputs require grad where one input alone does."""
    return _live(call(given_to(row, wanted, only=place)[0]))


def _live(outputs: Sequence[Any]) -> list[bool]:
    return [isinstance(y, Tensor) and y.requires_grad for y in outputs]


def _alone(call: Call, row: Sequence[Tensor], wanted: Wanted) -> dict[int, list[bool]]:
    """That, for each input; nothing where a tensor from outside brings a history along."""
    if any(wanted.needs[place] for place in wanted.held):
        return {}
    places = [place for place, need in enumerate(wanted.needs) if need]
    return {place: live_alone(call, row, wanted, place) for place in places}


def _first(outputs: Sequence[Any], leaves: Sequence[Tensor]) -> dict[str, list[Any]]:
    smooth = [k for k, is_live in enumerate(_live(outputs)) if is_live]
    if not smooth or not leaves:
        return {}
    rows = {f"output {k}": [k] for k in smooth if len(smooth) > 1} | {TOGETHER: smooth}
    return {label: _pulled(outputs, leaves, chosen) for label, chosen in rows.items()}


def _pulled(outputs: Sequence[Any], leaves: Sequence[Tensor], chosen: Sequence[int]) -> list[Any]:
    picked = [outputs[k] for k in chosen]
    cotangents = [cotangent(y, 2 + k) for k, y in zip(chosen, picked, strict=True)]
    return list(
        torch.autograd.grad(picked, leaves, cotangents, retain_graph=True, allow_unused=True)
    )


def second_derivatives(call: Call, row: Sequence[Tensor], wanted: Wanted) -> list[Tensor | None]:
    """The derivatives of all gradients by inputs and cotangents; raises where there are none."""
    given, leaves = given_to(row, wanted)
    smooth = [y for y in call(given) if isinstance(y, Tensor) and y.requires_grad]
    cotangents = [cotangent(y, 2 + k).requires_grad_() for k, y in enumerate(smooth)]
    if not smooth or not leaves:
        return [None] * (len(leaves) + len(cotangents))
    first = torch.autograd.grad(smooth, leaves, cotangents, create_graph=True, allow_unused=True)
    parts = [(g * cotangent(g, 20 + k)).sum().real for k, g in enumerate(first) if g is not None]
    total = [part for part in parts if part.requires_grad]
    if not total:
        return [None] * (len(leaves) + len(cotangents))
    return list(torch.autograd.grad(total, [*leaves, *cotangents], allow_unused=True))


def cotangent(like: Tensor, seed: int) -> Tensor:
    """Positive numbers for the gradient of a tensor, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    row = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.25
    row = torch.view_as_complex(row) if like.is_complex() else row
    return row.to(device=like.device, dtype=like.dtype)


# ---- in a process of its own ----


def main(folder: Path) -> None:
    """Do the job in `folder`: call what a file has, and write what was seen."""
    warnings.simplefilter("ignore")
    job = torch.load(folder / JOB, weights_only=False)
    torch.set_num_threads(job["threads"])
    function_of = _of_library if job["namespace"] else _of_module
    functions = function_of(job["file"], job["namespace"])
    found = [
        vars(observed(_by_arguments(functions(name), arguments, named), row, Wanted(**wanted)))
        for name, row, wanted, arguments, named in job["calls"]
    ]
    torch.save(found, folder / RESULTS)


def _of_library(file: str, namespace: str) -> Callable[[str], Any]:
    """The ops of a library, by their names."""
    torch.ops.load_library(file)
    return lambda name: getattr(getattr(torch.ops, namespace), name)


def _of_module(file: str, namespace: str) -> Callable[[str], Any]:
    """The Functions of a module in Python, by their names."""
    spec: Any = importlib.util.spec_from_file_location("emitted", file)
    module = sys.modules["emitted"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda name: getattr(module, name).apply


def _by_arguments(function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Call:
    """A call by a row of tensors; an argument is one of them, by its place, or a value."""

    def call(row: list[Tensor]) -> Sequence[Any]:
        torch.manual_seed(SEED)
        given = (value if place is None else row[place] for place, value in arguments)
        made = function(*given, **named)
        return made if isinstance(made, tuple | list) else (made,)

    return call


if __name__ == "__main__":
    main(Path(sys.argv[1]))
