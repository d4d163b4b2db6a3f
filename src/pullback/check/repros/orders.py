"""Repros of wrong second derivatives and of wrong tangents."""

from __future__ import annotations

import torch

from pullback.check.repros.scene import Scene, indented, text_of
from pullback.check.run import cotangent_of
from pullback.check.spelling import spelled


def second(scene: Scene) -> str:
    """The second derivative against the slope of the first one, in float64."""
    name = scene.named(r"with respect to `([^`]+)`")
    if not name and "the cotangent" not in scene.finding.at:
        return ""
    number = int(scene.said(r"the cotangent of output (\d+)") or 0)
    source = name or "h"
    like = scene.example.args[scene.names.index(name)] if name else scene.run.outputs[number]
    if like.dtype not in (torch.float64, torch.complex128):
        return ""
    at = scene.said(r"at (\[[\d, ]*\])").replace("[]", "")
    real = ".real" if like.is_complex() else ""
    cotangents = scene.joined(
        "h" if not name and i == number else f"g[{k}]" for k, i in enumerate(scene.used)
    )
    grads = scene.pull(g=cotangents if not name else "g", options="create_graph=True")
    body = [
        *scene.done(),
        f"first = {grads}",
        "return sum((a * b.conj()).sum().real for a, b in zip(first, weights))",
    ]
    if not any(arg.is_complex() for arg in scene.run.leaves.values()):
        body[-1] = "return sum((a * b).sum() for a, b in zip(first, weights))"
    which = "g" if scene.is_one else f"g[{scene.used.index(number)}]"
    return text_of(
        scene.settings(),
        scene.weights(),
        [] if name else [f"h = {which}.clone().requires_grad_()"],
        f"weights = [{', '.join(_weights(scene))}]",
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


def _weights(scene: Scene, draw: int = 500) -> list[str]:
    """The weights of the first derivatives."""
    found: list[str] = []
    for name in scene.leaves:
        arg = scene.example.args[scene.names.index(name)]
        weight = cotangent_of(arg, draw + len(found))
        found.append(spelled(weight) if arg.numel() <= 32 else f"torch.ones_like({name})")
    return found


def hessian(scene: Scene) -> str:
    """The Hessian along two directions, in both orders."""
    leaves = ", ".join(scene.leaves)
    return text_of(
        scene.settings(),
        scene.weights(),
        f"u = [{', '.join(_weights(scene, 700))}]",
        f"v = [{', '.join(_weights(scene, 701))}]",
        scene.done(),
        f"first = {scene.pull(options='create_graph=True')}",
        "",
        "def along(u, v):",
        f"    found = torch.autograd.grad(first, [{leaves}], u, retain_graph=True, "
        "materialize_grads=True)",
        "    return sum((a * b).sum() for a, b in zip(found, v))",
        "",
        "got, expected = along(u, v), along(v, u)",
        'assert abs(got - expected) <= 1e-10 * abs(expected), f"{got=}, {expected=}"',
    )


# ---- forward mode ----


def tangent(scene: Scene) -> str:
    """The tangent against the slope of forward."""
    name = scene.named(r"jvp along `([^`]+)`")
    if not name or scene.example.args[scene.names.index(name)].dtype != torch.float64:
        return ""
    out = scene.output(0)
    return text_of(
        _pushing(scene, name),
        f"got = push({_drawn(scene, name)})",
        f"step = 1e-6 * {_drawn(scene, name)}",
        "",
        f"def call({name}):",
        *indented([*scene.done(), f"return {out}"]),
        "",
        f"slope = (call({name} + step) - call({name} - step)) / 2e-6",
        'assert torch.allclose(got, slope, 1e-4, 1e-5), f"{got=}, {slope=}"',
    )


def scaled_tangent(scene: Scene) -> str:
    """The tangent for a scaled direction against the scaled tangent."""
    factor = scene.said(r"for a tangent ([\d.e+-]+) times")
    if not factor or not scene.leaves:
        return ""
    direction = _drawn(scene, scene.leaves[0])
    return text_of(
        _pushing(scene, scene.leaves[0]),
        f"got, expected = push({factor} * {direction}), {factor} * push({direction})",
        'assert torch.allclose(got, expected, 1e-4, 1e-6), f"{got=}, {expected=}"',
    )


def _pushing(scene: Scene, name: str) -> list[str]:
    """The lines that define `push`: the tangent of the first output, by that of one input."""
    dual = scene.arguments.split(", ")
    dual = ["forward_ad.make_dual(" + arg + ", t)" if arg == name else arg for arg in dual]
    body = [
        "with forward_ad.dual_level():",
        *indented(scene.done(arguments=", ".join(dual))),
        f"    found = forward_ad.unpack_dual({scene.output(0)}).tangent",
        f"    return torch.zeros_like({scene.output(0)}) if found is None else found.clone()",
    ]
    head = ["from torch.autograd import forward_ad", "", *scene.settings(leaves=False)]
    return [*head, "", "def push(t):", *indented(body), ""]


def _drawn(scene: Scene, name: str) -> str:
    generator = "torch.Generator().manual_seed(0)"
    return f"torch.randn({name}.shape, dtype={name}.dtype, generator={generator})"
