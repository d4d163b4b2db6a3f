"""The gradient of a gradient must be right, or be refused aloud.

What it checks
    `<backward(g), w>` is differentiated through backward, with respect to the inputs and to the
    cotangent, and compared with forward differentiated twice and with differences of backward. It
    is done with all inputs, with each alone, and with cotangents that have a history and that have
    none.

Why it matters
    A tensor that forward computed and saved is a constant to the second backward: its term is
    dropped in silence (pytorch#76185, #104040). Gradient penalties, forces of learned potentials
    and meta-learning then train on the wrong numbers.

Fails
    e = x.exp(); ctx.save_for_backward(e)      # an intermediate

Passes
    ctx.save_for_backward(x)                   # and x.exp() again in backward

Cannot see
    Derivatives of third order, and entries at which the gradient has a kink.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.facts import At
from pullback.check.intermediates import keeps_intermediate
from pullback.check.repro.orders import second_slope
from pullback.check.second_order import second_order
from pullback.check.subject import Finding, Rule, Skip, Subject

RULE = Rule(
    code="H001",
    name="wrong-double-backward",
    group="second",
    profile="quick",
    intent=("once_differentiable", "surrogate"),
)

SAVED = (
    "a tensor that forward computed on the way is saved: it is a constant to the second backward"
)
RECOMPUTE = "compute it in backward from saved inputs or outputs, or add @once_differentiable"
DIFFERENTIATE = (
    "let each step of backward have its own right derivative, or add @once_differentiable"
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per variable whose second derivative has wrong numbers."""
    outcome = second_order(subject)
    if outcome.skip and not outcome.defects:
        yield outcome.skipped(RULE)
    for defect in outcome.defects:
        if defect.is_cut:
            continue
        subject.blamed.add((RULE.group, defect.name))
        yield subject.finding(
            RULE,
            example=defect.example,
            at=At(defect.thing, defect.index),
            expected=defect.expected,
            got=defect.got,
            why=SAVED if keeps_intermediate(subject) else "",
            fix=RECOMPUTE if keeps_intermediate(subject) else DIFFERENTIATE,
        )


REPROS = (second_slope,)
