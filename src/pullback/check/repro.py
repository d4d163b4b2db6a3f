"""A repro: a few lines that run without us, and fail.

Each form (in `repros/`) writes a program; the first one that fails when it is tried here is the
repro. A wrong gradient is held against the slope of forward itself, so that nobody's word has to be
taken; where a slope is not sharp enough, against the number that the check found. Anything else is
held against the same call made the ordinary way.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pullback.check.example import Example
from pullback.check.finding import Finding
from pullback.check.repros import gradients, linear, lives, orders, ways
from pullback.check.repros.naming import with_names
from pullback.check.repros.scene import Form, Scene, scenes
from pullback.check.repros.speech import of_change, of_mismatch, of_names, of_slope
from pullback.check.repros.trying import executed, is_failure
from pullback.check.spelling import UnspeakableError, imported

if TYPE_CHECKING:
    from pullback.check.subject import Subject

_RAISED = re.compile(r"^[A-Za-z_.]*(?:Error|Exception|Warning|Interrupt)\b")

# How the findings of a rule, or else of a group, are shown.
FORMS: dict[str, Sequence[Form]] = {
    "nonlinear-backward": [linear.combined(scale) for scale in linear.SCALES],
    "scaled-cotangent": [linear.scaled],
    "zero-cotangent": [linear.zero],
    "mixed-cotangent": [gradients.mixed],
    "cotangent-layout": [gradients.cotangent_layout],
    "layout": [gradients.input_layout],
    "needless-rounding": [gradients.rounded, gradients.precision],
    "dtype": [gradients.precision, gradients.number],
    "same-tensor-twice": [gradients.twice],
    "second": [orders.second],
    "hessian-asymmetry": [orders.hessian],
    "wrong-jvp": [orders.tangent],
    "nonhomogeneous-jvp": [orders.scaled_tangent],
    "backward-twice": [lives.second_backward],
    "leaked-graph": [lives.leak],
    "stale-after-edit": [lives.stale],
    "tensor-on-ctx": [lives.on_ctx],
    "mutated-cotangent": [lives.changed],
    "mutated-saved": [lives.changed],
    "mutation": [lives.changed_by_forward],
    "touched-grad": [lives.field],
    "result-depends-on-history": [lives.history],
    "two-live-calls": [lives.between],
    "stale-cache": [lives.after_other],
    "random-in-backward": [lives.redrawn],
    "reused-buffer": [lives.reused],
    "alias": [lives.shared, lives.shared_for_ones],
    "wrong-for-subset": [gradients.slope, gradients.number, ways.without_grad],
    "low-precision-sum": [gradients.precision, gradients.summed],
    "compiled-differs": [ways.compiled],
    "checkpoint-differs": [ways.checkpointed],
    "autocast-differs": [ways.autocast],
    "wrong-vmap": [ways.batched],
    "wrong-in-threads": [ways.threads, ways.racing],
    "freed-storage": [ways.moved],
    "wrong-under-no-grad": [ways.without_grad],
    "hidden-tensor": [ways.unseen],
    "uninitialised-memory": [ways.poisoned],
    "marked-output": [gradients.slope, ways.marked, gradients.along],
    "unmarked-output": [ways.marked],
    "silent-repair": [ways.repaired],
    "bad-input": [ways.accepted],
}
USUAL = (gradients.slope, gradients.number, gradients.along, gradients.as_said)

# Where something is raised: by an ordinary call, by one with a cotangent in another layout, or by
# the very thing that the rule does.
RAISING = (gradients.raises, ways.frozen)


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


def _first(subject: Subject, finding: Finding, example: Example | None) -> Finding:
    head, call = imported(subject.target)
    where = subject.small_given if example is None else example
    for scene in scenes(subject, finding, where, call):
        for form in _forms(finding):
            body = _written(form, scene)
            error, made = executed(body, scene) if body else (None, {})
            if is_failure(error, scene):
                names = dict(zip(scene.names, subject.names, strict=False))
                text = _whole(head, with_names(body, names))
                return replace(_spoken(finding, form, scene, body, made), repro=text)
    return finding


def _spoken(finding: Finding, form: Form, scene: Scene, body: str, made: dict[str, Any]) -> Finding:
    """The finding, told of the entry that the repro shows."""
    if form in (gradients.slope, gradients.number):
        shown = gradients.mismatch_of(scene)
        return finding if shown is None else of_mismatch(finding, shown)
    if form is orders.second:
        return of_slope(finding, made)
    if "before" in made:
        return of_change(finding, body, made)
    return of_names(finding, scene, body, made)


def _whole(head: str, body: str) -> str:
    """The program: what every form needs, what this one needs, the target, and the body."""
    first, _, rest = body.partition("\n\n")
    own = first.splitlines()
    if not all(line.startswith(("import ", "from ")) for line in own):
        own, rest = [], body
    lines = dict.fromkeys([*own, "import torch", *head.splitlines()])
    return "\n".join([*lines, "", rest])


def _written(form: Form, scene: Scene) -> str:
    try:
        return form(scene)
    except UnspeakableError:
        return ""


def _forms(finding: Finding) -> Sequence[Form]:
    rule = finding.rule
    own = FORMS.get(rule.name) or FORMS.get(rule.group) or ()
    if not _RAISED.match(finding.got):
        return (*own, *(() if own else USUAL))
    if rule.name == "cotangent-layout":
        return (gradients.raises, gradients.raises_for_layout)
    return (*RAISING, *own)
