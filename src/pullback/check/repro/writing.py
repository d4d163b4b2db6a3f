"""The repro of a finding: the first program of its rule's forms that fails.

Each form writes a program; the first one that fails when it is tried here is the repro. A wrong
gradient is compared with the slope of forward itself, which needs no other reference; where a
slope is not sharp enough, with the number that the check found. Anything else is compared with
the same call made the ordinary way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pullback.check.findings.finding import Finding
from pullback.check.findings.registered import KNOWN
from pullback.check.repro.context import Form, Repro, ReproContext, contexts
from pullback.check.repro.gradients import against_slope, along, as_reported, of_number
from pullback.check.repro.modes import frozen, raises
from pullback.check.repro.naming import with_names
from pullback.check.repro.retold import of_gradients
from pullback.check.repro.trying import executed, is_failure
from pullback.check.target.spelling import UnspeakableError, imported
from pullback.judge.example import Example

if TYPE_CHECKING:
    from pullback.check.subject.subject import Subject

# The forms of a rule that has none of its own.
USUAL: Sequence[Form] = (against_slope, of_number, along, as_reported)

# Where something is raised: by an ordinary call, or by one without grad; then the rule's own forms.
RAISING: Sequence[Form] = (raises, frozen)


def with_repro(subject: Subject, finding: Finding, example: Example | None) -> Finding:
    """The finding with its repro, and with the numbers that the repro gives.

    It stands as it is where none of the forms fails.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _first(subject, finding, example)
    except Exception:  # the finding stands without a repro
        return finding


def forms_of(finding: Finding) -> Sequence[Form]:
    """The forms that are tried for a finding, in order."""
    known = KNOWN.get(finding.rule.code)
    own = known.repros if known is not None else None
    if finding.about.raised is None:
        return USUAL if own is None else own
    if known is not None and known.raising is not None:
        return known.raising
    return (*RAISING, *(own or ()))


def _first(subject: Subject, finding: Finding, example: Example | None) -> Finding:
    head, call = imported(subject.target)
    where = subject.small_given if example is None else example
    for context in contexts(subject, finding, where, call):
        for form in forms_of(finding):
            program = _written(form, context)
            if not program.text:
                continue
            error, made = executed(program.text, context)
            if is_failure(error, context, program):
                names = dict(zip(context.names, subject.names, strict=False))
                text = _whole(head, with_names(program.text, names))
                shown = program.retell(finding, made) if program.retell else finding
                return replace(shown, repro=text)
    return finding


def _written(form: Form, context: ReproContext) -> Repro:
    try:
        made = form(context)
    except UnspeakableError:
        return Repro("")
    return made if isinstance(made, Repro) else Repro(made, of_gradients(context))


def _whole(head: str, body: str) -> str:
    """The program: what every form needs, what this one needs, the target, and the body."""
    first, _, rest = body.partition("\n\n")
    own = first.splitlines()
    if not all(line.startswith(("import ", "from ")) for line in own):
        own, rest = [], body
    lines = dict.fromkeys([*own, "import torch", *head.splitlines()])
    return "\n".join([*lines, "", rest])
