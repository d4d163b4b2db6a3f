"""A finding and its repro report the same entry and the same numbers.

A repro is made of short numbers, which are not those that a rule drew: so what it gives, once it
has failed, is what the finding reports.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Gradient, Number, at_worst, numbers, sheet_of
from pullback.check.findings.finding import Finding
from pullback.check.repro.context import ReproContext, Retell
from pullback.judge.mismatch import Mismatch, index_of


def of_mismatch(shown: Mismatch) -> Retell:
    """The finding, with the gradient that its repro shows to be wrong."""

    def retell(finding: Finding, made: dict[str, Any]) -> Finding:
        at, expected, got = finding.about.at, finding.about.expected, finding.about.got
        if at is None or not isinstance(at.thing, Gradient):
            return finding
        if not isinstance(expected, Number) or not isinstance(got, Number):
            return finding
        if expected.rest or got.rest:
            return finding
        found = finding.retold(at_worst(shown).then(at.rest), *numbers(shown.expected, shown.got))
        return replace(found, about=replace(found.about, sheet=sheet_of(shown)))

    return retell


def of_change(what: str) -> Retell:
    """The finding, with what differs from the repro's `before`; `what` is its expression."""

    def retell(finding: Finding, made: dict[str, Any]) -> Finding:
        before = made.get("before")
        return _with_numbers(finding, before, eval(what, made)) if before is not None else finding

    return retell


def of_slope(finding: Finding, made: dict[str, Any]) -> Finding:
    """The finding, with the numbers that its repro has for the entry that the finding names."""
    about = finding.about
    expected, got = _new(about.expected, made.get("slope")), _new(about.got, made.get("got"))
    return replace(
        finding,
        expected=finding.expected if expected is None else str(expected),
        got=finding.got if got is None else str(got),
        about=replace(about, expected=expected or about.expected, got=got or about.got),
    )


def _new(fact: object, value: Any) -> Number | None:
    """A fact with another number; None where it has none, or the repro has none for it."""
    if not isinstance(fact, Number) or value is None or isinstance(value, complex):
        return None
    return Number(float(value), fact.rest)


def of_gradients(context: ReproContext, *, with_outputs: bool = False) -> Retell:
    """The finding, with the worst entry of what its repro calls `got` and `expected`.

    With `with_outputs`, the outputs go by these names too.
    """

    def retell(finding: Finding, made: dict[str, Any]) -> Finding:
        got, expected = made.get("got"), made.get("expected")
        if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
            return finding
        if got.shape != expected.shape or not got.numel():
            return finding
        return (
            _with_numbers(finding, expected, got)
            if _is_about(context, got, with_outputs)
            else finding
        )

    return retell


def _with_numbers(finding: Finding, expected: Tensor, got: Tensor) -> Finding:
    """The finding with the numbers at the worst entry of `got`."""
    at, old, new = finding.about.at, finding.about.expected, finding.about.got
    if at is None or not isinstance(old, Number) or not isinstance(new, Number):
        return finding
    if old.value is None or new.value is None:
        return finding
    apart = torch.nan_to_num((got.detach() - expected.detach()).abs().double(), nan=torch.inf)
    if not bool((apart > 0).any()):
        return finding
    flat = int(apart.flatten().argmax())
    index = None if at.index is None else index_of(flat, got.shape) or None
    want, have = numbers(*(t.detach().flatten()[flat].item() for t in (expected, got)))
    place = replace(at, index=index, wrong=0, total=0)
    return finding.retold(place, want.then(old.rest), have.then(new.rest))


def _is_about(context: ReproContext, got: Tensor, with_outputs: bool) -> bool:
    """Whether what the repro calls `got` can only be the gradient that the finding names."""
    if not context.name:
        return False
    shapes = [context.example.args[i].shape for i in context.needed]
    own = context.example.args[context.position].shape
    if got.shape != own or shapes.count(own) != 1:
        return False
    if own not in [output.shape for output in context.run.outputs]:
        return True
    return not got.requires_grad and not with_outputs
