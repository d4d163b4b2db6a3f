"""`jvp` must be linear in the tangents it receives.

What it checks
    For random tangents `v`: `jvp(s v)` is `s jvp(v)` for large, small and negative `s`, and `jvp(u
    + v)` is `jvp(u) + jvp(v)`.

Why it matters
    A derivative is a linear map. A tangent that is clipped, or that is a difference of two values
    of forward, agrees with it at the size that was tested, and nowhere else.

Fails
    return forward(x + tangent) - forward(x)

Passes
    return tangent * slope

Cannot see
    A `jvp` that is linear and is some other map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pullback.check.facts import At
from pullback.check.forward_mode import pushed, tangents_of
from pullback.check.repro.orders import drawn_tangent, push_lines
from pullback.check.repro.scene import Scene, text_of
from pullback.check.subject import Finding, Rule, Skip, Subject, told, worst_of
from pullback.judge.tolerances import is_close

RULE = Rule(code="F002", name="nonhomogeneous-jvp", group="forward", profile="quick")

SCALES = (-1.0, 64.0, 1 / 64)


@dataclass(frozen=True, slots=True)
class Combination:
    """A tangent times a factor, or the sum of two where there is none."""

    factor: float | None = None

    def __str__(self) -> str:
        if self.factor is None:
            return "the sum of two tangents"
        return f"a tangent {self.factor:g} times as large"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first output whose tangent is not linear."""
    if not subject.target.has_jvp:
        yield Skip(RULE, "it has no jvp of its own")
        return
    example = subject.small
    try:
        one = pushed(subject, example, tangents_of(example, 0))
        for scale in SCALES:
            got = pushed(subject, example, tangents_of(example, 0, scale))
            want = [None if t is None else scale * t for t in one]
            found = _compared(subject, got, want, Combination(scale))
            if found is not None:
                yield found
                return
        other = pushed(subject, example, tangents_of(example, 1))
        first, second = tangents_of(example, 0), tangents_of(example, 1)
        both = pushed(subject, example, {i: first[i] + second[i] for i in first})
    except Exception as error:
        yield Skip.refused(RULE, "forward mode refuses it", told(error))
        return
    want = [None if a is None or b is None else a + b for a, b in zip(one, other, strict=True)]
    found = _compared(subject, both, want, Combination())
    if found is not None:
        yield found


def _compared(
    subject: Subject, got: list[Tensor | None], want: list[Tensor | None], of: Combination
) -> Finding | None:
    for i, (have, right) in enumerate(zip(got, want, strict=True)):
        if have is None or right is None or have.shape != right.shape:
            continue
        if is_close(have, right, 1000):
            continue
        index, mine, expected = worst_of(have, right)
        return subject.finding(
            RULE,
            example=subject.small,
            at=At(f"tangent of output {i}", index, rest=f", for {of}"),
            detail=of,
            expected=expected,
            got=mine,
            place=subject.target.place("jvp"),
            fix="return an expression that is linear in the tangents",
        )
    return None


def _scaled(scene: Scene) -> str:
    """The tangent for a scaled direction against the scaled tangent."""
    if scene.about.detail.factor is None or not scene.leaves:
        return ""
    factor, tangent = f"{scene.about.detail.factor:g}", drawn_tangent(scene.leaves[0])
    return text_of(
        push_lines(scene, scene.leaves[0]),
        f"got, expected = push({factor} * {tangent}), {factor} * push({tangent})",
        'assert torch.allclose(got, expected, 1e-4, 1e-6), f"{got=}, {expected=}"',
    )


REPROS = (_scaled,)
