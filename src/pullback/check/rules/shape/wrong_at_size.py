"""Gradients must be right at every size that forward accepts.

What it checks
    Each size of the example in turn as 1, 2, 3, odd, a power of two and one more than that, equal
    sizes together; all sizes at once; sizes that are equal by chance as different ones; a size of
    1 where forward broadcasts. Values that are wrong in the shapes of the example too are not held
    against a size.

Why it matters
    Kernels work in blocks and have a last, partial one; windows do not fit into short sequences; a
    square hides a transposition (fla#1140, FlashAttention#2552, native-sparse-attention-triton#27).
    Authors try one size.

Fails
    n = x.shape[0] // 4 * 4; dx[:n] = grad[:n] * w

Passes
    dx = grad * w

Cannot see
    Sizes that none of the variants has, and those beyond a few thousand elements.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.shapes import blocks_of, broadcast_of, sizes_of
from pullback.check.retrial import by_indices, by_shape
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Skip, Subject
from pullback.check.trials import reported, trials
from pullback.judge.example import Example, can_differ
from pullback.judge.tolerances import is_close

RULE = Rule(code="S301", name="wrong-at-size", group="shape", profile="quick")

FIX = (
    "compare with the gradient at the size of the example: every size must come from a shape, and "
    "where work goes in blocks, the last one may be partial"
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong at another size."""
    start = subject.small
    found = by_shape(subject, trials(subject, "sizes", sizes_of(start)))
    yield from reported(subject, RULE, by_indices(subject, found), FIX)
    found = by_shape(subject, trials(subject, "blocks", blocks_of(start)))
    yield from reported(subject, RULE, by_indices(subject, found), FIX)
    yield from reported(subject, RULE, trials(subject, "broadcast", _broadcast(subject)), FIX)


def _broadcast(subject: Subject) -> Iterator[Example]:
    """Sizes as 1 where forward gives what it gives with the 1 written out: it broadcasts."""
    for one, written in broadcast_of(subject.small):
        try:
            have, want = subject.run(one).outputs, subject.run(written).outputs
        except ForwardRefusedError:
            continue
        if len(have) == len(want) and all(
            is_close(a, b) for a, b in zip(have, want, strict=True) if can_differ(a)
        ):
            yield one
