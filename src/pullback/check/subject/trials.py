"""Variants of an example tried once, whatever number of rules asks for them.

A trial is a variant that forward accepts, with the gradients that are wrong there or what backward
raised. Rules of one group share the trials; each reports its own kind.
"""

from __future__ import annotations

import time
from cmath import isfinite
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import at_worst
from pullback.check.findings.finding import Finding, Rule, Severity
from pullback.check.subject.behaved import is_behaved
from pullback.check.subject.own import own_argument
from pullback.check.subject.refusal import is_meant
from pullback.check.subject.subject import Subject
from pullback.judge.example import Example
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Raised, Run, copies_of
from pullback.judge.tolerances import largest_entry

ENOUGH = 3  # so many variants with something wrong, or slow ones, and a family is left
SLOW = 0.1  # seconds
REMOTE = 200  # times the example: a function may end before that


@dataclass(frozen=True, slots=True)
class TriedVariant:
    """A variant that forward accepted: what is wrong with the gradients, or why there are none.

    `used` names the outputs whose cotangents were given, None where all were.
    """

    example: Example
    mismatches: tuple[Mismatch, ...] = ()
    failure: Raised | None = None
    used: tuple[int, ...] | None = None

    @property
    def said(self) -> str:
        """What the exception says, empty where there was none."""
        return "" if self.failure is None else self.failure.text


# Trials, each with what repairs what is wrong in it.
Tried = Iterator[tuple[Iterable[TriedVariant], str]]


def trials(
    subject: Subject,
    family: str,
    variants: Iterable[Example],
    tried: Callable[[Example], TriedVariant | None] | None = None,
) -> list[TriedVariant]:
    """The trials of one family of variants, run now or remembered.

    `tried` gives the trial of a variant, in the place of `trial_of`; it may take its time.
    """
    if family not in subject.trials:
        subject.trials[family] = list(_run(subject, variants, tried))
    return subject.trials[family]


def _run(
    subject: Subject,
    variants: Iterable[Example],
    tried: Callable[[Example], TriedVariant | None] | None,
) -> Iterator[TriedVariant]:
    bad = slow = 0
    for example in variants:
        if subject.time_is_up or bad >= ENOUGH or (slow >= ENOUGH and tried is None):
            return
        start = time.process_time()
        example = subject.kept(example)
        trial = trial_of(subject, example) if tried is None else tried(example)
        slow += time.process_time() - start > SLOW
        if trial is not None:
            bad += bool(trial.mismatches or trial.failure)
            yield trial


def failed(subject: Subject) -> list[Example]:
    """One variant of each family that was tried and found wrong."""
    found: list[Example] = []
    for family in subject.trials.values():
        bad = (t for t in family if isinstance(t, TriedVariant) and t.mismatches)
        found += [trial.example for trial in islice(bad, 1)]
    return found


def trial_of(subject: Subject, example: Example) -> TriedVariant | None:
    """One variant tried; None where forward refuses it, or gives nothing that can be judged."""
    usual = usual_form(subject)  # first: the last call before a crash is the one that is reported
    try:
        called = subject.run(example)
    except ForwardRefusedError:
        return None
    if not called.live or not is_finite(called) or not has_form(subject, called, usual):
        return None
    cotangents = subject.cotangents(called)
    try:
        grads = called.pull(copies_of(cotangents))
    except BackwardFailedError as failure:
        if is_meant(failure.error):
            return None
        wanted = tuple(sorted(example.needs))
        if subject.reference.gradients(example, cotangents, wanted) is None:
            return None  # nor can PyTorch differentiate forward here
        return TriedVariant(example, failure=failure.raised)
    found = subject.mismatches(called, cotangents, grads, at_once=True)
    return TriedVariant(example, (*found, *_not_finite(subject, called, grads)))


def _not_finite(
    subject: Subject, called: Run, grads: dict[str, Tensor | None]
) -> Iterator[Mismatch]:
    """The gradients of surrogates that are not finite, where outputs are: nobody means that."""
    for name, grad in grads.items():
        if grad is None or not subject.target.intent.is_surrogate(name):
            continue
        bad = ~torch.isfinite(grad.detach())
        if bool(bad.any()):
            flat = int(bad.flatten().nonzero()[0, 0])
            index, place = index_of(flat, grad.shape), called.names.index(name)
            got = grad.detach().flatten()[flat].item()
            counts = int(bad.sum()), grad.numel()
            yield Mismatch(name, place, index, 0.0, got, *counts, grad, grad)


def is_finite(called: Run) -> bool:
    """Whether every output through which a gradient flows is finite."""
    return all(bool(torch.isfinite(called.outputs[i].detach()).all()) for i in called.live)


