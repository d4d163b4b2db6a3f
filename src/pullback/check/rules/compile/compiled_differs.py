"""Compiled code must give what eager code gives.

What it checks
    The function runs under `torch.compile(backend="aot_eager")`, at the example, then through the
    same compiled function at other sizes and with other plain values: outputs and gradients are
    eager's. In the deep profile `inductor` runs too.

Why it matters
    A branch on `torch.compiler.is_compiling()`, a size or a value that became a constant of the
    graph, or a backward that is not the one that runs, give other numbers only where the function
    is used, not where it is tested (pytorch#193279, #184113).

Fails
    if torch.compiler.is_compiling(): return x * grad       # lacks the factor of two

Passes
    return 2 * x * grad

Cannot see
    What the compiler refuses or leaves to eager, which is no defect, and what other backends do;
    what it makes of NumPy, which is left as it is here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch.autograd import Function

from pullback.check.inputs.shapes import batches_of
from pullback.check.kernels.tuning import worked
from pullback.check.repro.context import Repro, ReproContext, compared, indented, text_of
from pullback.check.repro.retold import of_gradients
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.draws import draws
from pullback.check.subject.elsewhere import difference, results_of, wrapped
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.judge.example import Example

RULE = Rule("P001", "compiled-differs", "compile", profile="standard", wraps=True)

MANY = 400  # operators in forward and backward
EACH = 0.01  # seconds that the compiler takes for one of them
FACTOR = 0.75  # of the float arguments
SYMBOLIC = 4.0  # times as long as with fixed sizes, or more, it takes with symbolic ones


@dataclass(frozen=True, slots=True)
class CompiledBy:
    """What the call was compiled with."""

    backend: str


class _Warm(Function):
    """What is compiled once before the workers are made: the first time costs seconds."""

    @staticmethod
    def forward(ctx, x, k):  # type: ignore[no-untyped-def]
        """`x * k`."""
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        """`g * k`."""
        return g * ctx.k, None


@cache
def prepare() -> None:
    """Load the compiler, so that forked workers find it warm."""
    with suppress(Exception), _quiet():
        compiled = torch.compile(wrapped(_Warm.apply), backend="aot_eager")
        for n in (2, 3):
            compiled(torch.ones(n, requires_grad=True), 2.0).sum().backward()


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that differs."""
    if subject.target.intent.nondeterministic or draws(subject):
        yield Skip(RULE, "it draws random numbers, which a compiler may draw in another order")
        return
    if subject.writes_inputs:
        yield Skip(RULE, "forward writes into its input, which PyTorch's compiler mistraces")
        return
    # Loops are written out by the compiler.
    if subject.operators > min(MANY, (subject.deadline - worked()) / EACH):
        yield Skip.refused(RULE, "so many operators in a row take the compiler too long")
        return
    results = list(_compared(subject, "aot_eager"))
    if subject.profile == "deep" and not results:
        results = list(_compared(subject, "inductor"))
    yield from results


def _compared(subject: Subject, backend: str) -> Iterator[Finding | Skip]:
    torch.compiler.reset()
    compiled = torch.compile(wrapped(subject.target.call), backend=backend)
    is_first, start, taken = True, worked(), 0.0
    try:
        for example in each(_examples(subject), subject):
            if SYMBOLIC * taken > subject.deadline - worked():
                return  # another graph, with symbolic sizes, would take too long
            try:
                usual = results_of(subject, example)
            except CallError:
                continue
            with _quiet():
                got = results_of(subject, example, compiled)
            apart = difference(got, usual)
            if apart is not None:
                if difference(results_of(subject, example), usual) is not None:
                    yield Skip.refused(RULE, "eager mode itself does not give the same twice")
                    return
                yield subject.finding(
                    RULE,
                    example=example,
                    **apart.facts(
                        f", under torch.compile(backend={backend!r})", expected=", as in eager mode"
                    ),
                    detail=CompiledBy(backend),
                    fix="let the result depend on the arguments alone, not on who calls",
                )
                return
            if is_first:
                is_first, taken = False, worked() - start
    except CallError as refusal:
        if is_first:  # symbolic sizes alone may be refused
            yield Skip.refused(RULE, f"{backend} refuses it", refusal.raised)
    finally:
        torch.compiler.reset()


def _examples(subject: Subject) -> Iterator[Example]:
    """The example; then other leading sizes, and other plain values with them.

    The second is compiled anew, with what has changed as a symbol: one graph for the rest.
    """
    small = subject.small
    yield small
    sizes = list(islice((e for e in batches_of(small) if subject.accepts(e)), 1, 3))
    for size in sizes or [small]:
        example = _other_values(size)
        if example is not small:
            yield example if subject.accepts(example) else size


def _other_values(example: Example) -> Example:
    """The example with its float arguments changed: a value that could become a constant."""
    for i, arg in enumerate(example.args):
        if isinstance(arg, float):
            example = example.put(i, FACTOR * arg, f"{example.label}, argument {i} changed")
    return example


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log of the compiler, and without its own version of NumPy."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with torch._dynamo.config.patch(trace_numpy=False):
            yield
    finally:
        logging.disable(before)


def _compiled(context: ReproContext) -> Repro:
    """Compiled against eager."""
    is_inductor = context.about.detail.backend == "inductor"
    way = "torch.compile(call)" if is_inductor else 'torch.compile(call, backend="aot_eager")'
    floats = ", ".join(context.floats)
    outputs = ", ".join(context.output(i) for i in range(len(context.run.outputs)))
    results = [
        f"out = way({floats})",
        f"held = [t.detach().clone() for t in [{outputs}]]",
        f"return [*held, *{context.pull()}]" if context.used else "return held",
    ]
    text = text_of(
        context.settings(),
        context.weights(),
        ["", f"def call({floats}):", *indented([*context.done(), "return out"]), ""],
        ["def results(way):", *indented(results), ""],
        "wanted = results(call)",
        compared(f"results({way})", "wanted"),
    )
    return Repro(text, of_gradients(context, with_outputs=True))


REPROS = (_compiled,)
