"""What a function does to the memory around its tensors: it writes there, or reads from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

import torch

from pullback.check.findings.explaining import COMPARING, Cause
from pullback.check.findings.registered import Registered
from pullback.check.kernels.guards import MemoryGuards, Touched
from pullback.check.kernels.sizes import odd_sizes
from pullback.check.subject.conditions import KEEPS_INPUTS, RUNS, needs
from pullback.check.subject.elsewhere import Results, difference
from pullback.check.subject.gap import Gap
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.judge.example import Example, mapped

WRITE = Rule("U002", "out-of-bounds-write", "bounds", profile="quick")
READ = Rule("U003", "out-of-bounds-read", "bounds", profile="quick")

COUNT = {"quick": 2, "standard": 4, "deep": 40}
SINGLY = 12  # tensors of which one after the other is asked whether it is read beyond its end


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """One call between guards: what came of it, and what was written around its tensors."""

    results: Results
    in_forward: tuple[Touched, ...]
    in_backward: tuple[Touched, ...]
    names: tuple[str, ...]  # of the tensors that have guards


def watched_call(
    subject: Subject, example: Example, spoils: Callable[[int], bool] = lambda number: False
) -> GuardedCall:
    """One call and its backward between guards; `spoils` says which of these hold NaN."""
    guards = MemoryGuards(spoils)
    given = list(example.fresh())
    for i, name in zip(range(len(given)), subject.names, strict=False):
        given[i] = mapped(given[i], lambda t, name=name: guards.put(t, f"`{name}`"))  # type: ignore[misc]
    with guards:
        called = subject.run_with(example, tuple(given))
    _settle()
    outputs = tuple(output.detach().clone() for output in called.outputs)
    in_forward = tuple(guards.touched())
    grads = {}
    if called.live:
        cotangents = [
            None if c is None else guards.put(c, f"the cotangent of output {k}")
            for k, c in enumerate(subject.cotangents(called))
        ]
        with guards:
            grads = called.pull(cotangents)
        _settle()
    later = tuple(one for one in guards.touched() if one not in in_forward)
    names = tuple(one.what for one in guards.made)
    return GuardedCall(Results(outputs, grads), in_forward, later, names)


def _settle() -> None:
    """Wait for the GPU: what a kernel writes may come late."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _calls(subject: Subject) -> Iterator[tuple[Example, GuardedCall]]:
    """The examples that forward takes, each with a call between guards."""
    done = 0
    for example in each(chain([subject.given], odd_sizes(subject)), subject):
        with suppress(CallError):
            yield example, watched_call(subject, example)
            done += 1
        if done > COUNT[subject.profile]:
            return


@needs(WRITE, RUNS, KEEPS_INPUTS)
def writes(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first element that is written outside of a tensor."""
    for example, found in _calls(subject):
        for phase, touched in (("forward", found.in_forward), ("backward", found.in_backward)):
            for one in touched:
                yield Finding.made(  # to write a program that shows it would be to do it again
                    WRITE,
                    inputs=example.words(subject.names),
                    at=str(one),
                    expected="memory outside of a tensor left as it is",
                    got=f"{_short(one.number)} written there by {phase}",
                    why="a store reaches past the tensor: what lies there belongs to another one",
                    fix="mask the store by the sizes of the tensor that it writes",
                )
                return


def _short(number: object) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


@needs(READ, RUNS, KEEPS_INPUTS)
def reads(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that depends on what stands around a tensor."""
    for example, usual in _calls(subject):
        try:
            found = _unlike(subject, example, usual, lambda number: True)
            if found is None:
                continue
            if _unlike(subject, example, usual, lambda number: False) is not None:
                yield Skip.refused(READ, "the same call does not give the same twice")
                return
            which = _which(subject, example, usual)
        except CallError:
            continue
        yield Finding.made(
            READ,
            inputs=example.words(subject.names),
            at=found.at.then(f", with NaN around {which}"),
            expected="one number, whatever stands around a tensor in memory",
            got=found.got.then(f" where that is NaN, {found.expected} where it is near one"),
            why="a load reaches past the tensor, and what it gets is used",
            fix="mask the load by the sizes of the tensor, with `other=` for what is outside",
        )
        return


def _unlike(
    subject: Subject, example: Example, usual: GuardedCall, spoils: Callable[[int], bool]
) -> Gap | None:
    return difference(watched_call(subject, example, spoils).results, usual.results)


def _which(subject: Subject, example: Example, usual: GuardedCall) -> str:
    """The tensor that is read beyond its end, where it is one alone."""
    for number, name in islice(enumerate(usual.names), SINGLY):
        if _unlike(subject, example, usual, lambda i, n=number: i == n) is not None:  # type: ignore[misc]
            return name
    return "the tensors"


RULES = (
    Registered(
        WRITE,
        writes,
        explains=(Cause(COMPARING, "it writes outside of its tensors", rank=5),),
        page="""
A function must not write outside of its tensors.

What it checks
    Inputs, cotangents and what PyTorch makes for the function lie in the middle of larger pieces of
    memory, whose numbers are known: after forward and after backward they are still there. At the
    example, and at sizes that are no multiple of any block (1, 3, 17, 33, 127, 129; in the deep
    profile 1000 and 4097).

Why it matters
    A block that is longer than the row writes into the next tensor, or into nothing: results are
    right in every test, and another layer's are not, somewhere, some day.

Fails
    tl.store(out + offsets, y)                        # the last block is longer than `out`

Passes
    tl.store(out + offsets, y, mask=offsets < n)

Cannot see
    Writes far beyond a tensor, or from one of its rows into the next, which are wrong results.
    Memory that a kernel or NumPy allocates by itself.
""",
    ),
    Registered(
        READ,
        reads,
        explains=(Cause(COMPARING, "it reads outside of its tensors", rank=6),),
        page="""
Results must not depend on what stands around a tensor in memory.

What it checks
    Inputs, cotangents and what PyTorch makes for the function lie in the middle of larger pieces of
    memory: outputs and gradients are the same where these hold NaN and where they hold numbers near
    one. At the example, and at sizes that are no multiple of any block.

Why it matters
    A load without a mask gets what lies there, mostly zeros: the sum of a row is right in every
    test, and wrong in a model, where the neighbour is a tensor of another layer.

Fails
    x = tl.load(row + offsets)                        # the last block is longer than the row

Passes
    x = tl.load(row + offsets, mask=offsets < n, other=0.0)

Cannot see
    What is read and not used. Reads from one row of a tensor into its next one, which are wrong
    results. Memory that a kernel or NumPy allocates by itself.
""",
    ),
)
