"""Gradients at other shapes and indices than the example's: one rule for each kind.

The functions below give the trials of a rule, each with the fix for what is wrong in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from pullback.capture.indices import is_index
from pullback.check.findings.registered import Registered
from pullback.check.inputs.arguments import Variant, indices_of
from pullback.check.inputs.shapes import (
    batches_of,
    blocks_of,
    broadcast_of,
    lower_ranks_of,
    many_of,
    numbers_by_row,
    ranks_of,
    sizes_of,
)
from pullback.check.subject.retrial import by_indices, by_shape
from pullback.check.subject.subject import ForwardRefusedError, Rule, Subject
from pullback.check.subject.trials import Tried, TriedVariant, report_trials, trial_of, trials
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.mismatch import Mismatch
from pullback.judge.tolerances import is_close

# Larger and larger, and the seconds that each may take: what grows too fast is left alone.
LADDER = ((1_500, 0.012), (12_000, 0.03))
MANY = 100_000
PAIRS = 1


def _at_sizes(subject: Subject) -> Tried:
    fix = (
        "compare with the gradient at the size of the example: every size must come from a shape, "
        "and where work goes in blocks, the last one may be partial"
    )
    for family, variants in (("sizes", sizes_of), ("blocks", blocks_of)):
        found = by_shape(subject, trials(subject, family, variants(subject.small)))
        yield by_indices(subject, found), fix
    yield trials(subject, "broadcast", _broadcast(subject)), fix
    yield trials(subject, "by rows", _by_rows(subject)), fix


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


def _by_rows(subject: Subject) -> Iterator[Example]:
    """A number as one for each row, where forward then gives what each row gives with its own."""
    for many, rows in numbers_by_row(subject.small):
        try:
            have = subject.run(many).outputs
            want = [subject.run(row).outputs for row in rows]
        except ForwardRefusedError:
            continue
        if all(o.dim() and len(o) == len(rows) for o in have) and all(
            is_close(output[k : k + 1], row[n])
            for n, output in enumerate(have)
            for k, row in enumerate(want)
            if can_differ(output)
        ):
            yield many


def _at_ranks(subject: Subject) -> Tried:
    fix = "count dimensions from the end, sum over all leading ones, or refuse the rank in forward"
    yield by_shape(subject, trials(subject, "ranks", ranks_of(subject.small))), fix
    if subject.profile == "deep":
        lower = trials(subject, "lower ranks", lower_ranks_of(subject.small))
        yield by_shape(subject, lower), fix


def _at_batches(subject: Subject) -> Tried:
    fix = "let backward treat each element of the batch alike, whatever their number"
    yield by_shape(subject, trials(subject, "batches", batches_of(subject.small))), fix


def _at_indices(subject: Subject) -> Tried:
    variants = indices_of(subject.small, subject.names, subject.target.name)
    for trial in trials(subject, "indices", variants):
        if trial.example.kind is Variant.PADDED:
            fix = "give entries that forward leaves out no gradient"
            left_out = tuple(m for m in trial.mismatches if _leaves_out(trial.example, m))
            yield [replace(trial, mismatches=left_out)], fix
        elif not trial.mismatches or trial.example.kind is Variant.IGNORED:
            fix = "give entries that forward ignores no gradient, and count only the others"
            yield [trial], fix
        elif _repeats(trial.example):
            yield (
                [trial],
                "where forward reads one place several times, add up in backward (`index_add`); "
                "where it adds several into one, give each of them that gradient (`index_select`)",
            )
        else:
            fix = "treat each index in backward as forward does, one that forward treats apart too"
            yield [_by_arguments(subject, trial)], fix


def _leaves_out(example: Example, mismatch: Mismatch) -> bool:
    """Whether forward takes nothing from the rows that a number among the arguments names.

    Another function gives a meaning to that number as an index, such as the blank of a labelling.
    """
    numbers = [arg for arg in example.args if type(arg) is int and arg >= 0]
    want = mismatch.want
    for dim in range(want.dim()):
        rows = [n for n in numbers if n < want.shape[dim]]
        if any(not bool(want.select(dim, n).any()) for n in rows) and bool(want.any()):
            return True
    return False


def _repeats(example: Example) -> bool:
    """Whether an index tensor holds one index twice."""
    return any(len(t.unique()) < t.numel() for t in tensors_in(example.args) if is_index(t))


def _by_arguments(subject: Subject, trial: TriedVariant) -> TriedVariant:
    """The trial without inputs that are wrong for another argument, at the example's indices."""
    others = trials(subject, "arguments", subject.other_arguments())
    reported_already = {mismatch.name for other in others for mismatch in other.mismatches}
    left = tuple(m for m in trial.mismatches if m.name not in reported_already)
    return replace(trial, mismatches=left)


