"""`jvp` must serve inputs without a tangent.

What it checks
    `jvp` runs with the tangent of each input alone, the others having none: it gives a tangent, and
    raises nothing, where it serves all tangents at once.

Why it matters
    `torch.func.jvp` over one argument is the usual call. With `set_materialize_grads(False)` the
    other tangents are None, and `tangent_a + 2 * tangent_b` raises.

Fails
    return tangent_a + 2 * tangent_b               # after ctx.set_materialize_grads(False)

Passes
    parts = [t for t in (tangent_a, double(tangent_b)) if t is not None]

Cannot see
    Functions without a `jvp` of their own, which PyTorch refuses in forward mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.forward_mode import pushed, tangents_of
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject, told

RULE = Rule(
    code="F003",
    name="missing-tangent",
    group="forward",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, for the first input whose tangent alone is not served."""
    if not subject.target.has_jvp or subject.writes_inputs:
        return
    example = subject.small
    tangents = tangents_of(example, 0)
    if len(tangents) < 2:
        return
    try:
        pushed(subject, example, tangents)
    except Exception as error:
        yield Skip.refused(RULE, "forward mode refuses it", told(error))
        return
    for i, tangent in tangents.items():
        try:
            pushed(subject, example, {i: tangent})
        except NotImplementedError as error:
            yield Skip.refused(RULE, "it refuses by intent", told(error))
            return
        except Exception as error:
            name = subject.names[i]
            others = subject.names_at(k for k in tangents if k != i)
            yield subject.finding(
                RULE,
                example=example,
                at=f"jvp along `{name}` alone, without a tangent of {others}",
                expected="the derivative along it",
                got=told(error),
                place=subject.target.place("jvp"),
                fix="take a tangent that is None for zero, as backward does with cotangents",
            )
            return
