"""Outputs must not share memory with one another.

What it checks
    Whether writing into one output would change another one.

Why it matters
    An in-place op on one output, as users write after a call, changes the other in silence, and no
    version counter notices.

Fails
    y = x.exp(); return y, y.view(-1)

Passes
    y = x.exp(); return y, y.reshape(-1).clone()

Cannot see
    Outputs that share memory only for some inputs. Slices of one buffer that do not overlap are
    fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from pullback.check.facts import Output
from pullback.check.repro.calls import MEMORY
from pullback.check.repro.scene import Scene, text_of
from pullback.check.snapshot import share_memory
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject

RULE = Rule(
    code="A752",
    name="overlapping-outputs",
    group="alias",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    run = subject.run()
    for (i, one), (j, two) in combinations(enumerate(run.outputs), 2):
        if share_memory(one, two):
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"outputs {i} and {j}",
                expected="memory of their own",
                got="the same memory",
                detail=(Output(i), Output(j)),
                fix=f"return a clone as output {j}",
            )
            return


def _apart(scene: Scene) -> str:
    """The two outputs that share memory."""
    one, two = (scene.code_of(output) for output in scene.about.detail)
    test = f"{one}.{MEMORY} != {two}.{MEMORY}"
    return text_of(scene.settings(), scene.done(), f'assert {test}, "one memory for two"')


REPROS = (_apart,)
