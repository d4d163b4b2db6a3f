"""What a rule needs of a subject to be tried: where it does not hold, the rule is skipped.

@needs(RULE, RUNS, REPEATABLE)
def check(subject): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps

from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.subject.elsewhere import is_repeatable
from pullback.check.subject.subject import Subject
from pullback.judge.run import Raised

Check = Callable[[Subject], Iterator["Finding | Skip"]]


@dataclass(frozen=True, slots=True)
class Condition:
    """What stands against trying a rule, and how that is said.

    `fails` gives what was raised, or whether it fails. `is_refusal` says that something went wrong,
    which a person should see; otherwise there is nothing for the rule to look at.
    """

    reason: str
    fails: Callable[[Subject], Raised | bool | None]
    is_refusal: bool = False

    def skip(self, rule: Rule, subject: Subject) -> Skip | None:
        """The skip that says why, where the condition does not hold."""
        found = self.fails(subject)
        if not found:
            return None
        if self.is_refusal:
            return Skip.refused(rule, self.reason, found if isinstance(found, Raised) else None)
        return Skip(rule, self.reason)


RUNS = Condition("backward fails at the example", lambda subject: subject.fails_at_base, True)
STEADY = Condition(
    "the gradients differ from run to run", lambda subject: not subject.is_steady, True
)
REPEATABLE = Condition(
    "the same call does not give the same twice", lambda subject: not is_repeatable(subject), True
)
DETERMINISTIC = Condition(
    "declared to be nondeterministic", lambda subject: bool(subject.target.intent.nondeterministic)
)
NOT_DRAWN = Condition(
    "its gradient is drawn at random",
    lambda subject: subject.target.intent.is_drawn,
)
KEEPS_INPUTS = Condition("forward changes its inputs", lambda subject: subject.writes_inputs)
KEEPS_MEMORY = Condition(
    "an input is declared to be given away", lambda subject: bool(subject.target.intent.donates)
)
HAS_JVP = Condition("it has no jvp of its own", lambda subject: not subject.target.has_jvp)


def needs(rule: Rule, *conditions: Condition) -> Callable[[Check], Check]:
    """A check that is tried where every condition holds, asked in this order."""

    def conditional(check: Check) -> Check:
        @wraps(check)
        def tried(subject: Subject) -> Iterator[Finding | Skip]:
            for condition in conditions:
                skip = condition.skip(rule, subject)
                if skip is not None:
                    yield skip
                    return
            yield from check(subject)

        return tried

    return conditional
