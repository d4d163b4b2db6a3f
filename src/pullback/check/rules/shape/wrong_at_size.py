"""Gradients must be right at every size that forward accepts.

What it checks
    Each size of the example in turn as 1, 2, 3, odd, a power of two and one more than that, equal
    sizes together; all sizes at once; sizes that are equal by chance as different ones.

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

from pullback.check.inputs.shapes import blocks_of, sizes_of
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="S301", name="wrong-at-size", group="shape", profile="quick")

FIX = "derive every size in backward from the shapes of the saved tensors, and mask the last block"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong at another size."""
    start = subject.small
    yield from reported(subject, RULE, trials(subject, "sizes", sizes_of(start)), FIX)
    yield from reported(subject, RULE, trials(subject, "blocks", blocks_of(start)), FIX)
