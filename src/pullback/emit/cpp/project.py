"""A program that uses an emitted op without Python: a CMake file and a small `main.cpp`.

The program compares what the op gives with sums that were recorded from the original program when
the files were written. It makes its inputs by itself, the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.emit.cpp.body import wrapped_statement
from pullback.emit.cpp.plain_text import written
from pullback.emit.cpp.signature import NAMESPACE, CppFunction
from pullback.emit.cpp.values import DTYPES, literal
from pullback.emit.filling import template_text
from pullback.graph.cost import is_random
from pullback.judge.comparison import aside
from pullback.judge.observed import given_to
from pullback.judge.tensor_specs import TensorSpec, drawn_like
from pullback.judge.tolerances import RECORDED, RECORDED_AT_ZERO

Sums = tuple[float, float, float]
"""Two sums over a tensor, and how far both together may be off."""

GOLDEN_STEP = 0.6180339887498949
"""Multiples of this, without their whole parts, lie evenly between 0 and 1."""


def cmake_text(function: CppFunction, standard: int) -> str:
    """The CMake file."""
    return template_text("CMakeLists.txt", name=function.name, op=function.op, standard=standard)


def main_text(function: CppFunction) -> str:
    """A program that calls the op, runs backward, and compares what came of it."""
    sums, why = _recorded(function)
    names = _names(function)
    values = {one.name: written(one.value) for one in function.plain}
    smooth, wanted = _smooth(function), _differentiated(function)
    chosen = [names[place] for place in smooth]
    shown = [
        (place, _shown(f"grad_{name}", f"gradients[{place}]", sums))
        for place, (_, name) in enumerate(wanted)
        if f"grad_{name}" in sums or not sums
    ]
    return template_text(
        "main.cpp",
        namespace=NAMESPACE,
        op=function.op,
        golden_step=GOLDEN_STEP,
        why=why,
        inputs=[*_inputs(function)],
        result=function.result,
        signature=function.signature,
        bound=f"[{', '.join(names)}]" if len(names) > 1 else "out",
        passed=", ".join(values.get(name, name) for name in function.parameters),
        outputs=[_shown(name, name, sums) for name in names],
        is_pulled=bool(smooth and wanted),
        smooth=", ".join(chosen),
        wanted=", ".join(name for _, name in wanted),
        ones=", ".join(f"at::ones_like({name})" for name in chosen),
        pulled=shown,
    )


def _inputs(function: CppFunction) -> Iterator[str]:
    """The lines that make the inputs."""
    pairs = zip(function.subject.captured.inputs, function.subject.specs, strict=True)
    given = [(one, like) for one, like in pairs if one.is_given]
    changed = {function.parameters[place] for place in function.changed}
    for (one, like), name in zip(given, function.tensors, strict=True):
        needs = one.needs and name not in changed
        yield from wrapped_statement(
            f"  auto {name} = {_made(like)}{'.requires_grad_()' * needs};", ""
        )
        if one.needs and name in changed:
            yield f"  {name} = {name}.requires_grad_().clone();  // a leaf must not be changed"


def _names(function: CppFunction) -> list[str]:
    count = len(function.aliases)
    return [f"out{i}" for i in range(count)] if count > 1 else ["out"]


def _shown(name: str, text: str, sums: dict[str, Sums]) -> str:
    if name not in sums:
        return f'  show("{name}", {text});'
    return f'  compare("{name}", {text}, {", ".join(map(literal, sums[name]))});'


def _smooth(function: CppFunction) -> list[int]:
    """The places of the outputs that have a gradient."""
    returned = [o for o in function.subject.captured.outputs if o.returned]
    return [place for place, o in enumerate(returned) if o.differentiable and o.used]


def _differentiated(function: CppFunction) -> list[tuple[int, str]]:
    """The inputs that are differentiated by: their places in the capture, and their names."""
    inputs = function.subject.captured.inputs
    changed = {function.parameters[place] for place in function.changed}
    given = [place for place, one in enumerate(inputs) if one.is_given]
    pairs = zip(given, function.tensors, strict=True)
    return [(place, name) for place, name in pairs if inputs[place].needs and name not in changed]


# ---- what the program gives ----


def _recorded(function: CppFunction) -> tuple[dict[str, Sums], str]:
    """The sums over each result, by its name; or why there are none."""
    captured, specs = function.subject.captured, function.subject.specs
    if any(is_random(node) for node in captured.joint.graph.nodes):
        return {}, "the op draws random numbers"
    held = [like for one, like in zip(captured.inputs, specs, strict=True) if one.kind == "closure"]
    if any(like.values is None for like in held):
        return {}, "it depends on a large tensor from outside the program"
    try:
        with aside():
            found = _results(function)
    except Exception:  # whatever it is: the program does not do with these inputs
        return {}, "the program does not run with these inputs"
    if not all(math.isfinite(number) for row in found.values() for number in row):
        return {}, "the program gives numbers that are not finite"
    return found, ""


def _results(function: CppFunction) -> dict[str, Sums]:
    subject, comparison = function.subject, function.subject.comparison
    pairs = zip(subject.captured.inputs, subject.specs, strict=True)
    row = [_like(like) if one.tensor is None else one.tensor for one, like in pairs]
    given, leaves = given_to(row, comparison.wanted)
    outputs = comparison.of_arguments(subject.call)(given)
    found = {name: _sums(y) for name, y in zip(_names(function), outputs, strict=True)}
    smooth = [outputs[place] for place in _smooth(function)]
    wanted = _differentiated(function)
    if smooth and wanted:
        ones = [torch.ones_like(y) for y in smooth]
        needing = [place for place, one in enumerate(subject.captured.inputs) if one.needs]
        inputs = [leaves[needing.index(place)] for place, _ in wanted]
        gradients = torch.autograd.grad(smooth, inputs, ones, allow_unused=True)
        rows = zip(wanted, gradients, strict=True)
        found |= {f"grad_{name}": _sums(g) for (_, name), g in rows if g is not None}
    return found


def _sums(tensor: Tensor) -> Sums:
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor
    flat = real.detach().to("cpu", torch.float64).flatten()
    weighted = flat * _spread(flat.shape, 0.5, 1.5)
    bound = RECORDED.get(tensor.dtype, 0.0) * (float(flat.abs().sum()) + RECORDED_AT_ZERO)
    return float(flat.sum()), float(weighted.sum()), bound


# ---- inputs, here and there ----


def _spread(shape: torch.Size | tuple[int, ...], low: float, high: float) -> Tensor:
    steps = torch.arange(math.prod(shape), dtype=torch.float64) * GOLDEN_STEP
    return ((steps - steps.floor()) * (high - low) + low).reshape(shape)


def _like(like: TensorSpec) -> Tensor:
    """The input that the program in C++ makes."""
    if like.values is not None:
        return drawn_like(like)
    low, high = float(like.low), float(like.high)
    if like.dtype.is_complex:
        made = torch.complex(_spread(like.shape, low, high), _spread(like.shape, high, low))
    elif like.dtype.is_floating_point:
        made = _spread(like.shape, low, high)
    else:
        made = _spread(like.shape, low, high + 1).floor()
    return made.to(device=like.device, dtype=like.dtype)


def _made(like: TensorSpec) -> str:
    """A tensor like that of the examples: its values if they are few, else others between them."""
    sizes, dtype = f"{{{', '.join(map(str, like.shape))}}}", DTYPES[like.dtype]
    if like.values is not None:
        flat = drawn_like(like).flatten()
        kind = "c10::complex<double>" if like.dtype.is_complex else "double"
        values = flat.tolist() if like.dtype.is_complex else flat.double().tolist()
        row = f"std::vector<{kind}>{{{', '.join(map(literal, values))}}}"
        return f"at::tensor({row}).to({dtype}).reshape({sizes})"
    low, high = literal(float(like.low)), literal(float(like.high))
    if like.dtype.is_complex:
        parts = f"spread({sizes}, {low}, {high}), spread({sizes}, {high}, {low})"
        return f"at::complex({parts}).to({dtype})"
    if like.dtype.is_floating_point:
        return f"spread({sizes}, {low}, {high}).to({dtype})"
    return f"spread({sizes}, {low}, {high} + 1).floor().to({dtype})"
