"""Gradients where only some of the outputs are used, or only some of the inputs need one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, islice

import torch
from torch import Tensor

from pullback.check.findings.explaining import ANYTHING, Cause
from pullback.check.findings.facts import Gradient, Output, at_worst
from pullback.check.findings.registered import Registered
from pullback.check.inputs.others import other_values
from pullback.check.repro.gradients import against_slope, of_number
from pullback.check.repro.modes import Mode, without_grad
from pullback.check.subject.conditions import NOT_DRAWN, RUNS, needs
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.judge.example import can_differ, tensors_in
from pullback.judge.run import Run, copies_of, of_span
from pullback.judge.tolerances import is_close

UNUSED_OUTPUT = Rule("G107", "unused-output", "gradient", profile="quick")
WRONG_FOR_SUBSET = Rule("G108", "wrong-for-subset", "gradient", profile="quick")

MOST_OUTPUTS = 24  # subsets of outputs
MOST_LISTED = 8  # outputs that are named one by one
MOST_INPUTS = 5  # of which every subset is tried


@needs(UNUSED_OUTPUT, RUNS)
def unused_output(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong for a subset of the outputs."""
    done: set[str] = set(subject.wrong_names)
    for words, used in each(_used_outputs(subject.run().live), subject):
        run = subject.run()
        every = subject.cotangents(run, 2)
        cotangents = [c if used is None or i in used else None for i, c in enumerate(every)]
        if used is None:
            pairs = zip(run.outputs, cotangents, strict=True)
            cotangents = [None if c is None else of_span(o, _one_entry(c)) for o, c in pairs]
        try:
            grads = run.pull(copies_of(cotangents))
        except BackwardFailedError as failure:
            yield subject.finding(
                UNUSED_OUTPUT,
                example=subject.base,
                at=f"backward with {words} of the outputs used",
                expected="gradients",
                got=failure.raised,
                used=used,
                why="the cotangent of an unused output is None after set_materialize_grads(False)",
                fix="treat a cotangent that is None as zero",
            )
            return
        if used is not None and len(used) == 1 and _is_ignored(subject, run, used[0], grads):
            yield subject.finding(
                UNUSED_OUTPUT,
                example=subject.base,
                severity=_weight(subject, run, used[0]),
                at=f"every gradient, with {words} of the outputs used",
                expected=f"a gradient for some input: output {used[0]} depends on one",
                got="zeros, as if that output were a constant",
                used=used,
                fix=f"let the cotangent of output {used[0]} reach an input, or mark that output: "
                "ctx.mark_non_differentiable",
            )
        for mismatch in subject.mismatches(run, cotangents, grads):
            if mismatch.name in done:
                continue
            done.add(mismatch.name)
            yield subject.mismatched(
                UNUSED_OUTPUT,
                mismatch,
                subject.base,
                at=at_worst(mismatch).then(f", with {words} of the outputs used"),
                used=used,
                fix="let each output's cotangent reach exactly the inputs that output depends on",
            )


def _is_ignored(subject: Subject, run: Run, output: int, grads: dict[str, Tensor | None]) -> bool:
    """Whether nothing flows from one output of a surrogate, though it depends on an input.

    Other gradients are compared with forward's, which shows it as well.
    """
    is_zero = all(g is None or not bool(g.any()) for g in grads.values())
    if not is_zero or not subject.target.intent.has_surrogate:
        return False
    try:
        other = subject.run(other_values(subject.base))
    except ForwardRefusedError:
        return False
    return not torch.equal(other.outputs[output].detach(), run.outputs[output].detach())


def _weight(subject: Subject, run: Run, output: int) -> Severity:
    """Wrong where the output moves with the inputs and has the shape of one, as a state has.

    A step, or a number such as the scale of a sign, may be meant to be a constant.
    """
    if all(run.outputs[output].shape != leaf.shape for leaf in run.leaves.values()):
        return Severity.FRAGILE
    near = subject.base.map(_nudged, "moved a little")
    try:
        moved = subject.run(near).outputs[output].detach()
    except ForwardRefusedError:
        return Severity.FRAGILE
    same = moved == run.outputs[output].detach()
    return Severity.WRONG if not bool(same.any()) else Severity.FRAGILE


def _nudged(tensor: Tensor) -> Tensor:
    if not can_differ(tensor):
        return tensor
    step = math.sqrt(torch.finfo(tensor.dtype).eps)
    return tensor + step * tensor.abs().clamp(min=1e-3)


def _used_outputs(live: tuple[int, ...]) -> list[tuple[str, tuple[int, ...] | None]]:
    """The subsets of outputs to try, in words and as positions; None for one entry of each."""
    found: list[tuple[str, tuple[int, ...] | None]] = [("one entry", None)]
    for count in (1, len(live) - 1, 2, 3):
        if 0 < count < len(live):
            for used in islice(combinations(live, count), MOST_OUTPUTS):  # of 1,000 there are many
                found.append((f"only {_listed(used)}", used))
    return list(dict.fromkeys(found))[:MOST_OUTPUTS]


