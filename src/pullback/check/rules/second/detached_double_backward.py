"""A gradient asked for with `create_graph=True` must not come back detached.

What it checks
    With `create_graph=True`, the gradient's derivative with respect to an input or to the cotangent
    is absent or zero throughout, while differences of backward show that it is not zero.

Why it matters
    `detach`, `.data`, NumPy or `no_grad` in backward cut the graph without a word: the penalty or
    the force that is trained on has no gradient at all, and the loss does not move
    (torchmd-net#179).

Fails
    return grad * torch.from_numpy(np.cos(x.detach().numpy()))

Passes
    return grad * x.cos()                 # or @once_differentiable on backward, which raises

Cannot see
    A cut behind which the second derivative happens to be zero at every example.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.facts import At
from pullback.check.repro.orders import second_slope
from pullback.check.second_order import second_order
from pullback.check.subject import Finding, Rule, Skip, Subject

RULE = Rule(
    code="H002",
    name="detached-double-backward",
    group="second",
    profile="quick",
    intent=("once_differentiable", "surrogate"),
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per variable that the gradient is cut off from."""
    outcome = second_order(subject)
    if outcome.skip and not outcome.defects:
        yield outcome.skipped(RULE)
    for defect in outcome.defects:
        if not defect.is_cut:
            continue
        subject.blamed.add((RULE.group, defect.name))
        yield subject.finding(
            RULE,
            example=defect.example,
            at=At(defect.thing, defect.index),
            expected=defect.expected.then(", or an error"),
            got="0 in every entry",
            why=f"the way from the gradient back to {defect.thing.source} is cut",
            remedy="cut",
            fix="compute with tensors that have a history, or add @once_differentiable to backward",
        )


REPROS = (second_slope,)
