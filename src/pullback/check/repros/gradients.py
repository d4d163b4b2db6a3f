"""Repros of wrong gradients: against the slope of forward, another dtype, another layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pullback.check.inputs.layouts import LAYOUTS
from pullback.check.mismatch import Mismatch, index_of
from pullback.check.repros.scene import (
    COMPARED,
    Scene,
    compared,
    indented,
    laid_code,
    text_of,
)
from pullback.check.repros.trying import executed
from pullback.check.run import copies_of

DIRECTIONS = 8

_SAID = 'f"expected {{{}:.6g}}, got {{got:.6g}}"'  # the digits that a finding has


def raises(scene: Scene) -> str:
    """Forward and backward: what it raises is the failure."""
    if not scene.used:
        return text_of(scene.settings(), f"{scene.done()[-1]}  # {scene.finding.got}")
    last = f"({scene.total}).backward()  # {scene.finding.got}"
    return text_of(scene.settings(), scene.weights(), scene.done(), last)


def slope(scene: Scene) -> str:
    """The gradient against the slope of forward, in float64."""
    mismatch = mismatch_of(scene)
    if mismatch is None or mismatch.index is None:
        return ""
    if scene.example.args[mismatch.position].dtype != torch.float64:
        return ""
    name = scene.names[mismatch.position]
    at = _index(mismatch.index)
    text = text_of(
        scene.settings(),
        scene.weights(),
        _loss(scene, name),
        f"loss({name}).backward()",
        f"got = 0.0 if {name}.grad is None else {name}.grad{at}",
        f"step = torch.zeros_like({name})",
        f"step{at or '[()]'} = 1e-6",
        f"slope = (loss({name} + step) - loss({name} - step)) / 2e-6",
        f"assert abs(got - slope) <= 1e-4 * abs(slope) + 1e-5, {_SAID.format('slope')}",
    )
    found = executed(text, scene)[1].get("slope")
    return text if _is_near(found, mismatch.expected) else ""


def _loss(scene: Scene, name: str) -> list[str]:
    body = indented([*scene.done(), f"return {scene.total}"])
    return ["", f"def loss({name}):", *body, ""]


def along(scene: Scene) -> str:
    """The gradient against the slope of forward along a direction, on both sides of which it is
    the same: where no single entry shows the fault.
    """
    if not scene.name or scene.example.args[scene.position].dtype != torch.float64:
        return ""
    name = scene.names[scene.position]
    drawn = f"torch.randn({name}.shape, dtype={name}.dtype, generator=torch.Generator()"
    steps = [f"torch.ones_like({name})"]
    steps += [f"{drawn}.manual_seed({seed}))" for seed in range(DIRECTIONS)]
    uneven = [f"g = {scene.each('0.37 * g', 'g')}"]  # such as no short fraction is
    for step, more in product(steps, ([], uneven)):
        text = text_of(
            scene.settings(),
            scene.weights(),
            more,
            _loss(scene, name),
            f"loss({name}).backward()",
            f"step = {step}",
            f"got = 0.0 if {name}.grad is None else ({name}.grad * step).sum()",
            f"right = (loss({name} + 1e-6 * step) - loss({name})) / 1e-6",
            f"left = (loss({name}) - loss({name} - 1e-6 * step)) / 1e-6",
            'assert abs(got - left) <= 1e-4 * abs(left) + 1e-5, f"{got=}, {left=}, {right=}"',
        )
        error, made = executed(text, scene)
        if isinstance(error, AssertionError) and _is_near(made["left"], float(made["right"]), 1e-4):
            return text
    return ""


def number(scene: Scene) -> str:
    """The gradient against the number that it must be."""
    mismatch = mismatch_of(scene)
    if mismatch is None:
        return ""
    index = mismatch.index if mismatch.index is not None else _worst(mismatch.want)
    name, at = scene.names[mismatch.position], _index(index)
    if name not in scene.leaves:
        return ""
    expected = mismatch.want[index].item() if mismatch.index is None else mismatch.expected
    if expected != expected:
        return ""
    size = max(abs(expected), 1e-6)
    limit = size * (1e-2 if scene.example.args[mismatch.position].dtype != torch.float64 else 1e-4)
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"got = {scene.pull()}[{scene.leaves.index(name)}]{at}",
        f"expected = {expected:.6g}  # forward, differentiated",
        f"assert abs(got - expected) <= {limit:.1e}, {_SAID.format('expected')}",
    )


def as_said(scene: Scene) -> str:
    """The gradient against what the finding says, where the call gives what the finding got."""
    at = scene.said(r"(?:` at |, at )(\[[\d, ]*\])").replace("[]", "")
    want, have = (_float(text) for text in (scene.finding.expected, scene.finding.got))
    name = scene.names[scene.position] if scene.name else ""
    if want is None or have is None or name not in scene.leaves:
        return ""
    text = text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"got = {scene.pull()}[{scene.leaves.index(name)}]{at}",
        f"expected = {want:.6g}  # forward, differentiated",
        f"assert abs(got - expected) <= {1e-2 * abs(want) + 1e-6:.1e}, {_SAID.format('expected')}",
    )
    got = executed(text, scene)[1].get("got")
    is_same = isinstance(got, Tensor) and got.numel() == 1 and f"{float(got):.4g}" == f"{have:.4g}"
    return text if is_same else ""


def _float(text: str) -> float | None:
    """The number that a fact begins with."""
    try:
        return float(text.partition(",")[0].partition(" ")[0])
    except ValueError:
        return None


# ---- precision ----


def precision(scene: Scene, weights: Sequence[str] = ()) -> str:
    """The gradient in a low dtype against that in float64, at the same values."""
    if not scene.name:
        return ""
    which = scene.leaves.index(scene.names[scene.position])
    eps = torch.finfo(scene.example.args[scene.position].dtype).eps
    wide = ", ".join(f"{name}.double()" for name in scene.floats)
    return text_of(
        _gradients(scene, after_weights=weights),
        f"got = gradients({', '.join(scene.floats)})[{which}].double()",
        f"expected = gradients({wide})[{which}]",
        f"limit = {20 * eps:.2g} * expected.abs().max()  # 20 roundings",
        'assert (got - expected).abs().max() <= limit, f"{got=}, {expected=}"',
    )


def summed(scene: Scene) -> str:
    """The same, for cotangents of ones: in a long sum of one sign, what is small is lost."""
    ones = [f"g = {scene.joined(_ones(scene.run.outputs[i]) for i in scene.used)}"]
    return precision(scene, ones)


def _ones(output: Tensor) -> str:
    return f"torch.ones({tuple(output.shape)}, dtype={output.dtype})"


def rounded(scene: Scene) -> str:
    """The gradient has more digits than a narrower dtype could hold."""
    if not scene.name:
        return ""
    coarse = "float32" if "float32" in scene.finding.got else "bfloat16"
    which = scene.leaves.index(scene.names[scene.position])
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"got = {scene.pull()}[{which}]",
        f"assert not torch.equal(got.to(torch.{coarse}).to(got.dtype), got), "
        f'f"every entry fits {coarse}: {{got=}}"',
    )


def mixed(scene: Scene) -> str:
    """Small entries of the gradient, for a cotangent that is large at one end."""
    end = 0 if "large at its start" in scene.finding.at else -1
    if not scene.name or not scene.is_one:
        return ""
    which = scene.leaves.index(scene.names[scene.position])
    at = _index(_numbers(scene.said(r"at \[([\d, ]*)\]")))
    wide = ", ".join(f"{name}.double()" for name in scene.floats)
    dims = range(scene.run.outputs[0].dim())
    large = [f"g.select({dim}, {end}).mul_(2.0**26)" for dim in dims]
    return text_of(
        _gradients(scene, after_weights=large),
        f"got = gradients({', '.join(scene.floats)})[{which}]{at}.double()",
        f"expected = gradients({wide})[{which}]{at}",
        'assert abs(got - expected) <= 1e-2 * abs(expected), f"{got=}, {expected=}"',
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text.strip() else ()


# ---- layouts ----


def input_layout(scene: Scene) -> str:
    """Results for the laid-out inputs against those for dense ones."""
    values = dict(zip(scene.names, scene.example.args, strict=False))
    dense = [
        name
        if values[name].is_contiguous() and not values[name].storage_offset()
        else f"{name}.clone(memory_format=torch.contiguous_format)"
        for name in scene.floats
    ]
    if dense == scene.floats:
        return ""
    laid = f"gradients({', '.join(scene.floats)})"
    return text_of(
        _gradients(scene, with_outputs=True),
        f"wanted = gradients({', '.join(dense)})",
        f"for got, expected in zip({laid}, wanted):",
        COMPARED,
    )


def _gradients(
    scene: Scene, *, with_outputs: bool = False, after_weights: Sequence[str] = ()
) -> list[str]:
    """The lines that define `gradients`, a function of the arguments that can have one."""
    outputs = [scene.output(i) for i in scene.used] if with_outputs else []
    returned = [*outputs, f"*{_cast_pull(scene)}"]
    body = [
        *(f"{name} = {name}.detach().requires_grad_()" for name in scene.leaves),
        *scene.done(),
        f"return [{', '.join(returned)}]",
    ]
    is_new = bool(after_weights) and after_weights[0].startswith("g = ")
    weights = [*([] if is_new else scene.weights()), *after_weights]
    settings = [*scene.settings(leaves=False), *weights]
    return [*settings, "", f"def gradients({', '.join(scene.floats)}):", *indented(body), ""]


def _cast_pull(scene: Scene) -> str:
    """The gradients of a call, the cotangents in the dtype of its outputs."""
    if scene.is_one:
        return scene.pull(g="g.to(out.dtype)")
    pairs = enumerate(scene.used)
    cast = ", ".join(f"g[{k}].to({scene.output(i)}.dtype)" for k, i in pairs)
    return scene.pull(g=f"[{cast}]")


def cotangent_layout(scene: Scene) -> str:
    """Gradients for a laid-out cotangent against those for a dense one."""
    return _with_cotangent(scene, is_raise=False)


def raises_for_layout(scene: Scene) -> str:
    """What backward raises for a laid-out cotangent, and not for a dense one."""
    return _with_cotangent(scene, is_raise=True)


def _with_cotangent(scene: Scene, *, is_raise: bool) -> str:
    found = [label for label in LAYOUTS if f"cotangent {label}" in scene.finding.inputs]
    if not found:
        return ""
    change = LAYOUTS[max(found, key=len)]
    laid = [change(cotangent) for cotangent in scene.cotangents()]
    codes = [
        laid_code(c if new is None else new)
        for new, c in zip(laid, scene.cotangents(), strict=True)
    ]
    dense = scene.each("g.clone(memory_format=torch.contiguous_format)", "g")
    lines = [*scene.settings(), f"g = {scene.joined(codes)}", *scene.pulling()]
    if is_raise:
        return text_of(lines, f"pull({dense})", f"pull(g)  # {scene.finding.got}")
    return text_of(lines, f"wanted = pull({dense})", compared("pull(g)", "wanted"))


# ---- the same tensor in two places ----


def twice(scene: Scene) -> str:
    """The gradient of a tensor in two places against the sum over two copies of it."""
    names = [scene.named(r"both `([^`]+)`"), scene.named(r"and `([^`]+)`")]
    if not all(names):
        return ""
    one = names[0]
    apart = scene.arguments.split(", ")
    places = [i for i, arg in enumerate(apart) if arg == one]
    if len(places) != 2:
        return ""
    apart[places[1]] = "copy"
    out = scene.outputs()
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"(got,) = torch.autograd.grad({out}, [{one}], g, materialize_grads=True)",
        f"copy = {one}.detach().clone().requires_grad_()",
        scene.done(arguments=", ".join(apart)),
        f"parts = torch.autograd.grad({out}, [{one}, copy], g, materialize_grads=True)",
        "expected = parts[0] + parts[1]",
        COMPARED.strip(),
    )


# ---- parts ----


def mismatch_of(scene: Scene) -> Mismatch | None:
    """What is wrong with the gradient that the finding names, for the cotangents of the scene."""
    run = scene.subject.run(scene.example, needs=scene.needed)
    given: list[Tensor | None] = [None] * len(run.outputs)
    for i, cotangent in zip(scene.used, scene.cotangents(), strict=True):
        given[i] = cotangent
    found = scene.subject.mismatches(run, given, run.pull(copies_of(given)))
    return next((m for m in found if m.name == scene.name), None)


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _worst(tensor: Tensor) -> tuple[int, ...]:
    return index_of(int(tensor.abs().argmax()), tensor.shape)


def _is_near(found: Any, expected: complex | float | None, share: float = 1e-5) -> bool:
    if not isinstance(found, Tensor) or expected is None:
        return False
    apart = abs(found.item() - expected)
    return bool(apart <= share * abs(expected) + 1e-6)
