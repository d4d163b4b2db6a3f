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
from pullback.graph.cost import is_random
from pullback.judge.comparison import aside
from pullback.judge.observed import given_to
from pullback.judge.tensor_specs import TensorSpec, drawn_like

Sums = tuple[float, float, float]
"""Two sums over a tensor, and how far both together may be off."""

CMAKE = """\
# {name}, and a program that uses it from C++ alone:
#
#   where="$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
#   cmake -S . -B build -DCMAKE_PREFIX_PATH="$where"
#   cmake --build build
#   ./build/{op}_main
#
cmake_minimum_required(VERSION 3.18)
project({op} CXX)
find_package(Torch REQUIRED)

# The op itself: torch.ops.load_library("build/lib{op}.so") makes it known to Python.
add_library({op} SHARED {op}.cpp)
target_link_libraries({op} PUBLIC ${{TORCH_LIBRARIES}})
set_target_properties({op} PROPERTIES CXX_STANDARD {standard} CXX_STANDARD_REQUIRED ON)

# Nothing but the registration uses the library, so the linker must be told to keep it.
add_executable({op}_main main.cpp)
target_link_libraries({op}_main PRIVATE "-Wl,--no-as-needed" {op} ${{TORCH_LIBRARIES}})
set_target_properties({op}_main PROPERTIES CXX_STANDARD {standard} CXX_STANDARD_REQUIRED ON)
"""

GOLDEN_STEP = 0.6180339887498949
"""Multiples of this, without their whole parts, lie evenly between 0 and 1."""

SPREAD = """\
// Numbers between two others, the same on every machine.
at::Tensor spread(at::IntArrayRef sizes, double low, double high) {
  const auto steps = at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.6180339887498949;
  return ((steps - steps.floor()) * (high - low) + low).reshape(sizes);
}"""

COMPARED = """\
bool is_right = true;

// Prints a result, and compares two sums over it with those that the program gave.
void compare(
    const char* name, const at::Tensor& result, double sum, double weighted, double bound) {
  const auto real = result.is_complex() ? at::view_as_real(result) : result;
  const auto flat = real.to(at::kDouble).flatten();
  const auto found = flat.sum().item<double>();
  const auto apart = std::abs(found - sum) +
      std::abs((flat * spread(flat.sizes(), 0.5, 1.5)).sum().item<double>() - weighted);
  const bool is_same = apart <= bound;
  std::cout << name << ": " << result.sizes() << " sum " << found
            << (is_same ? ", as in the program" : ", and not as in the program: ");
  if (!is_same) std::cout << sum;
  std::cout << std::endl;
  is_right = is_right && is_same;
}"""

SHOWN = """\
// Prints a result. What it must be is not known: {why}.
void show(const char* name, const at::Tensor& result) {{
  const auto sum = result.sum().to(result.is_complex() ? at::kComplexDouble : at::kDouble).item();
  std::cout << name << ": " << result.sizes() << " sum " << sum << std::endl;
}}"""

BOUNDS = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4, torch.complex64: 1e-4}
"""How far a sum may be off, as a part of that of all absolute values; in double precision 1e-9."""


def cmake_text(function: CppFunction, standard: int) -> str:
    """The CMake file."""
    return CMAKE.format(name=function.name, op=function.op, standard=standard)


def main_text(function: CppFunction) -> str:
    """A program that calls the op, runs backward, and compares what came of it."""
    return "\n".join([*_main(function), ""])


def _main(function: CppFunction) -> Iterator[str]:
    sums, why = _recorded(function)
    yield f"// Calls the op {NAMESPACE}::{function.op} from C++ alone, forward and backward."
    yield ""
    yield "#include <ATen/ATen.h>"
    yield "#include <ATen/core/dispatch/Dispatcher.h>"
    yield "#include <torch/csrc/autograd/autograd.h>"
    yield ""
    yield "#include <cmath>"
    yield "#include <iostream>"
    yield "#include <limits>"
    yield "#include <tuple>"
    yield ""
    yield SPREAD
    yield ""
    yield SHOWN.format(why=why) if why else COMPARED
    yield ""
    yield "int main() {"
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
    yield ""
    yield f"  using Op = {function.result}({function.signature});"
    yield "  auto op = c10::Dispatcher::singleton()"
    yield f'                .findSchemaOrThrow("{NAMESPACE}::{function.op}", "")'
    yield "                .typed<Op>();"
    names = _names(function)
    bound = f"[{', '.join(names)}]" if len(names) > 1 else "out"
    values = {one.name: written(one.value) for one in function.plain}
    passed = ", ".join(values.get(name, name) for name in function.parameters)
    yield f"  auto {bound} = op.call({passed});"
    yield from (_shown(name, name, sums) for name in names)
    yield from _pulled(function, names, sums)
    yield "  return 0;" if why else "  return is_right ? 0 : 1;"
    yield "}"


def _names(function: CppFunction) -> list[str]:
    count = len(function.aliases)
    return [f"out{i}" for i in range(count)] if count > 1 else ["out"]


def _shown(name: str, text: str, sums: dict[str, Sums]) -> str:
    if name not in sums:
        return f'  show("{name}", {text});'
    return f'  compare("{name}", {text}, {", ".join(map(literal, sums[name]))});'


def _pulled(function: CppFunction, names: list[str], sums: dict[str, Sums]) -> Iterator[str]:
    smooth, wanted = _smooth(function), _differentiated(function)
    if not smooth or not wanted:
        return
    chosen = [names[place] for place in smooth]
    yield ""
    yield "  auto gradients = torch::autograd::grad("
    yield f"      {{{', '.join(chosen)}}}, {{{', '.join(name for _, name in wanted)}}},"
    ones = ", ".join(f"at::ones_like({name})" for name in chosen)
    yield f"      {{{ones}}}, std::nullopt, false, /*allow_unused=*/true);"
    for place, (_, name) in enumerate(wanted):
        if f"grad_{name}" in sums or not sums:
            yield f"  if (gradients[{place}].defined())"
            yield f"  {_shown(f'grad_{name}', f'gradients[{place}]', sums)}"


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
    bound = BOUNDS.get(tensor.dtype, 1e-9) * (float(flat.abs().sum()) + 1e-3)
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
