"""`jvp` must be the derivative that `backward` is the transpose of.

What it checks
    For random tangents `v`, of all inputs and of each alone, and cotangents `u`: `<u, jvp(v)>` is
    `<backward(u), v>`, and where it is not, differences of forward say which of the two is wrong.

Why it matters
    Forward mode is rarely tested, since training never runs it; Hessian-vector products, flow
    models and `torch.func.jvp` do.

Fails
    return -tangent * torch.cos(x)         # for sin

Passes
    return tangent * torch.cos(x)

Cannot see
    Functions without a `jvp` of their own, which PyTorch refuses in forward mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.facts import Input, Number
from pullback.check.forward_mode import inner, pushed, tangents_of
from pullback.check.repro.orders import drawn_tangent, push_lines
from pullback.check.repro.scene import Scene, indented, text_of
from pullback.check.subject import Finding, Rule, Skip, Subject, told
from pullback.judge.tolerances import is_close

RULE = Rule(code="F001", name="wrong-jvp", group="forward", profile="quick")

DRAWS = 2


@dataclass(frozen=True, slots=True)
class Along:
    """The inputs that have a tangent."""

    names: tuple[str, ...]


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose tangent is wrong."""
    if not subject.target.has_jvp:
        yield Skip(RULE, "it has no jvp of its own")
        return
    if subject.target.intent.has_surrogate:
        yield Skip(RULE, "its gradient is declared to be a surrogate")
        return
    for draw in range(DRAWS):
        tangents = tangents_of(subject.small, draw)
        try:
            found = next(
                (f for only in _groups(tangents) if (f := _judged(subject, only, draw))), None
            )
        except Exception as error:
            yield Skip.refused(RULE, "forward mode refuses it", told(error))
            return
        if found is not None:
            if _is_homogeneous(subject):  # else it is not linear, which another rule says
                yield found
            return


def _is_homogeneous(subject: Subject) -> bool:
    """Whether a tangent 64 times as large gives one 64 times as large."""
    example = subject.small
    one, large = (pushed(subject, example, tangents_of(example, 0, s)) for s in (1.0, 64.0))
    return all(
        is_close(b, None if a is None else 64 * a, 1000) for a, b in zip(one, large, strict=True)
    )


def _groups(tangents: dict[int, Tensor]) -> Iterator[dict[int, Tensor]]:
    """Each input's tangent alone, then all together."""
    for i, tangent in tangents.items():
        yield {i: tangent}
    if len(tangents) > 1:
        yield tangents


def _judged(subject: Subject, tangents: dict[int, Tensor], draw: int) -> Finding | None:
    called = subject.run(subject.small)
    cotangents = subject.cotangents(called, draw)
    got, size = inner(cotangents, pushed(subject, subject.small, tangents))
    estimate = subject.reference.slope(subject.small, cotangents, tangents)
    eps = subject.reference.noise_of(subject.small)
    slack = max(1e-6, 1e4 * eps) * (size + abs(estimate.value)) + 1e-9
    if not estimate.is_known or estimate.agrees(got, slack):
        return None
    left, right = subject.reference.sides(subject.small, cotangents, tangents)
    if not (left.is_known and right.is_known and left.agrees(right.value, 4 * right.error + slack)):
        return None
    names = subject.names_at(tangents)
    return subject.finding(
        RULE,
        example=subject.small,
        at=f"jvp along {names}, summed with random weights over the outputs",
        expected=Number(estimate.value, ", the slope of forward"),
        got=Number(got),
        detail=Along(tuple(subject.names[i] for i in tangents)),
        place=subject.target.place("jvp"),
        fix=f"return the derivative of forward along the tangent of {names}",
    )


def _against_slope(scene: Scene) -> str:
    """The tangent against the slope of forward."""
    name = scene.code_of(Input(scene.about.detail.names[0]))
    if scene.example.args[scene.names.index(name)].dtype != torch.float64:
        return ""
    tangent = drawn_tangent(name)
    return text_of(
        push_lines(scene, name),
        f"got = push({tangent})",
        f"step = 1e-6 * {tangent}",
        "",
        f"def call({name}):",
        *indented([*scene.done(), f"return {scene.output(0)}"]),
        "",
        f"slope = (call({name} + step) - call({name} - step)) / 2e-6",
        'assert torch.allclose(got, slope, 1e-4, 1e-5), f"{got=}, {slope=}"',
    )


REPROS = (_against_slope,)
