"""Repros of wrong second derivatives, and what those of wrong tangents are made of."""

from __future__ import annotations

import torch

from pullback.check.findings.facts import Input, Second
from pullback.check.repro.context import Repro, ReproContext, indented, text_of
from pullback.check.repro.retold import of_slope
from pullback.check.target.spelling import spelled
from pullback.judge.run import cotangent_of


def second_slope(context: ReproContext) -> Repro | str:
    """The second derivative against the slope of the first one, in float64."""
    thing = context.about.thing
    if not isinstance(thing, Second):
        return ""
    name, number = "", 0
    if isinstance(thing.of, Input):
        name = context.code_of(thing.of)
        like = context.example.args[context.names.index(name)]
    else:
        number = thing.of.number
        like = context.run.outputs[number]
    if like.dtype not in (torch.float64, torch.complex128):
        return ""
    source, at = name or "h", context.entry
    real = ".real" if like.is_complex() else ""
    cotangents = context.joined(
        "h" if not name and i == number else f"g[{k}]" for k, i in enumerate(context.used)
    )
    grads = context.pull(g=cotangents if not name else "g", options="create_graph=True")
    body = [
        *context.done(),
        f"first = {grads}",
        "return sum((a * b.conj()).sum().real for a, b in zip(first, weights))",
    ]
    if not any(arg.is_complex() for arg in context.run.leaves.values()):
        body[-1] = "return sum((a * b).sum() for a, b in zip(first, weights))"
    which = "g" if context.is_one else f"g[{context.used.index(number)}]"
    text = text_of(
        context.settings(),
        context.weights(),
        [] if name else [f"h = {which}.clone().requires_grad_()"],
        f"weights = [{', '.join(weights_of(context))}]",
        ["", f"def total({source}):", *indented(body), ""],
        f"whole = total({source})",
        f"got = torch.autograd.grad(whole, {source}, materialize_grads=True)[0]{at}{real} "
        "if whole.requires_grad else 0.0",
        f"step = torch.zeros_like({source})",
        f"step{at or '[()]'} = 1e-6",
        f"slope = (total({source} + step) - total({source} - step)) / 2e-6",
        "assert abs(got - slope) <= 1e-4 * abs(slope) + 1e-5, "
        'f"expected {slope:.6g}, got {got:.6g}"',
    )
    return Repro(text, of_slope)


def weights_of(context: ReproContext, draw: int = 500) -> list[str]:
    """The weights of the first derivatives."""
    found: list[str] = []
    for name in context.leaves:
        arg = context.example.args[context.names.index(name)]
        weight = cotangent_of(arg, draw + len(found))
        found.append(spelled(weight) if arg.numel() <= 32 else f"torch.ones_like({name})")
    return found


# ---- forward mode ----


def push_lines(context: ReproContext, name: str) -> list[str]:
    """The lines that define `push`: the tangent of the first output, by that of one input."""
    given = context.arguments
    dual = ["forward_ad.make_dual(" + arg + ", t)" if arg == name else arg for arg in given]
    body = [
        "with forward_ad.dual_level():",
        *indented(context.done(arguments=dual)),
        f"    found = forward_ad.unpack_dual({context.output(0)}).tangent",
        f"    return torch.zeros_like({context.output(0)}) if found is None else found.clone()",
    ]
    head = ["from torch.autograd import forward_ad", "", *context.settings(leaves=False)]
    return [*head, "", "def push(t):", *indented(body), ""]


def drawn_tangent(name: str) -> str:
    """The code of a random tangent of an input."""
    generator = "torch.Generator().manual_seed(0)"
    return f"torch.randn({name}.shape, dtype={name}.dtype, generator={generator})"