def _among_many(subject: Subject) -> Tried:
    if subject.fails_at_base:
        return
    fix = "look at the last block, and at the type of the indices"
    yield by_shape(subject, trials(subject, "many", _large(subject))), fix


def _large(subject: Subject) -> Iterator[Example]:
    tried = 0
    for number, example in enumerate(many_of(subject.small, MANY)):
        if tried >= PAIRS:
            return
        if all(_is_cheap(subject, number, total, limit) for total, limit in LADDER):
            tried += 1
            yield example


def _is_cheap(subject: Subject, number: int, total: int, seconds: float) -> bool:
    smaller = list(many_of(subject.small, total))[number : number + 1]
    start = time.process_time()
    is_accepted = bool(smaller) and trial_of(subject, smaller[0]) is not None
    return is_accepted and time.process_time() - start < seconds


def _rule(
    code: str, name: str, tried: Callable[[Subject], Tried], page: str, *, profile: str = "quick"
) -> Registered:
    rule = Rule(code, name, "shape", profile=profile)
    return Registered(rule, partial(report_trials, rule, tried), page)


RULES = (
    _rule(
        "S301",
        "wrong-at-size",
        _at_sizes,
        """
Gradients must be right at every size that forward accepts.

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
""",
    ),
    _rule(
        "S302",
        "wrong-at-rank",
        _at_ranks,
        """
Gradients must be right at every rank that forward accepts.

What it checks
    A leading dimension more for every floating tensor or for the first alone, and two more; in the
    profile "deep" also one less, and tensors of no dimension.

Why it matters
    A backward that names its dimensions (`sum(0)`, `grad.t()`, rows and columns as for a matrix)
    is right for the rank its author had in mind; forward broadcasts and takes the others too
    (FlagGems#5392: wrong gradients and writes out of bounds for rank 3 and more).

Fails
    return grad @ w, (grad * x).sum(0)

Passes
    return grad @ w, (grad * x).sum(tuple(range(x.dim() - 1)))

Cannot see
    Ranks that forward refuses: that is its right.
""",
    ),
    _rule(
        "S303",
        "wrong-at-batch",
        _at_batches,
        """
Gradients must be right for batches of every size.

What it checks
    The leading size of the first tensor as 1, 2, 7, 40 and 130, and what follows it.

Why it matters
    A gradient may be divided by a batch that the example did not have, take only the first element
    of it, or fail beyond an internal step (mmcv#563: batches above `im2col_step` = 32;
    TransformerEngine#3216: wrong only for a batch of two or more).

Fails
    return grad[0] * w  # for a batch of one

Passes
    return grad * w

Cannot see
    Batches larger than those tried.
""",
    ),
    _rule(
        "S306",
        "repeated-indices",
        _at_indices,
        """
Gradients must be right for every index, and where indices repeat.

What it checks
    Index tensors and labels that go down to 0, hold each index twice, or one index only, and, where
    forward takes it, the -100 that PyTorch's losses ignore.
    What is called an order or a permutation, and is one, stays one.

Why it matters
    What is read several times gets the sum of the gradients: `scatter` in the place of
    `scatter_add` keeps the last one only (cudnn-frontend#385). A label that forward ignores is 0 as
    often as not.

Fails
    out[index] = grad

Passes
    out.index_add_(0, index, grad)

Cannot see
    Indices beyond the largest one of the example. A backward that raises at the label -100: many a
    sound loss takes it in forward by PyTorch's default only.
""",
    ),
    _rule(
        "S308",
        "wrong-among-many",
        _among_many,
        """
No entry of a gradient may be wrong among very many.

What it checks
    One size so large that the largest input has about 100,000 elements, judged once, every entry.

Why it matters
    A kernel's last block, an index that overflows, a row that is never written: one wrong entry
    among 100,000 is invisible to random directions (`gradcheck(fast_mode=True)` misses a flipped
    sign in one of 1000 entries every time).

Fails
    out[: n // 1024 * 1024] = grad[: n // 1024 * 1024] * w

Passes
    out = grad * w

Cannot see
    Sizes beyond 100,000 elements, and functions whose cost grows too fast to try.
""",
        profile="standard",
    ),
)
