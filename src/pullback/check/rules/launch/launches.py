"""Results of kernels, and how they are launched: again, on another stream, tuned otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, islice

import torch
from torch import Tensor

from pullback.check.findings.registered import Registered
from pullback.check.inputs.shapes import batches_of
from pullback.check.kernels.choices import on_side_stream, seen, tuner_entry, with_warps
from pullback.check.subject.conditions import DETERMINISTIC, KEEPS_INPUTS, RUNS, Condition, needs
from pullback.check.subject.elsewhere import Results, difference, results_of
from pullback.check.subject.gap import copied
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.judge.example import mapped, tensors_in

RACE = Rule("U004", "racing-kernel", "launch", profile="quick")
STREAM = Rule("U005", "wrong-on-stream", "launch", profile="quick")
TUNING = Rule("U006", "depends-on-tuning", "launch")

REPEATS = {"quick": 4, "standard": 8, "deep": 40}
ENTRIES = {"quick": 2, "standard": 4, "deep": 40}
WARPS = {"quick": (), "standard": (8, 4), "deep": (1, 2, 4, 8, 16)}
BUSY = 40_000_000  # cycles: some hundredths of a second, in which a kernel that does not wait ends

ON_GPU = Condition(
    "no argument is on a GPU",
    lambda subject: not any(t.is_cuda for t in tensors_in(subject.given.args)),
)


@needs(RACE, ON_GPU, RUNS, KEEPS_INPUTS, DETERMINISTIC)
def races(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that changes by more than rounding."""
    for example in each(chain([subject.given], islice(batches_of(subject.given), 3)), subject):
        try:
            usual = _kept(results_of(subject, example))
            for _ in each(range(REPEATS[subject.profile]), subject):
                found = difference(results_of(subject, example), usual)
                if found is not None:
                    break
            else:
                continue
        except CallError:
            continue
        yield Finding.made(
            RACE,
            inputs=example.words(subject.names),
            **found.facts(expected=", as in another run with the same numbers, up to rounding"),
            why="programs of a kernel write to one place, or read what another has yet to write: "
            "additions in another order differ in the last digits only",
            fix="let one program own each place, or add with `tl.atomic_add`",
        )
        return


@needs(STREAM, ON_GPU, RUNS, KEEPS_INPUTS)
def streams(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding where results on another stream are others."""
    example = subject.given
    usual = _kept(results_of(subject, example))
    if difference(results_of(subject, example), usual) is not None:
        yield Skip.refused(STREAM, "the same call does not give the same twice")
        return
    found = difference(_on_stream(subject), usual)
    if found is None:
        return
    yield Finding.made(
        STREAM,
        inputs=example.words(subject.names),
        **found.facts(
            expected=", as on the default stream",
            got=" on another one, which is busy making the inputs",
        ),
        why="it starts before its inputs are there: its kernels run on a stream of their own",
        fix="launch on torch.cuda.current_stream(), or let that wait for the other",
    )


def _on_stream(subject: Subject) -> Results:
    """Outputs and gradients on another stream, where inputs and cotangents come late."""
    example = subject.given
    right = example.fresh()
    late = example.fresh()

    def copy(kept: Tensor, tensor: Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(kept)

    with torch.no_grad():
        mapped(late, lambda t: t.zero_() if t.is_floating_point() else t)
    torch.cuda.synchronize()
    with on_side_stream(BUSY) as busy:
        busy()
        for kept, tensor in zip(tensors_in(right), tensors_in(late), strict=True):
            copy(kept, tensor)
        called = subject.run_with(example, late)
        outputs = tuple(output.detach().clone() for output in called.outputs)
        cotangents = subject.cotangents(called)
        given = [None if c is None else torch.zeros_like(c) for c in cotangents]
        busy()
        for wanted, empty in zip(cotangents, given, strict=True):
            if wanted is not None and empty is not None:
                copy(wanted, empty)
        grads = called.pull(given) if called.live else {}
        grads = copied(grads)
    torch.cuda.synchronize()
    return Results(outputs, grads)


@needs(TUNING, RUNS, KEEPS_INPUTS)
def choices(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first choice with which a result is another one."""
    example = subject.given
    with seen() as launched:
        usual = _kept(results_of(subject, example))
    if not launched.entries and not launched.warps:
        yield Skip(TUNING, "no Triton kernel is launched")
        return
    if difference(results_of(subject, example), usual) is not None:
        yield Skip.refused(TUNING, "the same call does not give the same twice")
        return
    for words, choice in each(_ways(subject, launched.entries, launched.warps), subject):
        try:
            with choice():
                found = difference(results_of(subject, example), usual)
        except CallError:
            continue
        if found is not None:
            yield Finding.made(
                TUNING,
                inputs=example.words(subject.names),
                **found.facts(expected=", as with what was chosen", got=f" with {words}"),
                why="what the kernel computes depends on how the work is cut into pieces",
                fix="mask the ends of blocks, and let programs share nothing they do not own",
            )
            return


Way = tuple[str, Callable[[], AbstractContextManager[None]]]


def _ways(subject: Subject, entries: int, warps: set[int]) -> Iterator[Way]:
    for number in range(min(entries, ENTRIES[subject.profile])):
        yield f"entry {number} of its tuning", lambda number=number: tuner_entry(number)  # type: ignore[misc]
    others = [count for count in WARPS[subject.profile] if warps and warps != {count}]
    for count in others[: 1 if subject.profile == "standard" else None]:
        yield f"num_warps={count}", lambda count=count: with_warps(count)  # type: ignore[misc]


def _kept(results: Results) -> Results:
    grads = copied(results.grads)
    return Results(results.outputs, grads)


RULES = (
    Registered(
        RACE,
        races,
        page="""
Results of the same call must not change by more than rounding.

What it checks
    On a GPU: the same call several times, at the example and at larger batches. Additions in
    another order (`atomic_add`) change the last digits, which is allowed; more than that is a race.

Why it matters
    Two programs that write to one place, or read what a third has yet to write, are right when the
    GPU is idle and wrong when it is full.

Fails
    tl.store(dw + cols, tl.load(dw + cols) + part)    # all programs at once

Passes
    tl.atomic_add(dw + cols, part)

Cannot see
    Races that did not show in these repeats. `--sanitize` looks for those.
""",
    ),
    Registered(
        STREAM,
        streams,
        page="""
Kernels must run on the stream that is current.

What it checks
    On a GPU: the call on another stream than the default one, which is still busy making inputs and
    cotangents: outputs and gradients are the same.

Why it matters
    Training overlaps copies, communication and computation on several streams. A kernel that is
    launched on a stream of its own reads inputs that are not there yet.

Fails
    kernel<<<blocks, threads>>>(x)                    // the default stream, whatever is current

Passes
    kernel<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(x)

Cannot see
    A kernel on another stream whose inputs happened to be there in time.
""",
    ),
    Registered(
        TUNING,
        choices,
        page="""
What a kernel computes must not depend on how it is tuned.

What it checks
    Functions that launch Triton kernels: the same call with other entries of `@triton.autotune`,
    and with another number of warps: outputs and gradients are the same up to rounding.

Why it matters
    Tuning chooses by time, on one machine and at one size. A block size whose edges are not masked,
    or an accumulator that is not reset, is then chosen on another GPU, or tomorrow.

Fails
    for start in range(0, n // BLOCK * BLOCK, BLOCK): ...    # the rest is left out

Passes
    for start in range(0, n, BLOCK): ...                     # with a mask

Cannot see
    Entries that tuning would not offer, and choices that depend on the size.
""",
    ),
)
