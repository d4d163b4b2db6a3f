"""What is proved of a Function for all inputs, within a time: an extra to what was tried.

Rules try inputs; a proof (`prove`) holds for all of them, as far as real numbers go. It is searched
for where nothing wrong was found, has a limit in seconds of work by profile, and what it raises is
not told.
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.check.finding import Finding, Severity, Skip
from pullback.check.subject import Subject

# Seconds of work to search for a proof, by profile.
SECONDS = {"quick": 0.0, "standard": 2.0, "deep": 20.0}


@dataclass(frozen=True, slots=True)
class Proved:
    """What a search for a proof came to.

    `gradients` are the inputs whose gradients are right for all inputs, in the `scope` of shapes
    and but for the `provisos`; `reason` says why others are not known to be.
    """

    gradients: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    scope: str = ""
    provisos: tuple[str, ...] = ()
    reason: str = ""


def proved_of(subject: Subject, results: list[Finding | Skip]) -> Proved | None:
    """What can be proved of a subject; None where it is not tried, or numbers are against it.

    A gradient that is meant to be another than forward's is not looked at, and none where a rule
    found a wrong result: that comes first.
    """
    target, seconds = subject.target, SECONDS[subject.profile]
    is_wrong = any(isinstance(r, Finding) and r.weight == Severity.WRONG for r in results)
    if not seconds or not target.is_function or is_wrong or target.intent.has_surrogate:
        return None
    from pullback.prove.judge import PROVED, REFUTED
    from pullback.prove.proof import prove  # heavy: sympy

    try:
        proof = prove(target.function, *subject.small.fresh(), seconds=seconds)
    except Exception:  # the report stands without it
        return None
    if proof.verdict == REFUTED:
        return None
    verdicts = {name: judgement.verdict == PROVED for name, judgement in proof.gradients.items()}
    return Proved(
        tuple(name for name, is_proved in verdicts.items() if is_proved),
        tuple(name for name, is_proved in verdicts.items() if not is_proved),
        proof.scope,
        proof.provisos,
        proof.reason,
    )
