"""Repros of wrong gradients: against the slope of forward, a number, another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Number, Value
from pullback.check.repro.context import Repro, ReproContext, indented, index_code, text_of
from pullback.check.repro.retold import of_mismatch
from pullback.check.repro.trying import executed
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.run import copies_of
from pullback.judge.tolerances import SHOWN, SLOPE_SHOWN, Tolerance

DIRECTIONS = 8  # random cotangents that a repro tries, beside ones

_SAID = 'f"expected {{{}:.6g}}, got {{got:.6g}}"'  # the digits that a finding has


def against_slope(context: ReproContext) -> Repro | str:
    """The gradient against the slope of forward, in float64."""
    mismatch = _mismatch_of(context)
    if mismatch is None or mismatch.index is None:
        return ""
    if context.example.args[mismatch.position].dtype != torch.float64:
        return ""
    name = context.names[mismatch.position]
    at = index_code(mismatch.index)
    text = text_of(
        context.settings(),
        context.weights(),
        _loss(context, name),
        f"loss({name}).backward()",
        f"got = 0.0 if {name}.grad is None else {name}.grad{at}",
        f"step = torch.zeros_like({name})",
        f"step{at or '[()]'} = 1e-6",
        f"slope = (loss({name} + step) - loss({name} - step)) / 2e-6",
        f"assert abs(got - slope) <= 1e-4 * abs(slope) + 1e-5, {_SAID.format('slope')}",
    )
    found = executed(text, context)[1].get("slope")
    return Repro(text, of_mismatch(mismatch)) if _is_near(found, mismatch.expected) else ""


def along(context: ReproContext) -> str:
    """The gradient against the slope of forward along a direction, on both sides of which it is
    the same: where no single entry shows the fault.
    """
    if not context.name or context.example.args[context.position].dtype != torch.float64:
        return ""
    name = context.names[context.position]
    drawn = f"torch.randn({name}.shape, dtype={name}.dtype, generator=torch.Generator()"
    steps = [f"torch.ones_like({name})"]
    steps += [f"{drawn}.manual_seed({seed}))" for seed in range(DIRECTIONS)]
    uneven = [f"g = {context.each('0.37 * g', 'g')}"]  # such as no short fraction is
    for step, more in product(steps, ([], uneven)):
        text = text_of(
            context.settings(),
            context.weights(),
            more,
            _loss(context, name),
            f"loss({name}).backward()",
            f"step = {step}",
            f"got = 0.0 if {name}.grad is None else ({name}.grad * step).sum()",
            f"right = (loss({name} + 1e-6 * step) - loss({name})) / 1e-6",
            f"left = (loss({name}) - loss({name} - 1e-6 * step)) / 1e-6",
            'assert abs(got - left) <= 1e-4 * abs(left) + 1e-5, f"{got=}, {left=}, {right=}"',
        )
        error, made = executed(text, context)
        if not isinstance(error, AssertionError):
            continue
        if _is_near(made["left"], float(made["right"]), SLOPE_SHOWN):
            return text
    return ""


def of_number(context: ReproContext) -> Repro | str:
    """The gradient against the number that it must be."""
    mismatch = _mismatch_of(context)
    if mismatch is None:
        return ""
    index, want = mismatch.index, mismatch.want
    index = index_of(int(want.abs().argmax()), want.shape) if index is None else index
    name, at = context.names[mismatch.position], index_code(index)
    if name not in context.leaves:
        return ""
    expected = mismatch.want[index].item() if mismatch.index is None else mismatch.expected
    if expected != expected:
        return ""
    size = max(abs(expected), 1e-6)
    limit = size * (
        1e-2 if context.example.args[mismatch.position].dtype != torch.float64 else 1e-4
    )
    text = text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"got = {context.pull()}[{context.leaves.index(name)}]{at}",
        f"expected = {expected:.6g}  # forward, differentiated",
        f"assert abs(got - expected) <= {limit:.1e}, {_SAID.format('expected')}",
    )
    return Repro(text, of_mismatch(mismatch))


def as_reported(context: ReproContext) -> str:
    """The gradient against what the finding says, where the call gives what the finding got."""
    want, have = (_real(fact) for fact in (context.about.expected, context.about.got))
    name = context.names[context.position] if context.name else ""
    if want is None or have is None or name not in context.leaves:
        return ""
    text = text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"got = {context.pull()}[{context.leaves.index(name)}]{context.entry}",
        f"expected = {want:.6g}  # forward, differentiated",
        f"assert abs(got - expected) <= {1e-2 * abs(want) + 1e-6:.1e}, {_SAID.format('expected')}",
    )
    got = executed(text, context)[1].get("got")
    is_same = isinstance(got, Tensor) and got.numel() == 1 and f"{float(got):.4g}" == f"{have:.4g}"
    return text if is_same else ""


def _real(fact: object) -> float | None:
    """The number of a fact, where it is a real one."""
    value: Value = fact.value if isinstance(fact, Number) else None
    return None if isinstance(value, complex) else value


# ---- precision ----


def by_float64(context: ReproContext, weights: Sequence[str] = ()) -> str:
    """The gradient in a low dtype against that in float64, at the same values."""
    if not context.name:
        return ""
    which = context.leaves.index(context.names[context.position])
    eps = torch.finfo(context.example.args[context.position].dtype).eps
    wide = ", ".join(f"{name}.double()" for name in context.floats)
    return text_of(
        gradient_lines(context, weights=weights or context.weights()),
        f"got = gradients({', '.join(context.floats)})[{which}].double()",
        f"expected = gradients({wide})[{which}]",
        f"limit = {20 * eps:.2g} * expected.abs().max()  # 20 roundings",
        'assert (got - expected).abs().max() <= limit, f"{got=}, {expected=}"',
    )


def gradient_lines(
    context: ReproContext, *, weights: Sequence[str], with_outputs: bool = False
) -> list[str]:
    """The lines that define `gradients`, a function of the arguments that can have one.

    `weights` are the lines that make the cotangents.
    """
    outputs = [context.output(i) for i in context.used] if with_outputs else []
    returned = [*outputs, f"*{_cast_pull(context)}"]
    body = [
        *(f"{name} = {name}.detach().requires_grad_()" for name in context.leaves),
        *context.done(),
        f"return [{', '.join(returned)}]",
    ]
    settings = [*context.settings(leaves=False), *weights]
    return [*settings, "", f"def gradients({', '.join(context.floats)}):", *indented(body), ""]


def _cast_pull(context: ReproContext) -> str:
    """The gradients of a call, the cotangents in the dtype of its outputs."""
    if context.is_one:
        return context.pull(g="g.to(out.dtype)")
    pairs = enumerate(context.used)
    cast = ", ".join(f"g[{k}].to({context.output(i)}.dtype)" for k, i in pairs)
    return context.pull(g=f"[{cast}]")


# ---- parts ----


def _mismatch_of(context: ReproContext) -> Mismatch | None:
    """What is wrong with the gradient that the finding names, for the cotangents of the context."""
    run = context.subject.run(context.example, needs=context.needed)
    given: list[Tensor | None] = [None] * len(run.outputs)
    for i, cotangent in zip(context.used, context.cotangents(), strict=True):
        given[i] = cotangent
    found = context.subject.mismatches(run, given, run.pull(copies_of(given)))
    return next((m for m in found if m.name == context.name), None)


def _loss(context: ReproContext, name: str) -> list[str]:
    body = indented([*context.done(), f"return {context.total}"])
    return ["", f"def loss({name}):", *body, ""]


def _is_near(found: Any, expected: complex | float | None, near: Tolerance = SHOWN) -> bool:
    if not isinstance(found, Tensor) or expected is None:
        return False
    return near.is_near(found.item(), expected)
