"""What is proved of a Function for all inputs, within a time: an extra to what was tried.

Rules try inputs; a proof (`prove`) holds for all of them, as far as real numbers go. It is searched
for where no rule found a wrong result, in a worker of its own and with a limit in seconds of work
by profile; what it raises is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable

from pullback.check.findings.finding import Finding, Severity, Skip
from pullback.check.findings.report import Proved
from pullback.check.job import Job
from pullback.check.options import PROOF_SECONDS
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of
from pullback.check.subject.subject import Subject
from pullback.check.work import SEED
from pullback.function.isolation import drawing_from

# Operators in forward and backward for each of these seconds: of more, as of loops written out, not
# even the expressions are made in time.
OPERATORS = 250
PATIENCE = 2.0  # times as much work, or as long at rest, and the search is ended


def proved_of(job: Job, results: Iterable[Finding | Skip], *, is_here: bool) -> Proved | None:
    """What can be proved of what a job has checked; None where it is not tried.

    It is for a Function whose backward is meant to be forward's, where no rule found a wrong
    result: that would come first.
    """
    seconds, target = PROOF_SECONDS[job.profile], job.target
    is_asked = any(registered.rule.group == "gradient" for registered in job.rules)
    is_wrong = any(isinstance(r, Finding) and _is_against(r) for r in results)
    if not (seconds and is_asked and target.is_function) or is_wrong or target.intent.has_surrogate:
        return None
    if is_here:
        return _searched(job, seconds)
    try:
        found: Proved | None = answer_of(lambda: _searched(job, seconds), PATIENCE * seconds)
    except Died:
        return None
    return found


def _is_against(finding: Finding) -> bool:
    """Whether a finding says that a first gradient is wrong, or may be."""
    return finding.weight == Severity.WRONG and finding.rule.group != "second"


def _searched(job: Job, seconds: float) -> Proved | None:
    """What is proved within the time; None where numbers refute it, which is for rules to tell."""
    from pullback.prove import prove  # heavy: sympy
    from pullback.prove.verdicts import PROVED, REFUTED

    try:
        with drawing_from(SEED):
            subject = Subject(job.target, job.examples, profile=job.profile)
            if subject.operators > OPERATORS * seconds:
                return None
            proof = prove(job.target.function, *subject.small.fresh(), seconds=seconds)
    except Exception:  # an odd function: the report stands without a proof
        return None
    if proof.verdict == REFUTED:
        return None
    proved = [name for name, judged in proof.gradients.items() if judged.verdict == PROVED]
    return Proved(
        tuple(proved),
        tuple(name for name in proof.gradients if name not in proved),
        proof.scope,
        proof.provisos,
        proof.reason,
    )
