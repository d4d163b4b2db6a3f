"""Calls in several threads must not disturb one another.

What it checks
    A backward runs in another thread than its forward. Then several threads run forward and
    backward on different inputs, one operator at a time in turns, so that every place where one
    could come between is tried. The gradients are those of single calls.

Why it matters
    Data-parallel replicas, servers and the autograd engine itself run in threads: a field of the
    class or a thread-local that is right in a test mixes the data of two users in production.

Fails
    MyFunction.work = g * w; ...; return MyFunction.work

Passes
    work = g * w; ...; return work

Cannot see
    Races inside a kernel, and state that is shared on purpose under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Gradient
from pullback.check.repro.context import Repro, ReproContext, compared, indented, text_of
from pullback.check.repro.retold import of_gradients
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.draws import draws, draws_in_backward
from pullback.check.subject.elsewhere import is_repeatable
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject, describe
from pullback.check.watching.dispatch import in_turns
from pullback.judge.example import Example, tensors_in
from pullback.judge.tolerances import is_close

RULE = Rule("Q006", "wrong-in-threads", "context", profile="quick")

THREADS = 3


class Way(Enum):
    """How threads take part in a call."""

    MOVED = "in another thread than its forward"
    TOGETHER = "while other threads run too"


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when a thread gives other gradients than a single call."""
    if subject.target.intent.nondeterministic or draws(subject) or draws_in_backward(subject):
        yield Skip(RULE, "it draws random numbers, from a generator that all threads share")
        return
    if not is_repeatable(subject):
        yield Skip.refused(RULE, "the same call does not give the same twice")
        return
    found = _moved(subject)
    if found is None:
        found = _together(subject)
    if found is not None:
        yield found


def _moved(subject: Subject) -> Finding | None:
    """Backward in another thread than forward."""
    usual = subject.pull()
    run = subject.run()
    cotangents = subject.cotangents(run)
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(run.pull(cotangents))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return _compared(subject, result[0], usual, Way.MOVED, subject.base)


def _together(subject: Subject) -> Finding | None:
    """Several threads in turns, each with inputs of its own."""
    examples = [subject.small, *(_shifted(subject.small, k) for k in range(1, THREADS))]
    examples = [example if subject.accepts(example) else subject.small for example in examples]
    usual = []
    for example in examples:
        result = in_turns([_job(subject, example)])[0]
        if isinstance(result, Exception):
            return None
        usual.append(result)
    results = in_turns([_job(subject, example) for example in examples])
    for result, expected, example in zip(results, usual, examples, strict=True):
        found = _compared(subject, result, expected, Way.TOGETHER, example)
        if found is not None:
            return found
    return None


def _job(subject: Subject, example: Example) -> Callable[[], dict[str, Tensor | None]]:
    """Forward and backward on one example, without anything that threads share."""
    needs = sorted(example.needs)
    args = example.fresh()
    writes = subject.writes_inputs
    passed = tuple(a.clone() if writes and i in example.needs else a for i, a in enumerate(args))
    cotangents = subject.cotangents(subject.run(example))

    def job() -> dict[str, Tensor | None]:
        outputs = tensors_in(subject.target.call(*passed))
        used = [
            (output, cotangent)
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if cotangent is not None and output.requires_grad
        ]
        if not used:
            return {}
        grads = torch.autograd.grad(
            [output for output, _ in used],
            [args[i] for i in needs],
            [cotangent for _, cotangent in used],
            allow_unused=True,
        )
        return {subject.names[i]: grad for i, grad in zip(needs, grads, strict=True)}

    return job


def _compared(
    subject: Subject, result: Any, usual: dict[str, Tensor | None], way: Way, example: Example
) -> Finding | None:
    if isinstance(result, Exception):
        error = getattr(result, "error", result)
        return subject.finding(
            RULE,
            example=example,
            severity=Severity.FRAGILE,
            at=f"a call, {way.value}",
            detail=way,
            expected="the gradients of a single call",
            got=describe(error),
            fix="keep what backward needs on ctx, not in a thread-local, a class or a global",
        )
    for name, got in result.items():
        expected = usual.get(name)
        if got is None or expected is None or got.shape != expected.shape:
            continue
        if is_close(got, expected, 100):
            continue
        return subject.finding(
            RULE,
            example=example,
            **gap_of(Gradient(name), got, expected).facts(f", {way.value}"),
            detail=way,
            fix="keep what backward needs on ctx, not in a thread-local, a class or a global",
        )
    return None


def _shifted(example: Example, k: int) -> Example:
    """The example with its own entries rotated and scaled a little."""
    return example.map(
        lambda t: (
            (t.flatten().roll(k).reshape(t.shape) * (1 - 0.125 * k)).contiguous()
            if t.is_floating_point() or t.is_complex()
            else t
        ),
        f"with the entries rotated by {k}",
    )


# ---- repros ----


def _in_threads(context: ReproContext) -> Repro:
    """Two threads, each forward before either backward, against one."""
    if context.about.detail is Way.MOVED:
        text = text_of(
            "from threading import Thread",
            "",
            context.settings(),
            context.weights(),
            context.done(),
            f"wanted = {context.pull()}",
            context.done(),
            "found = []",
            f"thread = Thread(target=lambda: found.extend({context.pull()}))",
            "thread.start(), thread.join()",
            "assert found",
            compared("found", "wanted"),
        )
        return Repro(text, of_gradients(context), is_loud=True)
    floats = ", ".join(context.floats)
    body = [
        f"({floats},), barrier = job",
        *(f"{name} = {name}.detach().requires_grad_()" for name in context.leaves),
        *context.done(),
        "barrier.wait(10)",
        f"return {context.pull()}",
    ]
    text = text_of(
        "from concurrent.futures import ThreadPoolExecutor",
        "from threading import Barrier",
        "",
        context.settings(),
        context.weights(),
        ["", "def work(job):", *indented(body), ""],
        f"rows = {_rows(context)}",
        "wanted = [work((row, Barrier(1))) for row in rows]",
        "barrier = Barrier(2)  # both forwards, then both backwards",
        "with ThreadPoolExecutor(2) as pool:",
        "    found = list(pool.map(work, [(row, barrier) for row in rows]))",
        "for k in range(2):",
        indented(compared("found[k]", "wanted[k]")),
    )
    return Repro(text, of_gradients(context), is_loud=True)


def _racing(context: ReproContext) -> Repro:
    """Two threads at once, many times, each turn as short as can be, against one."""
    body = [
        *(f"{name} = {name}.detach().requires_grad_()" for name in context.leaves),
        *context.done(),
        f"return {context.pull()}",
    ]
    text = text_of(
        "import sys",
        "from concurrent.futures import ThreadPoolExecutor",
        "",
        context.settings(),
        context.weights(),
        ["", f"def work({', '.join(context.floats)}):", *indented(body), ""],
        f"rows = {_rows(context)} * 500",
        "wanted = [work(*row) for row in rows[:2]]",
        "sys.setswitchinterval(1e-6)",
        "with ThreadPoolExecutor(2) as pool:",
        "    found = list(pool.map(work, *zip(*rows)))",
        "for k, grads in enumerate(found):",
        indented(compared("grads", "wanted[k % 2]")),
    )
    return Repro(text, of_gradients(context), is_loud=True)


def _rows(context: ReproContext) -> str:
    """The arguments of the two threads."""
    moved = ", ".join(f"{name}.detach().flip(0) * 0.75" for name in context.floats)
    return f"[({', '.join(context.floats)},), ({moved},)]"


REPROS = (_in_threads, _racing)
