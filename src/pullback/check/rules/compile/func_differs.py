"""`torch.func` must give the gradients that autograd gives.

What it checks
    `torch.func.vjp` of the function, with the cotangents of the ordinary call, gives the same
    outputs and gradients.

Why it matters
    `torch.func` runs forward and `setup_context` apart, on wrapped tensors: what is passed between
    them by another way than the arguments is another tensor there, or another call's.

Fails
    MyFunction.slope = ...         # in forward, saved by setup_context

Passes
    ctx.save_for_backward(*inputs)

Cannot see
    Functions without `setup_context`, which `torch.func` refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.subject.conditions import KEEPS_INPUTS, RUNS, needs
from pullback.check.subject.elsewhere import Results, difference, positions_of, results_of
from pullback.check.subject.subject import Finding, Rule, Skip, Subject, describe
from pullback.function.isolation import seeded
from pullback.judge.example import tensors_in

RULE = Rule("P002", "func-differs", "compile", profile="quick")


@needs(RULE, RUNS, KEEPS_INPUTS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that differs."""
    if not (subject.target.has_setup_context or subject.target.is_ours):
        yield Skip(RULE, "torch.func takes no Function without setup_context")
        return
    if subject.target.intent.nondeterministic:
        yield Skip(RULE, "declared to be nondeterministic")
        return
    example = subject.small
    usual = results_of(subject, example)
    cotangents = subject.cotangents(subject.run(example))
    try:
        got = _by_func(subject, cotangents)
    except Exception as error:
        yield Skip.refused(RULE, "torch.func refuses it", describe(error))
        return
    apart = difference(got, usual)
    if apart is not None:
        yield subject.finding(
            RULE,
            example=example,
            **apart.facts(", under torch.func.vjp", expected=", as by autograd"),
            fix="let setup_context save its own arguments only",
        )


def _by_func(subject: Subject, cotangents: tuple[Tensor | None, ...]) -> Results:
    """Outputs and gradients by `torch.func.vjp`."""
    example = subject.small
    positions = positions_of(example)
    args = list(example.fresh(needs=frozenset()))

    def function(*values: Any) -> Any:
        full = list(args)
        for position, value in zip(positions, values, strict=True):
            full[position] = value
        return tuple(tensors_in(subject.target.call(*full)))

    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        found: Any = torch.func.vjp(function, *(args[i] for i in positions))
        outputs, pull = found
        given = tuple(
            torch.zeros_like(output) if cotangent is None else cotangent
            for output, cotangent in zip(outputs, cotangents, strict=True)
        )
        grads = pull(given)
    names = [subject.names[i] for i in positions]
    return Results(tuple(o.detach() for o in outputs), dict(zip(names, grads, strict=True)))
