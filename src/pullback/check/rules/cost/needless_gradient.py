"""A gradient that nobody asked for must not be computed.

What it checks
    For each input that can be frozen, or is in the example: where autograd over forward saves a
    good part of its products of matrices and convolutions, the function must not do as many as
    with that input's gradient, nor write as many numbers.

Why it matters
    Fine-tuning freezes most weights. A backward that does not look at `ctx.needs_input_grad` pays
    for their gradients all the same, and PyTorch throws them away: a fifth of the step (apex#1517),
    gigabytes (Liger#1441).

Fails
    return grad @ weight, grad.t() @ x

Passes
    dweight = grad.t() @ x if ctx.needs_input_grad[1] else None

Cannot see
    Work other than products of matrices and convolutions: a needless pointwise gradient costs less
    than asking. Work inside kernels. Gradients that a once-differentiable function makes in
    forward, as fused losses do by design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject
from pullback.check.target.registration import body_of
from pullback.check.watching.dispatch import Work

RULE = Rule("C002", "needless-gradient", "cost", Severity.WASTEFUL, "quick")

SAVED = 0.66  # PyTorch does at most this share of its products when the input is frozen
SAME = 0.95
WASTE = 0.1  # the share of its work that the function does beyond what PyTorch would do


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is computed whether or not it is asked for."""
    needs = subject.small.needs
    if subject.fails_at_base:
        yield Skip.refused(RULE, raised=subject.fails_at_base)
        return
    others = frozenset(subject.small.differentiable) - needs
    if len(needs | others) < 2 or not needs:
        yield Skip(RULE, "fewer than two inputs can require grad")
        return
    try:
        yield from _wasteful(subject, needs, sorted(needs) if len(needs) > 1 else [])
        for frozen in sorted(others):
            if subject.pull(subject.small, needs=needs | {frozen})[subject.names[frozen]] is None:
                continue  # it is a constant to the function, too
            yield from _wasteful(subject, needs | {frozen}, [frozen])
    except CallError as refusal:
        yield Skip.refused(RULE, "not every subset of the inputs is accepted", refusal.raised)


def _wasteful(subject: Subject, needs: frozenset[int], candidates: list[int]) -> Iterator[Finding]:
    """One finding per candidate whose gradient is computed where only the rest of `needs` has."""
    call = subject.target.call
    body = body_of(subject.target.thing) if subject.target.is_op else None
    plain = body or subject.reference.program
    everything, late, numbers = _products(subject, call, needs)
    if not late and subject.target.is_once_differentiable:
        return  # by design: the gradients are made in forward, and kept as they are
    both, usual, _ = _products(subject, plain, needs)
    if not everything or not usual:
        return
    for frozen in candidates:
        rest = needs - {frozen}
        now, _, written = _products(subject, call, rest)
        least = _products(subject, plain, rest)[1]
        is_early = everything - late > both - usual
        if not is_early and written <= numbers - subject.small.args[frozen].numel():
            continue  # its gradient is made by other operators, and no longer made
        if now < SAME * everything or least > SAVED * usual:
            continue
        forward = everything - late if body else both - usual  # an op hides what it runs
        if _wasted(now, least, usual, forward) < WASTE * now:
            continue  # what PyTorch saves there, this function never did
        yield subject.finding(
            RULE,
            example=subject.small,
            at=f"multiplications of products, with `{subject.names[frozen]}` frozen",
            expected=f"about {now - min(usual - least, now)}, as PyTorch saves there",
            got=f"{now}",
            remedy=subject.names[frozen],
            fix=f"compute it only if ctx.needs_input_grad[{frozen}], and return None if not",
        )


def _wasted(now: int, least: int, usual: int, forward: int) -> int:
    """The products beyond those that forward needs and PyTorch's backward does at the least.

    A product has two in backward: more than half of those in forward are gradients made early.
    """
    needed = min(forward, usual // 2) if forward > usual else forward
    return now - needed - least


def _products(
    subject: Subject, call: Callable[..., Any], needs: frozenset[int]
) -> tuple[int, int, int]:
    """The multiplications of forward and backward, and of backward alone; the numbers it writes."""
    with Work() as forward:
        called = subject.run_other(call, subject.small, needs=needs)
    with Work() as backward:
        if called.live:
            called.pull(subject.cotangents(called))
    return forward.products + backward.products, backward.products, backward.numbers
