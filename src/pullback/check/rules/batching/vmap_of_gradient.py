"""`vmap` of the gradient must give what a loop over the samples gives.

What it checks
    `torch.vmap` of `torch.func.grad`, with every differentiable input batched in front: per-sample
    gradients are those of a loop. A backward that raises is fragile where PyTorch can do the same
    with forward as plain PyTorch.

Why it matters
    A class that has a `vmap`, or sets `generate_vmap_rule`, promises batching, and per-sample
    gradients are its usual purpose. Backward is then run on batched tensors, where `.item()`,
    branches on values and NumPy raise.

Fails
    largest = x.abs().max().item()                 # in backward

Passes
    largest = x.abs().max()

Cannot see
    Functions in the style with ctx in forward, which `torch.func` refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.draws import draws
from pullback.check.facts import At, Gradient, Number, Words
from pullback.check.inputs.values import resampled
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject, told, worst_of
from pullback.function.isolation import seeded
from pullback.judge.example import tensors_in
from pullback.judge.run import Raised, cotangent_of
from pullback.judge.tolerances import is_close

RULE = Rule(code="N002", name="vmap-of-gradient", group="batching", profile="quick")

BATCH = 3


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    target = subject.target
    if not target.has_vmap or not target.has_setup_context or subject.writes_inputs:
        return
    if subject.fails_at_base or draws(subject) or not subject.small.needs:
        return
    samples = _samples(subject)
    try:
        wanted = _looped(target.call, subject, samples)
    except Exception as error:
        yield Skip.refused(RULE, "the gradient of one sample is refused", told(error))
        return
    try:
        got = _batched(target.call, subject, samples)
    except Exception as error:
        try:
            _batched(subject.reference.program, subject, samples)
        except Exception:
            yield Skip.refused(RULE, "PyTorch cannot batch this gradient either", told(error))
            return
        loop = Words("those of a loop")
        yield _finding(subject, At("the gradients"), loop, told(error), Severity.FRAGILE)
        return
    for i, one, two in zip(sorted(subject.small.needs), got, wanted, strict=True):
        if not is_close(one, two, 1000) and one.shape == two.shape:
            index, have, want = worst_of(one, two)
            at = At(Gradient(subject.names[i]), index)
            yield _finding(subject, at, want.then(", as by a loop"), have, Severity.WRONG)
            return


def _finding(
    subject: Subject, at: At, expected: Number | Words, got: Number | Raised, weight: Severity
) -> Finding:
    return subject.finding(
        RULE,
        example=subject.small,
        severity=weight,
        at=at.then(f", by vmap over torch.func.grad with {BATCH} samples"),
        expected=expected,
        got=got,
        fix="write backward with tensor operators only: no .item(), no branch on values, no NumPy",
    )


def _samples(subject: Subject) -> list[list[Any]]:
    """The arguments of each sample; only those that require grad differ."""
    found = []
    for number in range(BATCH):
        args = list(subject.small.fresh(needs=frozenset()))
        for i in subject.small.needs:
            if number:
                args[i] = resampled(args[i], tuple(args[i].shape), 70 * i + number)
        found.append(args)
    return found


def _gradient(call: Any, subject: Subject, args: list[Any]) -> Any:
    """`torch.func.grad` of a weighted sum of the outputs, by the arguments that require grad."""
    places = sorted(subject.small.needs)
    outputs = subject.run(subject.small).outputs
    weights = [cotangent_of(output, number) for number, output in enumerate(outputs)]

    def total(*values: Tensor) -> Tensor:
        full = list(args)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        parts = []
        for output, weight in zip(tensors_in(call(*full)), weights, strict=True):
            if weight is not None and output.is_floating_point():
                parts.append((output * weight).sum())
        return torch.stack(parts).sum()

    return torch.func.grad(total, argnums=tuple(range(len(places))))


def _looped(call: Any, subject: Subject, samples: list[list[Any]]) -> list[Tensor]:
    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        rows = [
            _gradient(call, subject, args)(*(args[i] for i in sorted(subject.small.needs)))
            for args in samples
        ]
    return [torch.stack(parts).detach() for parts in zip(*rows, strict=True)]


def _batched(call: Any, subject: Subject, samples: list[list[Any]]) -> list[Tensor]:
    places = sorted(subject.small.needs)
    stacked = [torch.stack([args[i] for args in samples]) for i in places]
    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        found = torch.vmap(_gradient(call, subject, samples[0]))(*stacked)
    return [grad.detach() for grad in found]
