"""What `jvp` gives: the right derivative, linear in the tangents, for any of the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.facts import Input, Number
from pullback.check.findings.registered import Registered
from pullback.check.repro.context import ReproContext, indented, text_of
from pullback.check.repro.orders import drawn_tangent, push_lines
from pullback.check.subject.conditions import HAS_JVP, needs
from pullback.check.subject.forward_mode import paired_sum, pushed, tangents_of
from pullback.check.subject.gap import gap_of
from pullback.check.subject.refusal import is_meant
from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject, describe
from pullback.judge.tolerances import is_close

WRONG_JVP = Rule("F001", "wrong-jvp", "forward", profile="quick")
NONHOMOGENEOUS_JVP = Rule("F002", "nonhomogeneous-jvp", "forward", profile="quick")
MISSING_TANGENT = Rule("F003", "missing-tangent", "forward", Severity.FRAGILE, "quick")

DRAWS = 2
SCALES = (-1.0, 64.0, 1 / 64)


@dataclass(frozen=True, slots=True)
class Along:
    """The inputs that have a tangent."""

    names: tuple[str, ...]


@needs(WRONG_JVP, HAS_JVP)
def wrong_jvp(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose tangent is wrong."""
    if subject.target.intent.has_surrogate:
        yield Skip(WRONG_JVP, "its gradient is declared to be a surrogate")
        return
    for draw in range(DRAWS):
        tangents = tangents_of(subject.small, draw)
        try:
            found = next(
                (f for only in _groups(tangents) if (f := _judged(subject, only, draw))), None
            )
        except Exception as error:
            yield _refused(subject, tangents, error)
            return
        if found is not None:
            if _is_homogeneous(subject):  # else it is not linear, which another rule says
                yield found
            return


def _refused(subject: Subject, tangents: dict[int, Tensor], error: Exception) -> Finding | Skip:
    """What is said of a `jvp` that is there, and raises: a finding, unless that is meant."""
    if is_meant(error):
        return Skip.refused(WRONG_JVP, "forward mode refuses it", describe(error))
    return subject.finding(
        WRONG_JVP,
        example=subject.small,
        severity=Severity.FRAGILE,
        at=f"jvp along {subject.names_at(tangents)}",
        expected="the derivative along it, since the class has a `jvp`",
        got=describe(error),
        place=subject.target.place("jvp"),
        fix="serve forward mode, or leave `jvp` out",
    )


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
    got, size = paired_sum(cotangents, pushed(subject, subject.small, tangents))
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
        WRONG_JVP,
        example=subject.small,
        at=f"jvp along {names}, summed with random weights over the outputs",
        expected=Number(estimate.value, ", the slope of forward"),
        got=Number(got),
        detail=Along(tuple(subject.names[i] for i in tangents)),
        place=subject.target.place("jvp"),
        fix=f"return the derivative of forward along the tangent of {names}",
    )


def _against_slope(context: ReproContext) -> str:
    """The tangent against the slope of forward."""
    name = context.code_of(Input(context.about.detail.names[0]))
    if context.example.args[context.names.index(name)].dtype != torch.float64:
        return ""
    tangent = drawn_tangent(name)
    return text_of(
        push_lines(context, name),
        f"got = push({tangent})",
        f"step = 1e-6 * {tangent}",
        "",
        f"def call({name}):",
        *indented([*context.done(), f"return {context.output(0)}"]),
        "",
        f"slope = (call({name} + step) - call({name} - step)) / 2e-6",
        'assert torch.allclose(got, slope, 1e-4, 1e-5), f"{got=}, {slope=}"',
    )


@dataclass(frozen=True, slots=True)
class Combination:
    """A tangent times a factor, or the sum of two where there is none."""

    factor: float | None = None

    def __str__(self) -> str:
        if self.factor is None:
            return "the sum of two tangents"
        return f"a tangent {self.factor:g} times as large"


@needs(NONHOMOGENEOUS_JVP, HAS_JVP)
def nonhomogeneous_jvp(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first output whose tangent is not linear."""
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
        yield Skip.refused(NONHOMOGENEOUS_JVP, "forward mode refuses it", describe(error))
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
        return subject.finding(
            NONHOMOGENEOUS_JVP,
            example=subject.small,
            **gap_of(f"tangent of output {i}", have, right).facts(f", for {of}"),
            detail=of,
            place=subject.target.place("jvp"),
            fix="return an expression that is linear in the tangents",
        )
    return None


def _scaled(context: ReproContext) -> str:
    """The tangent for a scaled direction against the scaled tangent."""
    if context.about.detail.factor is None or not context.leaves:
        return ""
    factor, tangent = f"{context.about.detail.factor:g}", drawn_tangent(context.leaves[0])
    return text_of(
        push_lines(context, context.leaves[0]),
        f"got, expected = push({factor} * {tangent}), {factor} * push({tangent})",
        'assert torch.allclose(got, expected, 1e-4, 1e-6), f"{got=}, {expected=}"',
    )


def missing_tangent(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, for the first input whose tangent alone is not served."""
    if not subject.target.has_jvp or subject.writes_inputs:
        return
    example = subject.small
    tangents = tangents_of(example, 0)
    if len(tangents) < 2:
        return
    try:
        pushed(subject, example, tangents)
    except Exception as error:
        yield Skip.refused(MISSING_TANGENT, "forward mode refuses it", describe(error))
        return
    for i, tangent in tangents.items():
        try:
            pushed(subject, example, {i: tangent})
        except NotImplementedError as error:
            yield Skip.refused(MISSING_TANGENT, "it refuses by intent", describe(error))
            return
        except Exception as error:
            name = subject.names[i]
            others = subject.names_at(k for k in tangents if k != i)
            yield subject.finding(
                MISSING_TANGENT,
                example=example,
                at=f"jvp along `{name}` alone, without a tangent of {others}",
                expected="the derivative along it",
                got=describe(error),
                place=subject.target.place("jvp"),
                fix="take a tangent that is None for zero, as backward does with cotangents",
            )
            return


RULES = (
    Registered(
        WRONG_JVP,
        wrong_jvp,
        repros=(_against_slope,),
        page="""
`jvp` must be the derivative that `backward` is the transpose of.

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
""",
    ),
    Registered(
        NONHOMOGENEOUS_JVP,
        nonhomogeneous_jvp,
        repros=(_scaled,),
        page="""
`jvp` must be linear in the tangents it receives.

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
""",
    ),
    Registered(
        MISSING_TANGENT,
        missing_tangent,
        page="""
`jvp` must serve inputs without a tangent.

What it checks
    `jvp` runs with the tangent of each input alone, the others having none: it gives a tangent, and
    raises nothing, where it serves all tangents at once.

Why it matters
    `torch.func.jvp` over one argument is the usual call. With `set_materialize_grads(False)` the
    other tangents are None, and `tangent_a + 2 * tangent_b` raises.

Fails
    return tangent_a + 2 * tangent_b               # after ctx.set_materialize_grads(False)

Passes
    parts = [t for t in (tangent_a, double(tangent_b)) if t is not None]

Cannot see
    Functions without a `jvp` of their own, which PyTorch refuses in forward mode.
""",
    ),
)
