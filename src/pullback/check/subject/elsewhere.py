"""A call made another way, compared with the ordinary one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Output, Words
from pullback.check.subject.gap import Gap, gap_of
from pullback.check.subject.subject import Subject
from pullback.judge.example import Example, can_differ
from pullback.judge.run import BackwardFailedError, Run
from pullback.judge.tolerances import is_close

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The outputs of a call, and its gradients by name."""

    outputs: tuple[Tensor, ...]
    grads: dict[str, Tensor | None]


def results_of(
    subject: Subject, example: Example, call: Call | None = None, *, by_field: bool = False
) -> Results:
    """Outputs and gradients of a call on fresh copies; raises as the user's code does.

    With `by_field`, the gradients are taken from `.grad`, after `torch.autograd.backward`.
    """
    subject.tried["runs"] += 1
    called = subject.run_other(call or subject.target.call, example)
    outputs = tuple(output.detach().clone() for output in called.outputs)
    if not called.live:
        return Results(outputs, {})
    cotangents = subject.cotangents(called)
    return Results(outputs, _fields(called, cotangents) if by_field else called.pull(cotangents))


def _fields(called: Run, cotangents: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
    """The gradients that `torch.autograd.backward` leaves in the fields of the inputs."""
    used = [(called.outputs[i], cotangents[i]) for i in called.live]
    used = [(output, cotangent) for output, cotangent in used if cotangent is not None]
    try:
        torch.autograd.backward([output for output, _ in used], [given for _, given in used])
    except Exception as error:
        raise BackwardFailedError(error) from error
    return {name: leaf.grad for name, leaf in called.leaves.items()}


def is_repeatable(subject: Subject) -> bool:
    """Whether the same call gives the same twice; where not, another rule says so."""
    if subject.target.intent.is_drawn:
        return False
    if "repeatable" not in subject.trials:
        one, two = (results_of(subject, subject.base) for _ in range(2))
        subject.trials["repeatable"] = [difference(one, two) is None]
    return bool(subject.trials["repeatable"][0])


def difference(got: Results, usual: Results, factor: float = 1000.0) -> Gap | None:
    """Where two calls differ first."""
    if len(got.outputs) != len(usual.outputs):
        counts = [Words(f"{len(one.outputs)} tensors") for one in (usual, got)]
        return Gap(At("the outputs"), counts[0], counts[1])
    for i, (one, two) in enumerate(zip(got.outputs, usual.outputs, strict=True)):
        found = _apart(Output(i), one, two, factor)
        if found is not None:
            return found
    for name, right in usual.grads.items():
        have = got.grads.get(name)
        where = Gradient(name)
        if have is None or right is None:
            if not is_close(have, right):
                return gap_of(where, have, right)
            continue
        found = _apart(where, have, right, factor)
        if found is not None:
            return found
    return None


def _apart(where: Output | Gradient, got: Tensor, usual: Tensor, factor: float) -> Gap | None:
    if got.shape != usual.shape:
        return gap_of(where, got, usual)
    if not can_differ(usual) or not can_differ(got):
        if torch.equal(got, usual):
            return None
        return Gap(At(where), Words("the same numbers"), Words("others"))
    if is_close(got, usual, factor) or _is_rounding(got, usual):
        return None
    return gap_of(where, got, usual)


def _is_rounding(got: Tensor, usual: Tensor) -> bool:
    """Whether one of two float64 results is float32's to the bit, and they differ no further."""
    if got.dtype != torch.float64 or usual.dtype != torch.float64:
        return False
    one, two = got.float(), usual.float()
    is_single = torch.equal(one.double(), got) or torch.equal(two.double(), usual)
    return is_single and is_close(one, two)


def wrapped(call: Call) -> Call:
    """The call as a plain Python function, which compilers and transforms take."""

    def function(*args: Any) -> Any:
        return call(*args)

    return function


def positions_of(example: Example) -> Sequence[int]:
    """The positions of the arguments that require grad, in order."""
    return sorted(example.needs)
