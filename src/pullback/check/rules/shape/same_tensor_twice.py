"""One tensor in two slots must get the sum of both gradients.

What it checks
    For each two inputs of one shape: the gradient of one tensor in both slots is the sum of those
    of two equal copies, and nothing is raised that the copies do not raise.

Why it matters
    `f(x, x)` is everyday: tied weights, self-attention, a square as a product. A backward that asks
    `a is b`, keys a cache by identity or writes into what it saved loses half (pytorch#181146).

Fails
    if a is b: return grad * b, None

Passes
    return grad * b, grad * a

Cannot see
    Tensors that overlap in memory without being the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.findings.explaining import Cause
from pullback.check.findings.facts import At, Both, Input
from pullback.check.inputs.arguments import doubled
from pullback.check.repro.context import COMPARED, ReproContext, text_of
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.judge.example import Example
from pullback.judge.run import Raised
from pullback.judge.tolerances import is_close

RULE = Rule("S307", "same-tensor-twice", "shape", profile="quick")

FIX = "return the gradient of each slot as if the others held other tensors"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per pair of slots whose gradients do not add up."""
    if subject.fails_at_base or subject.target.intent.has_surrogate or subject.writes_inputs:
        return
    for i, j, same, apart in each(doubled(subject.small), subject):
        names = subject.names
        try:
            parts = subject.pull(apart)
            again = subject.pull(apart)
        except CallError:
            continue
        if not all(is_close(parts[name], again[name]) for name in parts):
            continue
        want = _sum(parts.get(names[i]), parts.get(names[j]))
        at = At(Both(names[i], names[j]))
        try:
            got = subject.pull(same).get(names[i])
        except ForwardRefusedError:
            continue
        except BackwardFailedError as failure:
            yield _raised(subject, same, at, failure.raised)
            continue
        if is_close(got, want):
            continue
        yield subject.finding(
            RULE,
            example=same,
            **gap_of(at.thing, got, want).facts(expected=", the sum over both slots"),
            fix=FIX,
        )


def _raised(subject: Subject, example: Example, at: At, raised: Raised) -> Finding:
    return subject.finding(
        RULE,
        example=example,
        at=at,
        expected="the sum over both slots",
        got=raised,
        fix=FIX,
        severity=Severity.FRAGILE,
    )


def _sum(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    return two if one is None else one if two is None else one + two


def _summed(context: ReproContext) -> str:
    """The gradient of a tensor in two places against the sum over two copies of it."""
    thing = context.about.thing
    if not isinstance(thing, Both):
        return ""
    one = context.code_of(Input(thing.one))
    apart = context.arguments
    places = [i for i, arg in enumerate(apart) if arg == one]
    if len(places) != 2:
        return ""
    apart[places[1]] = "copy"
    out = context.outputs()
    return text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"(got,) = torch.autograd.grad({out}, [{one}], g, materialize_grads=True)",
        f"copy = {one}.detach().clone().requires_grad_()",
        context.done(arguments=apart),
        f"parts = torch.autograd.grad({out}, [{one}, copy], g, materialize_grads=True)",
        "expected = parts[0] + parts[1]",
        COMPARED.strip(),
    )


REPROS = (_summed,)

EXPLAINS = (
    Cause(
        frozenset({"subclass-input"}),
        "wrappers have no memory of their own, so that any two of them look like one tensor",
        rank=250,
    ),
)
