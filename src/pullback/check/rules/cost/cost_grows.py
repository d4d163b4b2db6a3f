"""Backward must not cost a higher power of the size than forward and its plain gradient do.

What it checks
    The numbers that backward's operators write, the multiplications of its products, and the number
    of its operators are counted at two sizes, for each size of the example and for all at once.
    They must not grow with a higher power than those of forward as plain PyTorch and autograd over
    it.

Why it matters
    A backward that forms a whole Jacobian, all pairs, a one-hot matrix, or runs one operator per
    entry, is right at the size of the test and unusable at the size of the work.

Fails
    return torch.ones(n, n).tril().t() @ grad          # for cumsum

Passes
    return grad.flip(0).cumsum(0).flip(0)

Cannot see
    Work inside a kernel or an op of the dispatcher, and loops over Python numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pullback.check.inputs.shapes import fits, resized, symbols_of
from pullback.check.kernels.tuning import worked
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject, each
from pullback.check.watching.dispatch import Work, foreign_calls
from pullback.judge.example import Example

RULE = Rule("C001", "cost-grows", "cost", Severity.WASTEFUL, "quick")

Sizes = tuple[tuple[int, int], ...]

PAIRS = ((12, 48), (8, 32), (6, 18))
SCALES = ((2, 8), (1, 4), (1, 3))
SLOW = 0.02  # seconds
LIMIT = 60_000
POWER = 0.5
SCALE = 3.0  # the least ratio of two sizes above
TIMES = 3.0
FEW = 60  # so many operators are no loop


@dataclass(frozen=True, slots=True)
class Cost:
    """What was computed: numbers written and multiplications, and operators."""

    numbers: int
    operators: int


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first size with which backward's cost grows too fast."""
    if subject.target.is_op or foreign_calls(subject.target.call, subject.small.fresh()):
        yield Skip(RULE, "what an op computes inside cannot be counted")
        return
    loops: list[Finding | None] = []
    pairs, scales = (PAIRS[-1:], SCALES[-1:]) if _is_slow(subject) else (PAIRS, SCALES)
    for small, large, words in each(_pairs(subject.small, pairs, scales), subject):
        try:
            start = worked()
            least, plain_least = _of_backward(subject, small), _of_plain(subject, small)
            if (worked() - start) * large.size > (subject.deadline - worked()) * small.size:
                continue  # it would take more time than there is
            mine = [least, _of_backward(subject, large)]
            plain = [plain_least, _of_plain(subject, large)]
        except CallError:
            continue
        found = _compared(subject, mine, plain, large, words, "numbers")
        if found is not None:
            yield found
            return
        loops.append(_compared(subject, mine, plain, large, words, "operators"))
    # A scan takes steps along one size; one operator per entry grows with all of them.
    if loops and loops[0] is not None and all(loops):
        yield loops[0]


def _is_slow(subject: Subject) -> bool:
    """Whether backward takes long at the smaller ones of the sizes already."""
    for _, large, _ in _pairs(subject.small, PAIRS[-1:], ()):
        start = time.process_time()
        try:
            subject.pull(large)
        except CallError:
            continue
        if time.process_time() - start > SLOW:
            return True
    return False


def _pairs(example: Example, pairs: Sizes, scales: Sizes) -> Iterator[tuple[Example, Example, str]]:
    """A small and a large example: each size alone, then all sizes together."""
    symbols = [size for size in symbols_of(example) if size > 1]
    for size in symbols:
        for low, high in pairs:
            if fits(example, {size: high}, LIMIT):
                one = resized(example, {size: low}, f"size {size} as {low}")
                yield one, resized(example, {size: high}, f"size {size} as {high}"), f"size {size}"
                break
    if len(symbols) > 1:
        for low, high in scales:
            sizes = {size: high * size for size in symbols}
            if fits(example, sizes, LIMIT):
                one = resized(example, {s: low * s for s in symbols}, f"every size times {low}")
                yield one, resized(example, sizes, f"every size times {high}"), "every size"
                break


def _of_backward(subject: Subject, example: Example) -> Cost:
    called = subject.run(example)
    cotangents = subject.cotangents(called)
    with Work() as work:
        called.pull(cotangents)
    return Cost(work.numbers + work.products, work.operators)


def _of_plain(subject: Subject, example: Example) -> Cost:
    """Forward as plain PyTorch and autograd over it, together."""
    with Work() as work:
        called = subject.run_other(subject.reference.program, example)
        if called.live:
            called.pull(subject.cotangents(called))
    return Cost(work.numbers + work.products, work.operators)


def _compared(
    subject: Subject,
    mine: list[Cost],
    plain: list[Cost],
    large: Example,
    words: str,
    what: str,
) -> Finding | None:
    small, big = (max(getattr(cost, what), 1) for cost in mine)
    least, most = (max(getattr(cost, what), 1) for cost in plain)
    if what == "operators" and big < FEW:
        return None
    grown, usual = math.log(big / small), math.log(most / least)
    if grown <= usual + POWER * math.log(SCALE) or big < TIMES * most:
        return None
    unit = "numbers written" if what == "numbers" else "operators run"
    return subject.finding(
        RULE,
        example=large,
        at=f"{unit} by backward, as {words} grows",
        expected=f"{most / least:.3g} times as many, as forward and its plain gradient together",
        got=f"{big / small:.3g} times as many: {big} where plain PyTorch has {most}",
        fix="write the product with the Jacobian, with operators over whole tensors",
    )
