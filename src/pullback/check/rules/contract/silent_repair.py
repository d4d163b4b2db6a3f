"""A gradient should come in the shape and dtype of its input.

What it checks
    What backward returns, before the engine looks at it: the shape and the dtype of each gradient.
    A narrower dtype than that of the input, and of the outputs, is wrong: the digits are gone.

Why it matters
    The engine sums a gradient that is too large and casts one of another dtype, in silence: memory
    and time are wasted in every step, and under `torch.compile` or a stricter engine it raises.

Fails
    return g, g                # of x + bias: the gradient of bias has one row per sample

Passes
    return g, g.sum(0)

Cannot see
    Functions whose backward is not written in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from pullback.check.findings.explaining import Cause
from pullback.check.findings.facts import At, Gradient
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject
from pullback.check.watching.spy import spy_on
from pullback.judge.example import can_differ

RULE = Rule("K802", "silent-repair", "contract", Severity.WASTEFUL, "quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that the engine repairs."""
    seen: set[str] = set()
    for example in (subject.base, subject.given):
        spy = spy_on(subject.target)
        if spy is None:
            return
        try:
            called = subject.run_other(spy.target.call, example)
            called.pull(subject.cotangents(called))
        except CallError:
            continue
        for call in spy.calls:
            for name, arg, gradient in zip(
                subject.names, called.passed, call.returned, strict=False
            ):
                if not isinstance(gradient, Tensor) or not isinstance(arg, Tensor):
                    continue
                repaired = _repaired(gradient, arg)
                if repaired and name not in seen and arg.requires_grad:
                    seen.add(name)
                    loses = _loses_digits(gradient, arg, called.outputs)
                    yield subject.finding(
                        RULE,
                        example=example,
                        severity=Severity.WRONG if loses else Severity.WASTEFUL,
                        at=At(Gradient(name), rest=", as backward returns it"),
                        expected=repaired.must,
                        got=repaired.got,
                        detail=repaired.how,
                        fix=repaired.fix,
                    )


class Repair(Enum):
    """What the engine does to a gradient that does not fit its input."""

    SUM = "it sums"
    CAST = "it casts"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What the engine has to repair: what it must be, what it is, and how to do it oneself."""

    how: Repair
    must: str
    got: str
    fix: str


def _repaired(gradient: Tensor, arg: Tensor) -> Repaired | None:
    if gradient.numel() != arg.numel():
        return Repaired(
            Repair.SUM,
            f"shape {list(arg.shape)}",
            f"shape {list(gradient.shape)}, which the engine sums",
            "sum over the broadcast dimensions in backward: g.sum_to_size(x.shape)",
        )
    if gradient.dtype != arg.dtype and gradient.is_complex() == arg.is_complex():
        return Repaired(
            Repair.CAST,
            f"{arg.dtype}",
            f"{gradient.dtype}, which the engine casts",
            "compute in the wider dtype if need be, and return .to(x.dtype)",
        )
    return None


def _loses_digits(gradient: Tensor, arg: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Whether a gradient is coarser than its input, and than every output."""
    if not can_differ(gradient):
        return False
    others = [torch.finfo(t.dtype).eps for t in (arg, *outputs) if can_differ(t)]
    return torch.finfo(gradient.dtype).eps > max(others)


def _returned(context: ReproContext) -> str:
    """What backward itself returns, before the engine repairs it."""
    if not context.name or not context.subject.target.is_function or not context.used:
        return ""
    name = context.names[context.position]
    head = context.call.removesuffix(".apply")
    cotangents = "g" if context.is_one else "*g"
    return text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"returned = {head}.backward({context.output(context.used[0])}.grad_fn, {cotangents})",
        "returned = returned if isinstance(returned, tuple) else (returned,)",
        f"got = returned[{context.position}]",
        f"assert (got.dtype, got.shape) == ({name}.dtype, {name}.shape), "
        'f"{got.dtype}, {list(got.shape)}"',
    )


REPROS = (_returned,)

DIGITS = frozenset({"needless-rounding", "rounded-input", "coarse-constant", "default-dtype"})

EXPLAINS = (
    Cause(
        DIGITS | {"hessian-asymmetry"},
        "the digits are those of the dtype that is returned",
        rank=210,
        holds=lambda finding: finding.about.detail is Repair.CAST,
        weighs=True,
    ),
    Cause(frozenset({"hessian-asymmetry"}), "the digits are lost there", rank=230),
)
