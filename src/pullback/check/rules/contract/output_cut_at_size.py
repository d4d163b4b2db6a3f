"""An output that has a gradient must have one at every size.

What it checks
    Other sizes, ranks and batches that forward takes: an output that requires grad at the example
    requires grad there too.

Why it matters
    `mark_non_differentiable` under a condition on the size cuts the graph for some batches only.
    Nothing is raised while another branch of the model still has a gradient.

Fails
    if x.numel() > 64: ctx.mark_non_differentiable(y)

Passes
    ctx.mark_non_differentiable(indices)

Cannot see
    Conditions on values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from pullback.check.findings.facts import At, Output
from pullback.check.inputs.shapes import batches_of, sizes_of
from pullback.check.subject.subject import Finding, ForwardRefusedError, Rule, Skip, Subject, each
from pullback.judge.example import can_differ

RULE = Rule("K807", "output-cut-at-size", "contract", profile="quick")

MOST = 10  # variants, of which each costs a forward


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    if not subject.target.is_function or not subject.small.needs:
        return
    usual = subject.run(subject.small)
    if not usual.live:
        return
    sizes = list(sizes_of(subject.small))
    large_first = sorted(sizes, key=lambda example: -example.size)
    for example in each(islice(chain(batches_of(subject.small), large_first), MOST), subject):
        try:
            run = subject.run(example)
        except ForwardRefusedError:
            continue
        if len(run.outputs) != len(usual.outputs):
            continue
        cut = [k for k in usual.live if not run.outputs[k].requires_grad]
        cut = [k for k in cut if can_differ(run.outputs[k]) and run.outputs[k].numel()]
        if cut:
            yield subject.finding(
                RULE,
                example=example,
                at=At(Output(cut[0])),
                expected="an output that requires grad, as at the example",
                got="one that does not: backward never runs",
                fix="mark an output as non-differentiable always or never",
            )
            return
