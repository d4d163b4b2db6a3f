"""The file around Functions in C++: headers, helpers, and the registration as ops of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pullback.emit.cpp.body import includes_of, wrapped_statement
from pullback.emit.cpp.reach import FLOATS
from pullback.emit.cpp.signature import NAMESPACE, NO_AUTOCAST, CppFunction
from pullback.emit.cpp.values import DTYPES, quoted
from pullback.emit.filling import template_text

INCLUDES = (
    "ATen/TensorOperators.h",
    "ATen/core/Tensor.h",
    "ATen/core/grad_mode.h",
    "ATen/core/LegacyTypeDispatch.h",
    "c10/core/impl/LocalDispatchKeySet.h",
    "torch/csrc/autograd/custom_function.h",
    "torch/library.h",
)

NEEDED_BY_HELPER = {
    "number": (
        "ATen/ScalarOps.h",
        "ATen/ops/scalar_tensor.h",
        "c10/core/impl/TorchDispatchModeTLS.h",
    ),
    "scalar": ("ATen/ops/scalar_tensor.h",),
    "floor_of": ("cmath",),
    "power": ("cmath",),
    "widest": ("c10/core/ScalarType.h",),
    "call_op": ("ATen/core/dispatch/Dispatcher.h",),
}


def library_text(head: Sequence[str], functions: Sequence[CppFunction]) -> str:
    """One C++ file with these Functions, each registered as an op."""
    every = [each for function in functions for each in (function, *_variants(function))]
    helpers = _helpers(every)
    bodies = [body for function in every for body in function.bodies]
    text = "\n".join(line for function in every for line in function.lines)
    made = [name for name in ("full", "stack", "scalar_tensor", "empty") if f"at::{name}(" in text]
    headers = {*INCLUDES, *includes_of(bodies), *(f"ATen/ops/{name}.h" for name in made)}
    headers |= {header for name in helpers for header in NEEDED_BY_HELPER.get(name, ())}
    standard = {"optional", "vector"} | ({"tuple"} if "std::tuple" in text else set())
    standard |= {"limits"} if "numeric_limits" in text else set()
    standard |= {header for header in headers if "/" not in header}
    lines = [*(f"// {line}".rstrip() for line in head), ""]
    lines += [f"#include <{header}>" for header in sorted(h for h in headers if "/" in h)]
    lines += ["", *(f"#include <{header}>" for header in sorted(standard)), ""]
    lines += [f"namespace {NAMESPACE} {{", ""]
    lines += [
        "using torch::autograd::AutogradContext;",
        "using torch::autograd::variable_list;",
        "",
    ]
    if helpers:
        lines += ["namespace {", "", *template_text("helpers.cpp", helpers=helpers).splitlines()]
        lines += ["}  // namespace", ""]
    for function in functions:
        for each in (function, *_variants(function)):
            lines += [*each.lines, ""]
        lines += [*_kernels(function), ""]
    lines += [f"}}  // namespace {NAMESPACE}", "", *_registration(functions)]
    return "\n".join([*lines, ""])


def _helpers(functions: Sequence[CppFunction]) -> set[str]:
    """The names of the functions in `helpers.cpp` that these need."""
    used = {name for f in functions for body in f.bodies for name in body.writer.helpers}
    return used | {"widest" for f in functions if _is_widened(f)}


def _variants(function: CppFunction) -> list[CppFunction]:
    return [variant for _, variant in function.variants]


def _kernels(function: CppFunction) -> Iterator[str]:
    """What the dispatcher calls: above autograd, and below it."""
    count = len(function.aliases)
    yield from wrapped_statement(
        f"{function.result} {function.op}_autograd({function.signature}) {{", ""
    )
    for name in (name for name in function.parameters if name in function.optional):
        yield f"  const bool has_{name} = {name}.has_value() && {name}->defined();"
    yield from (f"  {line}" for line in _autocast(function))
    for absent, variant in sorted(function.variants, key=lambda pair: -len(pair[0])):
        missing = " && ".join(f"!has_{name}" for name in function.parameters if name in absent)
        yield f"  if ({missing}) {{"
        yield from (f"    {line}" for line in _applied(function, variant, count))
        yield "  }"
    yield from (f"  {line}" for line in _applied(function, function, count))
    yield "}"
    yield ""
    yield "// The same without a history, for every device and for tensors without values."
    yield from wrapped_statement(
        f"{function.result} {function.op}_plain({function.signature}) {{", ""
    )
    yield "  at::AutoGradMode off(false);"
    yield f"  return {function.op}_autograd({', '.join(function.parameters)});"
    yield "}"


def _is_widened(function: CppFunction) -> bool:
    """Whether its inputs get the widest of their dtypes under autocast."""
    is_any = len(function.reach.dtypes) == len(FLOATS)
    is_one = bool(function.cast) and not any(function.cast.values())
    return is_one and (len(function.cast) > 1 or not is_any)


def _autocast(function: CppFunction) -> Iterator[str]:
    """The lines for a call under autocast: inputs are cast to fit, and nothing else is."""
    yield "if (!c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset)) {"
    yield "  // The dtypes inside are those of the program without autocast."
    yield f"  {NO_AUTOCAST}"
    dtypes = dict(function.cast)
    if _is_widened(function):
        row = [f"{n}.value_or(at::Tensor())" if n in function.optional else n for n in dtypes]
        yield from wrapped_statement(f"auto cast_dtype = widest({{{', '.join(row)}}});", "  ")
        yield from (f"  {line}" for line in _served(function))
        dtypes = dict.fromkeys(dtypes, "cast_dtype")
    passed = [_cast(name, dtypes.get(name, ""), function) for name in function.parameters]
    call = f"return {function.op}_autograd({', '.join(passed)});"
    yield from wrapped_statement(call, "  ")
    yield "}"


def _served(function: CppFunction) -> Iterator[str]:
    """The line that takes the dtype of the examples where the widest one is not served."""
    served = function.reach.dtypes
    if len(served) == len(FLOATS):
        return
    nodes = function.subject.captured.joint.inputs
    own = next(n.meta["val"].dtype for n in nodes if n.meta["val"].is_floating_point())
    test = " && ".join(f"cast_dtype != {DTYPES[dtype]}" for dtype in served)
    yield f"if ({test}) cast_dtype = {DTYPES[own]};"


def _cast(name: str, dtype: str, function: CppFunction) -> str:
    if not dtype:
        return name
    if name in function.optional:
        return f"has_{name} ? std::optional({name}->to({dtype})) : {name}"
    return f"{name}.to({dtype})"


def _applied(function: CppFunction, called: CppFunction, count: int) -> Iterator[str]:
    """The lines that apply a Function and return what it gives."""
    if len(function.variants) + 1 < 2 ** len(function.optional):
        for name in (n for n in called.parameters if n in function.optional):
            said = quoted(f"{function.op}: {name} must be given here")
            yield f"TORCH_CHECK(has_{name}, {said});"
    passed = ", ".join(f"*{n}" if n in function.optional else n for n in called.parameters)
    if count == 1:
        yield f"return {called.name}::apply({passed});"
        return
    yield f"auto op_results = {called.name}::apply({passed});"
    yield f"return {{{', '.join(f'op_results[{i}]' for i in range(count))}}};"


def _registration(functions: Sequence[CppFunction]) -> Iterator[str]:
    yield f"TORCH_LIBRARY_FRAGMENT({NAMESPACE}, m) {{"
    for function in functions:
        yield f"  m.def({quoted(function.schema)});"
    yield "}"
    for key, suffix in (("Autograd", "autograd"), ("CompositeExplicitAutograd", "plain")):
        yield ""
        yield f"TORCH_LIBRARY_IMPL({NAMESPACE}, {key}, m) {{"
        for function in functions:
            yield f'  m.impl("{function.op}", {NAMESPACE}::{function.op}_{suffix});'
        yield "}"
