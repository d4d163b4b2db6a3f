"""A reference in one process, on the inputs of all ranks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of, why_no_fork
from pullback.check.ranks.blocks import block_of
from pullback.check.ranks.commands import Pulled, Values
from pullback.check.ranks.consistency import held
from pullback.check.ranks.joint import Joint, JointPoint
from pullback.check.ranks.placements import Assignment, Placed
from pullback.judge.example import can_differ, wide_of
from pullback.judge.run import describe

Leaves = list[dict[int, Tensor]]


class ReferenceFailed(Exception):
    """The reference raised, or gave what cannot be compared."""


def reference_outputs(
    joint: Joint, point: JointPoint, have: Sequence[Values]
) -> list[tuple[Any, ...]]:
    """The outputs of every rank, as the reference has them."""

    def task() -> Any:
        outputs, _ = _called(joint, point, have)
        return [tuple(o.detach() for o in row) for row in outputs]

    found: list[tuple[Any, ...]] = _apart(task)
    return found


def reference_gradients(
    joint: Joint,
    assignment: Assignment,
    point: JointPoint,
    cotangents: Sequence[Values],
    pulled: Sequence[Pulled],
) -> list[dict[int, Tensor | None]]:
    """The gradients of every rank by position, by autograd through the reference."""

    def task() -> Any:
        have = [one.outputs for one in pulled]
        outputs, leaves = _called(joint, point, have)
        loss = torch.zeros((), dtype=torch.float64)
        for number, placed in enumerate(assignment.outputs):
            for rank in range(joint.size):
                if placed.is_replicated and rank != block_of(held(joint, placed), rank)[0]:
                    continue
                cotangent = cotangents[rank][number]
                if cotangent is not None:
                    loss = loss + (outputs[rank][number] * cotangent.conj()).sum().real
        flat = [leaves[r][p] for r in range(joint.size) for p in joint.positions]
        grads = torch.autograd.grad(loss, flat, allow_unused=True)
        by = iter(grads)
        own: list[dict[int, Tensor | None]] = [
            {p: next(by) for p in joint.positions} for _ in range(joint.size)
        ]
        return [
            {p: _total(joint, assignment, own, rank, p) for p in joint.positions}
            for rank in range(joint.size)
        ]

    found: list[dict[int, Tensor | None]] = _apart(task)
    return found


def _total(
    joint: Joint,
    assignment: Assignment,
    own: Sequence[dict[int, Tensor | None]],
    rank: int,
    position: int,
) -> Tensor | None:
    """The gradient that a rank must have: its own, or that of the one value."""
    placed = assignment.of(joint.names[position])
    if not placed.is_replicated:
        return own[rank][position]
    block = block_of(held(joint, placed), rank)
    parts = [g for g in (own[r][position] for r in block) if g is not None]
    return torch.stack(parts).sum(0) if parts else None


def _apart(task: Callable[[], Any]) -> Any:
    """What a task gives in a process of its own, where there can be one."""

    def guarded() -> bytes:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return pickle.dumps((True, task()))  # bytes: memory would be gone with the process
        except ReferenceFailed as failure:
            return pickle.dumps((False, str(failure)))
        except Exception as error:
            return pickle.dumps((False, f"it raised {describe(error)}"))

    try:
        is_right, found = pickle.loads(guarded() if why_no_fork() else answer_of(guarded))
    except Died as death:
        raise ReferenceFailed(death.how) from None
    if not is_right:
        raise ReferenceFailed(found)
    return found


def _called(
    joint: Joint, point: JointPoint, have: Sequence[Values]
) -> tuple[list[tuple[Tensor, ...]], Leaves]:
    """The outputs of every rank, and the leaves that they were made of."""
    assert joint.reference is not None
    leaves: Leaves = [
        {p: v.detach().clone().requires_grad_(can_differ(v)) for p, v in values.items()}
        for values in point
    ]
    args = [_gathered(joint, leaves, position) for position in range(len(joint.names))]
    result = joint.reference(*[arg for is_there, arg in args if is_there])
    several = result if isinstance(result, tuple) else (result,)
    if len(several) != joint.outputs:
        raise ReferenceFailed(f"{len(several)} outputs, and there are {joint.outputs}")
    by_output = [
        _spread(joint, value, joint.declared.of_output(number), [row[number] for row in have])
        for number, value in enumerate(several)
    ]
    return [tuple(by[rank] for by in by_output) for rank in range(joint.size)], leaves


def _gathered(joint: Joint, leaves: Leaves, position: int) -> tuple[bool, Any]:
    """An argument as the reference gets it, and whether it does."""
    arguments = [given.args[position] for given in joint.given if position < len(given.args)]
    if not arguments or any(a.ranks for a in arguments):
        return False, None
    if position not in leaves[0]:
        name = joint.names[position]
        if not all(a.is_told for a in arguments):
            raise ReferenceFailed(f"`{name}` is {arguments[0].words}, which stays in its process")
        plain = [a.value if a.value is not None else a.plain for a in arguments]
        if joint.is_double and all(map(can_differ, plain)):
            plain = [wide_of(p) for p in plain]
        return True, plain[0] if all(_is_same(p, plain[0]) for p in plain) else plain
    placed = joint.declared.of_input(joint.names[position])
    values = [own[position] for own in leaves]
    if placed is not None and placed.dim is not None:
        return True, torch.cat(values, placed.dim)
    if (placed is not None and placed.is_replicated) or joint.is_global:
        return True, values[0]
    return True, values


def _is_same(one: Any, two: Any) -> bool:
    """Whether two plain values are the same."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_is_same, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_is_same(one[key], two[key]) for key in one)
    return bool(one == two)


def _spread(
    joint: Joint, value: Any, placed: Placed | None, have: Sequence[Tensor | None]
) -> list[Tensor]:
    """An output of the reference as every rank must have it."""
    if isinstance(value, list):
        if len(value) != joint.size:
            raise ReferenceFailed(f"a list of {len(value)}, and there are {joint.size} ranks")
        return value
    if not isinstance(value, Tensor):
        raise ReferenceFailed(f"{type(value).__name__} in place of a tensor or a list of tensors")
    if placed is not None and placed.dim is not None:
        sizes = [1 if h is None else h.shape[placed.dim] for h in have]
        if sum(sizes) != value.shape[placed.dim]:
            raise ReferenceFailed(f"{value.shape[placed.dim]} rows to split into {sizes}")
        return list(value.split(sizes, placed.dim))
    return [value] * joint.size
