"""Arguments that do not fit together must be refused in forward, not later or never.

What it checks
    One tensor at a time gets its last two dimensions exchanged. Where forward accepts it, backward
    must give the gradients that forward implies. And where two inputs share a size, each is made
    shorter in turn: a function that accepts both, and each time leaves the surplus of the other
    out, cuts off data without a word.

Why it matters
    A mismatch that forward lets through shows as an error far from its cause, in backward, or
    never: the last samples of every batch are dropped.

Fails
    for row, weight in zip(x, weights): ...

Passes
    for row, weight in zip(x, weights, strict=True): ...

Cannot see
    Values that make no sense, such as a negative length, unless forward says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.findings.facts import at_worst
from pullback.check.repro.context import ReproContext, indented, text_of
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject, each
from pullback.check.subject.trials import trials
from pullback.judge.example import Example, tensors_in

RULE = Rule("I001", "bad-input", "input", Severity.FRAGILE, "quick")

FIX = "compare the shapes in forward, and raise where they do not fit"
BEYOND = "compare the indices with the size in forward, and raise where they are beyond it"


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first misfit that forward lets through."""
    if subject.wrong_names:
        yield Skip(RULE, "the gradient is wrong at the example already")
        return
    for trial in trials(subject, "misfits", _misfits(subject.small)):
        wrong = trial.mismatches[0] if trial.mismatches else None
        if wrong is None:
            continue  # an error in backward is loud, and for arguments that make no sense
        yield subject.finding(
            RULE,
            example=trial.example,
            at=at_worst(wrong),
            expected="an error in forward, or the gradients that forward implies",
            got="other gradients",
            fix=BEYOND if _is_beyond(subject.small, trial.example) else FIX,
        )
        return
    yield from _cut_off(subject)


def _misfits(example: Example) -> Iterator[Example]:
    """One tensor at a time with its last two dimensions exchanged."""
    if len(example.tensors) < 2:
        return
    for i in example.tensors:
        tensor = example.args[i]
        if tensor.dim() >= 2 and tensor.shape[-1] != tensor.shape[-2]:
            turned = tensor.transpose(-1, -2).contiguous()
            yield example.put(i, turned, f"argument {i} with its last dimensions exchanged")


def _is_beyond(usual: Example, misfit: Example) -> bool:
    """Whether an index is as large as a size of the misfit, and smaller than it usually is."""
    sizes = [
        (old, new)
        for i in usual.tensors
        for old, new in zip(usual.args[i].shape, misfit.args[i].shape, strict=True)
    ]
    tops = [int(t.max()) for t in tensors_in(misfit.args) if is_index(t) and t.numel()]
    return any(new <= top < old for top in tops for old, new in sizes)


def _cut_off(subject: Subject) -> Iterator[Finding]:
    """Two inputs that share a size, each shorter in turn, and the surplus ignored both times."""
    example = subject.small
    usual = subject.pull(example)
    for one, here, two, there in each(_shared(example), subject):
        first = _surplus(subject, example, short=(one, here), long=(two, there), usual=usual)
        if not first or not _surplus(
            subject, example, short=(two, there), long=(one, here), usual=usual
        ):
            continue
        names = subject.names
        size = example.args[one].shape[here]
        yield subject.finding(
            RULE,
            example=example.put(one, _shorter(example.args[one], here), f"`{names[one]}` shorter"),
            at=f"size {size} of `{names[one]}` and of `{names[two]}`",
            expected="an error where they differ",
            got=f"a result that leaves out the surplus of `{names[two]}`",
            fix="compare the sizes in forward, and raise where they differ",
        )
        return


def _shared(example: Example) -> Iterator[tuple[int, int, int, int]]:
    """Pairs of inputs that require grad, with a dimension of the same size above two in each."""
    needs = sorted(example.needs)
    for one in needs:
        for two in needs:
            if one >= two:
                continue
            for here, size in enumerate(example.args[one].shape):
                for there, other in enumerate(example.args[two].shape):
                    if size == other and size > 2:
                        yield one, here, two, there


def _surplus(
    subject: Subject,
    example: Example,
    *,
    short: tuple[int, int],
    long: tuple[int, int],
    usual: dict[str, Tensor | None],
) -> bool:
    """Whether the last slice of the longer input counts no more, once the other is shorter."""
    position, dim = short
    other, along = long
    name = subject.names[other]
    before = usual.get(name)
    if before is None or not bool((_last(before, along) != 0).any()):
        return False
    variant = example.put(position, _shorter(example.args[position], dim), "shorter")
    try:
        after = subject.pull(variant).get(name)
    except CallError:
        return False
    if after is None or after.shape != before.shape or not bool((after != 0).any()):
        return False
    return not bool((_last(after, along) != 0).any())


def _shorter(tensor: Tensor, dim: int) -> Tensor:
    return tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()


def _last(tensor: Tensor, dim: int) -> Tensor:
    return tensor.narrow(dim, tensor.shape[dim] - 1, 1)


def _accepted(context: ReproContext) -> str:
    """Arguments that do not fit must be refused."""
    return text_of(
        context.settings(leaves=False),
        "try:",
        indented(context.done()),
        "except Exception:",
        "    pass",
        "else:",
        '    raise AssertionError("arguments that do not fit gave a result")',
    )


REPROS = (_accepted,)