def usual_form(subject: Subject) -> list[int] | None:
    """How many dimensions each output has at the example; None where forward fails there."""
    kept = subject.trials.setdefault("form", [])
    if not kept:
        try:
            kept.append([t.dim() for t in subject.run(subject.small).outputs])
        except ForwardRefusedError:
            kept.append(None)
    found: list[int] | None = kept[0]
    return found


def has_form(subject: Subject, called: Run, usual: list[int] | None) -> bool:
    """Whether outputs have as many dimensions as the example's, where the arguments have.

    A forward that drops or adds one at some size, by a `squeeze`, takes it by accident.
    """
    old, new = subject.small, called.example
    pairs = list(zip(old.args, new.args, strict=False))
    if len(old.args) != len(new.args) or not all(_is_like(a, b) for a, b in pairs):
        return True
    return usual is None or [t.dim() for t in called.outputs] == usual


def _is_like(one: Any, two: Any) -> bool:
    """Whether an argument is of the same rank, or a plain one the same."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dim() == two.dim()
    return one is two or type(one) in (int, list, tuple)


def reported(
    subject: Subject,
    rule: Rule,
    found: Iterable[TriedVariant],
    fix: str,
    *,
    is_elsewhere: bool = False,
) -> Iterator[Finding]:
    """One finding per input that is wrong in a trial, unless the group has reported it before.

    And one where backward raises at values that forward takes, its shapes being the example's.
    """
    if subject.fails_at_base:
        return
    for trial in found:
        if trial.failure and rule.group == "domain" and is_new(subject, rule, "backward"):
            yield subject.finding(
                rule,
                example=trial.example,
                at="backward",
                expected="gradients, since forward takes these values",
                got=trial.failure,
                fix="serve these values in backward, or refuse them in forward",
                severity=Severity.FRAGILE,
            )
        for mismatch in trial.mismatches:
            if is_elsewhere and not is_behaved(subject, trial.example, mismatch):
                continue
            if _is_beyond(subject, trial.example, mismatch):
                continue
            if own_argument(subject, trial.example, mismatch.name):
                continue  # the caller says what the gradient is
            if is_new(subject, rule, mismatch.name, is_spoiled=_is_spoiled(subject, mismatch)):
                facts = {**_proviso(subject, mismatch), **_uses(trial, mismatch)}
                yield subject.mismatched(rule, mismatch, trial.example, fix=fix, **facts)


def _uses(trial: TriedVariant, mismatch: Mismatch) -> dict[str, Any]:
    """What is said differently where some outputs are not used."""
    if trial.used is None:
        return {}
    outputs = " and ".join(f"output {k}" for k in trial.used)
    return {"at": at_worst(mismatch).then(f", with only {outputs} used"), "used": trial.used}


def _proviso(subject: Subject, mismatch: Mismatch) -> dict[str, Any]:
    """What is said differently of a surrogate."""
    is_surrogate = subject.target.intent.is_surrogate(mismatch.name)
    return {"expected": "a finite number"} if is_surrogate else {}


def _is_beyond(subject: Subject, example: Example, mismatch: Mismatch) -> bool:
    """Whether forward no longer moves, far out: that may be the end of what it serves.

    Such as a root that is out of its bracket, or a table that is read beyond its end.
    """
    x, usual = example.args[mismatch.position], subject.small.args[mismatch.position]
    is_remote = largest_entry(x) > REMOTE * max(largest_entry(usual), 1.0)
    return is_remote and mismatch.expected == 0 and isfinite(mismatch.got or 0.0)


def report_trials(
    rule: Rule, tried: Callable[[Subject], Tried], subject: Subject, *, is_elsewhere: bool = True
) -> Iterator[Finding]:
    """The findings of a rule that is a choice of variants, given by `tried`.

    `is_elsewhere`: the variants have sizes or values that the function need not be meant for.
    """
    for found, fix in tried(subject):
        yield from reported(subject, rule, found, fix, is_elsewhere=is_elsewhere)


def _is_spoiled(subject: Subject, mismatch: Mismatch) -> bool:
    """Whether a gradient is not finite here, and is at the examples, even if it is wrong there."""
    if mismatch.got is None or isfinite(mismatch.got):
        return False
    usual = [m.have for m in subject.base_mismatches if m.name == mismatch.name]
    return all(have is None or bool(torch.isfinite(have).all()) for have in usual)


def is_new(subject: Subject, rule: Rule, name: str, *, is_spoiled: bool = False) -> bool:
    """Whether a defect of input `name` is news, for this group of rules; it no longer is then.

    What is wrong at the examples already is none, unless it `is_spoiled`: no longer finite.
    """
    is_known = name in subject.wrong_names and not is_spoiled
    if is_known or (rule.group, name) in subject.reported:
        return False
    subject.reported.add((rule.group, name))
    return True
