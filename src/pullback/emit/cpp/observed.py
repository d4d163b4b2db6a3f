"""What a call gives: outputs, which of them require grad, gradients of first and second order.

Needs torch and nothing else: a new process runs this file for the op of a library, and what it
notes is compared with what the program gives.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Call = Callable[[list[Any]], Sequence[Any]]
"""A callable like the program: it takes the tensors of a row, and gives a row of tensors."""

JOB, RESULTS = "job.pt", "results.pt"
TOGETHER = "all outputs"


@dataclass
class Observed:
    """What was seen of one call.

    `outputs` are its results, and the inputs that it changed; `flags` says for each input that
    alone requires grad which results do. `first` are the gradients, for the cotangent of each
    result alone and then for all together; `second` their derivatives. `error` is what the call
    raised, the first line of it.
    """

    outputs: list[Any] = field(default_factory=list)
    flags: dict[int, list[bool]] = field(default_factory=dict)
    first: dict[str, list[Any]] = field(default_factory=dict)
    second: list[Any] | None = None
    error: str = ""


@dataclass(frozen=True)
class Wanted:
    """What is asked of a call: gradients by which inputs, with which of them changed in place.

    `held` are the inputs that a program has by itself, and that are none of its arguments: they are
    taken as they are.
    """

    needs: tuple[bool, ...]
    changed: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    is_twice: bool = False


def observed(call: Call, row: Sequence[Tensor], wanted: Wanted) -> Observed:
    """What `call` gives for the tensors of `row`."""
    found = Observed()
    try:
        outputs, given, _ = _called(call, row, wanted)
        found.outputs = [y.detach().clone() if isinstance(y, Tensor) else y for y in outputs]
        found.outputs += [given[place].detach().clone() for place in wanted.changed]
        found.flags = _flags(call, row, wanted)
        smooth = [k for k, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]
        for chosen in [*([k] for k in smooth if len(smooth) > 1), smooth]:
            label = TOGETHER if chosen == smooth else f"output {chosen[0]}"
            found.first[label] = _pulled(call, row, wanted, chosen)
        if wanted.is_twice and smooth:
            found.second = _pulled_twice(call, row, wanted)
    except Exception as error:
        found.error = (str(error).splitlines() or [type(error).__name__])[0]
    return found


def _called(
    call: Call, row: Sequence[Tensor], wanted: Wanted, only: int | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """The results of a call, the tensors that it was given, and the leaves behind them."""
    leaves = [
        t
        if place in wanted.held
        else t.detach().clone().requires_grad_(need and only in (None, place))
        for place, (t, need) in enumerate(zip(row, wanted.needs, strict=True))
    ]
    # A leaf must not be changed in place.
    given = [x.clone() if place in wanted.changed else x for place, x in enumerate(leaves)]
    torch.manual_seed(1)
    return list(call(given)), given, leaves


def _flags(call: Call, row: Sequence[Tensor], wanted: Wanted) -> dict[int, list[bool]]:
    places = [place for place, need in enumerate(wanted.needs) if need]
    if any(wanted.needs[place] for place in wanted.held):
        return {}
    found = {}
    for place in places:
        outputs = _called(call, row, wanted, only=place)[0]
        found[place] = [isinstance(y, Tensor) and y.requires_grad for y in outputs]
    return found


def _pulled(call: Call, row: Sequence[Tensor], wanted: Wanted, chosen: Sequence[int]) -> list[Any]:
    outputs, _, leaves = _called(call, row, wanted)
    inputs = [x for x, need in zip(leaves, wanted.needs, strict=True) if need]
    if not inputs or not chosen:
        return []
    picked = [outputs[k] for k in chosen]
    cotangents = [cotangent(outputs[k], k) for k in chosen]
    return list(torch.autograd.grad(picked, inputs, cotangents, allow_unused=True))


def _pulled_twice(call: Call, row: Sequence[Tensor], wanted: Wanted) -> list[Any]:
    """Derivatives of all gradients by inputs and cotangents."""
    outputs, _, leaves = _called(call, row, wanted)
    smooth = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
    inputs = [x for x, need in zip(leaves, wanted.needs, strict=True) if need]
    cotangents = [cotangent(y, k).requires_grad_() for k, y in enumerate(smooth)]
    first = torch.autograd.grad(smooth, inputs, cotangents, create_graph=True, allow_unused=True)
    parts = [
        (g * cotangent(g, 20 + k).conj()).sum().real for k, g in enumerate(first) if g is not None
    ]
    total = [part for part in parts if part.requires_grad]
    if not total:
        return [None] * (len(inputs) + len(cotangents))
    return list(torch.autograd.grad(total, [*inputs, *cotangents], allow_unused=True))


def cotangent(like: Tensor, seed: int) -> Tensor:
    """Numbers for the gradient of a tensor, the same in every process."""
    generator = torch.Generator().manual_seed(100 + seed)
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    row = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 0.5
    row = torch.view_as_complex(row) if like.is_complex() else row
    return row.to(device=like.device, dtype=like.dtype)


# ---- in a process of its own ----


def main(folder: Path) -> None:
    """Do the job in `folder`: call the ops of a library, and write what was seen."""
    warnings.simplefilter("ignore")
    job = torch.load(folder / JOB, weights_only=False)
    torch.set_num_threads(job["threads"])
    torch.ops.load_library(job["library"])
    space = getattr(torch.ops, job["namespace"])
    found = [
        vars(observed(_by_arguments(getattr(space, op), arguments, named), row, Wanted(**wanted)))
        for op, row, wanted, arguments, named in job["calls"]
    ]
    torch.save(found, folder / RESULTS)


def _by_arguments(op: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Call:
    """A call of `op` by a row of tensors; an argument is one of them, by its place, or a value."""

    def call(row: list[Any]) -> Sequence[Any]:
        made = op(*(value if place is None else row[place] for place, value in arguments), **named)
        return made if isinstance(made, tuple | list) else (made,)

    return call


if __name__ == "__main__":
    main(Path(sys.argv[1]))