def _listed(used: tuple[int, ...]) -> str:
    if len(used) > MOST_LISTED:
        return f"{len(used)} outputs from output {used[0]} on"
    return " and ".join(f"output {i}" for i in used)


def _one_entry(cotangent: Tensor) -> Tensor:
    one = torch.zeros_like(cotangent)
    if one.numel():
        one.view(-1)[one.numel() // 2] = cotangent.flatten()[one.numel() // 2]
    return one


@needs(WRONG_FOR_SUBSET, RUNS, NOT_DRAWN)
def wrong_for_subset(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding for forward and one per gradient."""
    needs = tuple(sorted(subject.base.needs))
    without = list(_without_any(subject))
    yield from without
    whole = subject.pull()
    done: set[str] = set()
    for chosen in each(_subsets(needs), subject):
        words, needed = subject.names_at(chosen), tuple(subject.names[i] for i in chosen)
        for by in ("requires_grad", "inputs"):
            try:
                if by == "requires_grad":
                    grads = subject.pull(needs=chosen)
                else:
                    run = subject.run()
                    wanted = [n for n in (subject.names[i] for i in chosen) if n in run.leaves]
                    grads = run.pull(subject.cotangents(run), wanted=wanted)
            except CallError as failure:
                if any(failure.raised == finding.about.raised for finding in without):
                    return  # it is the same defect
                phase = "backward" if isinstance(failure, BackwardFailedError) else "forward"
                yield subject.finding(
                    WRONG_FOR_SUBSET,
                    example=subject.base,
                    at=f"{phase} when only {words} must have a gradient",
                    expected="the same gradients as with all",
                    got=failure.raised,
                    needed=needed,
                    fix="return None where no gradient is needed, and ask for nothing that is not",
                )
                return
            for name, got in grads.items():
                expected = whole.get(name)
                if name in done or is_close(got, expected, 10):
                    continue
                done.add(name)
                yield subject.finding(
                    WRONG_FOR_SUBSET,
                    example=subject.base,
                    **gap_of(Gradient(name), got, expected).facts(f", when only {words} needs one"),
                    needed=needed,
                    fix="let needs_input_grad[i] decide about the gradient of argument i",
                )


def _without_any(subject: Subject) -> Iterator[Finding]:
    try:
        plain = subject.run(needs=())
    except ForwardRefusedError as refusal:
        yield subject.finding(
            WRONG_FOR_SUBSET,
            example=subject.base,
            at="forward when no input requires grad",
            expected="the same outputs as otherwise",
            got=refusal.raised,
            detail=Mode.PLAIN,
            fix="prepare for backward only what backward will need, and forward without it",
        )
        return
    usual = subject.run()
    for i, (got, expected) in enumerate(
        zip(tensors_in(plain.result), tensors_in(usual.result), strict=False)
    ):
        if got.is_floating_point() and not is_close(got, expected, 10):
            yield subject.finding(
                WRONG_FOR_SUBSET,
                example=subject.base,
                **gap_of(Output(i), got, expected).facts(", when no input requires grad"),
                detail=Mode.PLAIN,
                fix="let forward compute the same whether or not a gradient is needed",
            )
            return


def _subsets(needs: tuple[int, ...]) -> list[tuple[int, ...]]:
    counts = range(1, len(needs)) if len(needs) <= MOST_INPUTS else (1, len(needs) - 1)
    return [chosen for count in counts for chosen in combinations(needs, count)]


RULES = (
    Registered(
        UNUSED_OUTPUT,
        unused_output,
        page="""
Gradients must be right when only some of the outputs are used.

What it checks
    The gradients for each output used alone and for each pair left out, with the others unused;
    and for a cotangent that is zero but for one entry.

Why it matters
    A loss rarely uses every output. The unused ones come as zeros, or as `None` after
    `set_materialize_grads(False)`; a backward that mixes them up, or reads them all, is wrong then.

Fails
    return (g_value + g_norm) * y          # of two outputs that need different factors

Passes
    return g_value * y + g_norm * z

Cannot see
    More than eight outputs are not tried in every combination.
""",
    ),
    Registered(
        WRONG_FOR_SUBSET,
        wrong_for_subset,
        repros=(against_slope, of_number, without_grad),
        explains=(
            Cause(
                frozenset({"wrong-under-no-grad"}),
                "forward does something else where no gradient is asked for",
                rank=150,
                holds=lambda finding: finding.about.detail is Mode.PLAIN,
                raising=ANYTHING,
            ),
        ),
        page="""
Gradients must be right for every subset of inputs that require grad.

What it checks
    For each subset of the inputs: forward with only these requiring grad, and backward asked for
    only these (`backward(inputs=...)`), give the same gradients as with all of them; and forward
    gives the same outputs with none.

Why it matters
    Weights are frozen, data needs no gradient, inference needs none at all. Liger#930 crashed when
    nothing required grad, ms-swift#9790 with a frozen weight.

Fails
    if ctx.needs_input_grad[1]: grad_x = ...   # asks about the wrong input

Passes
    if ctx.needs_input_grad[0]: grad_x = ...

Cannot see
    With more than five differentiable inputs, only single inputs and their complements are tried.
""",
    ),
)
