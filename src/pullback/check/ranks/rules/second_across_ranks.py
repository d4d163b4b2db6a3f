"""Second derivatives through communication must be right, or be refused aloud.

What it checks
    Under placements that hold: the derivative of the gradients by the cotangents, beside
    differences of the joint forward; and by the inputs, beside differences of the gradients.

Why it matters
    `dist.all_reduce` in backward is no operation of autograd: with `create_graph=True` its result
    still requires grad, and what the other ranks add to it is lost without a word.

Fails
    grad = grad.clone(); dist.all_reduce(grad); return grad

Passes
    return AllReduce.apply(grad)       # or @once_differentiable above backward

Cannot see
    Third derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Cotangent, Input, Second
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.blocks import block_of
from pullback.check.ranks.commands import Reply, Values
from pullback.check.ranks.consistency import consistent, held, replicated_of, shared_of
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import Joint, JointPoint
from pullback.check.ranks.placements import Assignment
from pullback.check.ranks.slope import inner
from pullback.judge.run import Raised, cotangent_of

RULE = Rule("R131", "second-across-ranks", "ranks")
DROPPED = "0: autograd does not follow backward there, and drops it from a sum without a word"
STEP = 1e-3
NEAR = 1e-4  # of a second derivative; a missing sum over ranks is off by far more
Seconds = list[dict[int, Tensor]]


@dataclass(frozen=True, slots=True)
class WrongSecond:
    """A second derivative that is wrong, as it must be and as it is."""

    at: At
    want: float
    have: float


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """The second derivatives, under each assignment that holds, until one is right."""
    if joint.target.is_once_differentiable:
        yield Skip(RULE, "second derivatives are refused")
        return
    if joint.meant != joint.positions:
        yield Skip(RULE, "gradients are declared to be surrogates")
        return
    found = consistent(joint)
    if not found:
        yield Skip(RULE, "the gradients are wrong already")
        return
    if not joint.is_exact:
        yield Skip(RULE, "forward does not compute in float64")
        return
    wrong: WrongSecond | None = None
    for assignment in found:
        for is_one in (True, False):
            try:
                one = _wrong(joint, assignment, is_one=is_one)
            except Failed as refusal:
                yield Skip(RULE, f"second derivatives are refused: {refusal}")
                return
            if one is None:
                return
            wrong = wrong or one
    assert wrong is not None
    yield joint.finding(
        RULE,
        at=wrong.at,
        expected=f"{wrong.want:.6g}, by differences, under {found[0]}",
        got=f"{wrong.have:.6g}, and no error" if wrong.have else DROPPED,
        fix="compute backward with what autograd follows (a Function that communicates, where "
        "there is a collective), or decorate it with `@once_differentiable`",
    )


def _wrong(joint: Joint, assignment: Assignment, *, is_one: bool) -> WrongSecond | None:
    """Where second derivatives are wrong; `is_one`: gradients of one value have one cotangent."""
    key = replicated_of(joint, assignment)
    cotangents, _ = joint.pulled(key, 0, shared_of(joint, assignment))
    point = joint.point(key)
    seconds = _seconds(joint, key, is_one=is_one)
    pulled = joint.pull(point, cotangents, seconds=seconds)
    told = [p.seconds or {} for p in pulled]
    is_followed = any(t is not None for one in told for part in one.values() for t in part.values())
    if not is_followed and not joint.target.is_function:
        raise Failed(_refusals(joint))  # autograd itself refuses; a Function may stand in a program
    moves = _moves(joint, seconds, key, is_one=is_one)
    by_cotangent = [t["cotangents"] for t in told]
    wrong = _wrong_cotangent(joint, assignment, point, moves, by_cotangent)
    if wrong is not None:
        return wrong
    inputs = [t["inputs"] for t in told]
    return _wrong_input(joint, key, point, cotangents, seconds, inputs, is_one=is_one)


def _refusals(joint: Joint) -> list[Reply]:
    text = "element 0 of tensors does not require grad"
    return [Reply(None, Raised("RuntimeError", text), "second")] * joint.size


def _seconds(joint: Joint, key: frozenset[int], *, is_one: bool) -> Seconds:
    """The cotangents of the gradients."""
    found: Seconds = []
    for rank in range(joint.size):
        own: dict[int, Tensor] = {}
        for position, value in joint.point(key)[rank].items():
            same = is_one and position in key
            source = block_of(joint.held_by(position), rank)[0] if same else rank
            drawn = cotangent_of(value, 501 + 17 * source + position)
            assert drawn is not None
            own[position] = drawn
        found.append(own)
    return found


def _moves(joint: Joint, seconds: Seconds, key: frozenset[int], *, is_one: bool) -> Seconds:
    """How the inputs move: each value along what its gradient is multiplied with."""
    found: Seconds = []
    for rank in range(joint.size):
        own: dict[int, Tensor] = {}
        for position, value in seconds[rank].items():
            own[position] = value
            if position in key and not is_one:
                block = block_of(joint.held_by(position), rank)
                own[position] = torch.stack([seconds[r][position] for r in block]).sum(0)
        found.append(own)
    return found


def _moved(point: JointPoint, moves: Seconds, step: float) -> JointPoint:
    return tuple(
        {p: v + step * moves[rank][p] if p in moves[rank] else v for p, v in values.items()}
        for rank, values in enumerate(point)
    )


def _slope(values: Sequence[Tensor]) -> Tensor:
    """The derivative at 0 from values at STEP, -STEP, STEP/2 and -STEP/2."""
    coarse, fine = (values[0] - values[1]) / (2 * STEP), (values[2] - values[3]) / STEP
    return (4 * fine - coarse) / 3


STEPS = (STEP, -STEP, STEP / 2, -STEP / 2)


def _wrong_cotangent(
    joint: Joint,
    assignment: Assignment,
    point: JointPoint,
    moves: Seconds,
    got: Sequence[Mapping[int, Tensor | None]],
) -> WrongSecond | None:
    """The derivative by the cotangent of the first output where it is wrong."""
    values = [joint.forward(_moved(point, moves, step)) for step in STEPS]
    for number, placed in enumerate(assignment.outputs):
        for block in held(joint, placed) if joint.live[number] else ():
            want = [_slope([_there(v[r], number) for v in values]) for r in block]
            want = [
                torch.zeros_like(w) if joint.is_unset(r, number) else w
                for r, w in zip(block, want, strict=True)
            ]
            have = [_or_zero(got[r].get(number), w) for r, w in zip(block, want, strict=True)]
            is_right = all(_is_near(h, w) for h, w in zip(have, want, strict=True))
            if placed.has_one_cotangent:
                is_right |= _is_near(torch.stack(have).sum(0), want[0])
            if not is_right:
                far = [int((h - w).abs().argmax()) for h, w in zip(have, want, strict=True)]
                numbers = [
                    (float(w.flatten()[i].real), float(h.flatten()[i].real))
                    for w, h, i in zip(want, have, far, strict=True)
                ]
                most = max(numbers, key=lambda pair: abs(pair[0] - pair[1]))
                return WrongSecond(At(Second(Cotangent(number), joint.outputs == 1)), *most)
    return None


def _wrong_input(
    joint: Joint,
    key: frozenset[int],
    point: JointPoint,
    cotangents: Sequence[Values],
    seconds: Seconds,
    got: Sequence[Mapping[int, Tensor | None]],
    *,
    is_one: bool,
) -> WrongSecond | None:
    """The derivative by the inputs, along one direction of all of them, where it is wrong."""
    along = _seconds(joint, key, is_one=True)
    sums = [_sum(joint, _moved(point, along, s), cotangents, seconds, key, is_one) for s in STEPS]
    want = float(_slope(sums))
    total = 0.0
    lead = 0.0
    for rank in range(joint.size):
        for position, direction in along[rank].items():
            gradient = got[rank].get(position)
            part = 0.0 if gradient is None else float(inner(gradient, direction))
            total += part
            lead += part if position not in key or _leads(joint, rank, position) else 0.0
    scale = max(abs(want), 1.0)
    if any(abs(found - want) <= NEAR * scale for found in (total, lead)):
        return None
    return WrongSecond(At(Second(Input(joint.names[joint.positions[0]]))), want, total)


def _sum(
    joint: Joint,
    point: JointPoint,
    cotangents: Sequence[Values],
    seconds: Seconds,
    key: frozenset[int],
    is_one: bool,
) -> Tensor:
    """`<gradients, seconds>`: once for each value."""
    pulled = joint.pull(point, cotangents)
    total = torch.zeros((), dtype=torch.float64)
    for rank in range(joint.size):
        for position, second in seconds[rank].items():
            gradient = pulled[rank].gradients.get(position)
            is_again = position in key and is_one and not _leads(joint, rank, position)
            if gradient is not None and not is_again:
                total = total + inner(gradient, second)
    return total


def _leads(joint: Joint, rank: int, position: int) -> bool:
    """Whether a rank is the first of those that hold one value of an input."""
    return rank == block_of(joint.held_by(position), rank)[0]


def _there(values: Values, number: int) -> Tensor:
    value = values[number]
    assert value is not None
    return value


def _or_zero(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value


def _is_near(have: Tensor, want: Tensor) -> bool:
    if have.shape != want.shape:
        return False
    scale = max(float(want.abs().max()), 1.0) if want.numel() else 1.0
    return not want.numel() or float((have - want).abs().max()) <= NEAR * scale
