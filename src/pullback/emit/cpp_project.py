"""What makes a program of an emitted op without Python: a CMake file and a small `main.cpp`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.derive.likes import Like
from pullback.emit.cpp_library import NAMESPACE
from pullback.emit.cpp_plain import written
from pullback.emit.cpp_signature import CppFunction
from pullback.emit.cpp_values import DTYPES, literal
from pullback.emit.subject import Subject

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


def cmake_text(function: CppFunction, standard: int) -> str:
    """The CMake file."""
    return CMAKE.format(name=function.name, op=function.op, standard=standard)


def main_text(subject: Subject, function: CppFunction) -> str:
    """A program that calls the op, runs backward, and prints what came of it."""
    return "\n".join([*_main(subject, function), ""])


def _main(subject: Subject, function: CppFunction) -> Iterator[str]:
    yield f"// Calls the op {NAMESPACE}::{function.op} from C++ alone, forward and backward."
    yield ""
    yield "#include <ATen/ATen.h>"
    yield "#include <ATen/core/dispatch/Dispatcher.h>"
    yield "#include <torch/csrc/autograd/autograd.h>"
    yield ""
    yield "#include <iostream>"
    yield "#include <tuple>"
    yield ""
    yield "int main() {"
    yield "  at::manual_seed(0);"
    pairs = zip(subject.captured.inputs, subject.likes, strict=True)
    given = [(one, like) for one, like in pairs if one.kind != "constant"]
    changed = {function.parameters[place] for place in function.changed}
    for (one, like), name in zip(given, function.tensors, strict=True):
        yield f"  auto {name} = {_drawn(like, needs=one.needs and name not in changed)};"
        if one.needs and name in changed:
            yield f"  {name} = {name}.requires_grad_().clone();  // a leaf must not be changed"
    yield ""
    yield f"  using Op = {function.result}({function.signature});"
    yield "  auto op = c10::Dispatcher::singleton()"
    yield f'                .findSchemaOrThrow("{NAMESPACE}::{function.op}", "")'
    yield "                .typed<Op>();"
    count = len(function.aliases)
    names = [f"out{i}" for i in range(count)] if count > 1 else ["out"]
    bound = f"[{', '.join(names)}]" if count > 1 else "out"
    values = {one.name: written(one.value) for one in function.plain}
    passed = ", ".join(values.get(name, name) for name in function.parameters)
    yield f"  auto {bound} = op.call({passed});"
    for name in names:
        yield f'  std::cout << "{name}: " << {name}.sizes() << " sum "'
        yield f"            << {name}.sum().to(at::kDouble).item<double>() << std::endl;"
    yield from _pulled(subject, function, names)
    yield "  return 0;"
    yield "}"


def _pulled(subject: Subject, function: CppFunction, names: list[str]) -> Iterator[str]:
    returned = [o for o in subject.captured.outputs if o.returned]
    smooth = [n for n, o in zip(names, returned, strict=True) if o.differentiable and o.used]
    given = [one for one in subject.captured.inputs if one.kind != "constant"]
    changed = {function.parameters[place] for place in function.changed}
    wanted = [
        name
        for one, name in zip(given, function.tensors, strict=True)
        if one.needs and name not in changed
    ]
    if not smooth or not wanted:
        return
    yield ""
    yield "  auto gradients = torch::autograd::grad("
    yield f"      {{{', '.join(smooth)}}}, {{{', '.join(wanted)}}},"
    ones = ", ".join(f"at::ones_like({name})" for name in smooth)
    yield f"      {{{ones}}}, std::nullopt, false, /*allow_unused=*/true);"
    for place, name in enumerate(wanted):
        yield f"  if (gradients[{place}].defined())"
        yield f'    std::cout << "grad_{name}: " << gradients[{place}].sizes() << " sum "'
        total = f"gradients[{place}].sum().to(at::kDouble).item<double>()"
        yield f"              << {total} << std::endl;"


def _drawn(like: Like, *, needs: bool) -> str:
    """A tensor like that of the examples."""
    sizes = f"{{{', '.join(map(str, like.shape))}}}"
    dtype = DTYPES[like.dtype]
    flag = ".requires_grad_()" if needs else ""
    if like.dtype.is_complex:
        return f"at::randn({sizes}, {dtype}){flag}"
    if like.dtype.is_floating_point:
        low, high = literal(float(like.low)), literal(float(like.high))
        return f"(at::rand({sizes}, {dtype}) * ({high} - ({low})) + ({low})){_leaf(flag)}"
    if like.dtype == torch.bool:
        return f"at::rand({sizes}) > 0.5"
    return f"at::randint({int(like.low)}, {int(like.high) + 1}, {sizes}, {dtype})"


def _leaf(flag: str) -> str:
    return f".detach(){flag}" if flag else ""
