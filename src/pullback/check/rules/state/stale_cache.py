"""What was cached from one call must not serve another.

What it checks
    The gradients at other values of the same shape. Where one is wrong although it is right at the
    example, the containers and values on the class, and the containers that its methods see around
    them, are emptied: a gradient that is right then was computed from what an earlier call left.
    Outputs are compared, too: after a call with other values, or in float32, and without one; and
    after a change of the inputs in place, where a call has left something on them.

Why it matters
    A cache that is keyed by the shape, or filled once and never again, is right in every test that
    makes one call, and wrong from the second batch on.

Fails
    if x.shape not in cache: cache[x.shape] = x.softmax(-1)

Passes
    ctx.save_for_backward(x.softmax(-1))

Cannot see
    Caches in C++ or in objects that the methods do not name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.explaining import COMPARING, Cause
from pullback.check.findings.facts import Output
from pullback.check.inputs.others import other_values
from pullback.check.repro.context import Repro, ReproContext, context_at, rounded, text_of
from pullback.check.repro.gradients import of_number
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
)
from pullback.judge.example import Example, can_differ, exact_copy
from pullback.judge.mismatch import Mismatch
from pullback.judge.tolerances import is_close

RULE = Rule("T904", "stale-cache", "state", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that is right only once the caches are empty, or an output."""
    if subject.fails_at_base:
        return
    _ = subject.base_mismatches  # the call that would fill a cache
    found = list(_gradients(subject)) if subject.target.is_function else []
    found = found or list(_outputs(subject))
    yield from found or _edited(subject)


def _gradients(subject: Subject) -> Iterator[Finding]:
    for example in (other_values(subject.base), other_values(subject.base, 2)):
        wrong = [m for m in _judged(subject, example) or () if m.name not in subject.wrong_names]
        if not wrong:
            continue
        with subject.with_leftovers(subject.leftovers().emptied()):
            after = _judged(subject, example)
        if after is None:
            return
        still = {mismatch.name for mismatch in after}
        for mismatch in wrong:
            if mismatch.name not in still:
                yield subject.mismatched(
                    RULE,
                    mismatch,
                    example,
                    why="it is right once what earlier calls left on the class is removed",
                    fix="keep what backward needs on ctx, call by call",
                )
        return


def _outputs(subject: Subject) -> Iterator[Finding]:
    """A finding for an output that is another one after other calls than without any."""
    before = subject.beginning
    if not before.is_changed or subject.target.intent.nondeterministic or not subject.is_steady:
        return
    base = subject.base
    single = base.to(torch.float32)
    for earlier, example, words in (
        (base, other_values(base), "other values"),
        (single, base, "the same values in float32"),
    ):
        with subject.with_leftovers(before):
            alone = _held(subject, example)
        with subject.with_leftovers(before):
            _held(subject, earlier)
            after = _held(subject, example)
        found = _other(subject, example, after, alone, f"after a call with {words}")
        if found is not None:
            yield found
            return


def _edited(subject: Subject) -> Iterator[Finding]:
    """A finding where what was kept with an input outlives a change of that input."""
    if subject.writes_inputs or subject.target.intent.nondeterministic or not subject.is_steady:
        return
    args = subject.small.fresh(needs=frozenset())
    tensors = [args[i] for i in subject.small.differentiable]
    try:
        before = [dict(getattr(tensor, "__dict__", {})) for tensor in tensors]
        subject.run_with(subject.small, args)
        if [dict(tensor.__dict__) for tensor in tensors] == before:
            return  # nothing is kept with them
        for tensor in tensors:
            tensor.mul_(0.75)
        after = subject.run_with(subject.small, args).outputs
        alone = subject.run_with(subject.small, tuple(map(_copy, args))).outputs
    except (ForwardRefusedError, RuntimeError):
        return
    found = _other(subject, subject.small, after, alone, "after the inputs were changed in place")
    if found is not None:
        yield found


def _other(
    subject: Subject, example: Example, after: Sequence[Tensor], alone: Sequence[Tensor], when: str
) -> Finding | None:
    """A finding for the first output that is not what it is without the calls before it."""
    for i, (two, one) in enumerate(zip(after, alone, strict=False)):
        if can_differ(one) and one.shape == two.shape and not is_close(two, one):
            return subject.finding(
                RULE,
                example=example,
                **gap_of(Output(i), two, one).facts(
                    f", {when}", expected=", as without an earlier call"
                ),
                why="what an earlier call left is used in this one",
                fix="keep nothing from call to call that its key, or a tensor's version, misses",
            )
    return None


def _copy(arg: Any) -> Any:
    return exact_copy(arg) if isinstance(arg, Tensor) else arg


def _held(subject: Subject, example: Example) -> list[Tensor]:
    """What the outputs hold; nothing where forward refuses."""
    try:
        return [one.detach().clone() for one in subject.run(example).outputs if can_differ(one)]
    except ForwardRefusedError:
        return []


def _judged(subject: Subject, example: Example) -> list[Mismatch] | None:
    """What is wrong at an example; None where it cannot be run."""
    try:
        return subject.judge(example)
    except CallError:
        return None


def _after_other(context: ReproContext) -> str:
    """What an earlier call with other values left must make no difference."""
    shown = of_number(context)
    if not isinstance(shown, Repro):
        return ""
    base = context.subject.base.map(rounded, "")
    earlier = context_at(context, base.need(context.example.needs))
    lines = [f"earlier_{line}" for line in earlier.settings()]
    names = [f"earlier_{name}" for name in context.names[: len(earlier.example.args)]]
    return text_of(lines, earlier.done("earlier", names), "", shown.text)


REPROS = (_after_other,)

EXPLAINS = (Cause(COMPARING, "a call is served with the numbers of an earlier one", rank=40),)
