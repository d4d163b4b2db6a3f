"""The source of a derived Function: one module that imports only torch, and belongs to the user."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture, CaptureInput
from pullback.capture.trees import Spec, is_row, literal_of, paths_of, unflatten
from pullback.derive.again import Again, again_of, refused_again
from pullback.derive.dtypes import is_alike, misled_by_dtypes, needed_dtypes, recaptured
from pullback.derive.forward_lines import (
    history_marks,
    idle_among,
    layout_checks,
    offset_checks,
    reads_memory,
    taken_apart,
)
from pullback.derive.recipe import Parts, parts_of
from pullback.derive.size_checks import (
    InputCheck,
    fixed_sizes,
    gathered,
    needed_ranks,
    needed_sizes,
)
from pullback.errors import CaptureError, DifferingTextError, PullbackError, UnsupportedOpError
from pullback.function.generated import run_text
from pullback.graph.copies import graph_returning
from pullback.graph.literals import python_literal
from pullback.graph.names import unused
from pullback.graph.simplify.sizes import read_numbers
from pullback.graph.text import graph_text
from pullback.graph.text_lines import NAME
from pullback.graph.values import is_smooth
from pullback.judge.comparison import Comparison
from pullback.judge.observed import Call
from pullback.judge.tensor_specs import TensorSpec
from pullback.judge.text_difference import TextDifference

DOC_WIDTH = 88
LARGEST_CONSTANT = 64


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The text of a Function in pieces: constants, and the class.

    `parts` are the graphs that it was written from, with the names in it; `is_refusing` says that
    it refuses to be differentiated twice.
    """

    parts: Parts
    constants: tuple[str, ...]
    lines: tuple[str, ...]
    is_refusing: bool


def module_source(
    captured: Capture, save: str | int, name: str, program: Any, specs: Sequence[TensorSpec]
) -> str:
    """A module with the Function `name`: forward, what is saved and why, backward."""
    require_beginnings(captured, to="printed")
    source = function_source(Comparison(captured, program, specs), save, name, program)
    said = f"`{name}`, derived from `{captured.name}` by pullback (save={save!r}): yours to keep."
    head = [f'"""{said}"""', "", "import torch"]
    head += ["", *source.constants] if source.constants else []
    text = "\n".join([*head, "", "", *source.lines, ""])
    loaded(text)
    return text


def function_source(
    comparison: Comparison, save: str | int, name: str, said: Any
) -> FunctionSource:
    """The Function `name` as text, which can be differentiated again, or refuses it.

    `said` is where its docstring and arguments are read. It is right for inputs of other dtypes:
    where the example hides a cast it is written from a capture that shows it. If there is none that
    is right for all, it says with a check for which dtypes it is.
    """
    write = functools.partial(_compared, save=save, name=name, said=said)
    source = write(comparison)
    wrong, right = misled_by_dtypes(comparison, _called(comparison, source, name))
    if not wrong:
        return source
    for row in wrong:
        other = recaptured(comparison, row)
        if other is None:
            continue
        try:
            found = write(other)
        except PullbackError:  # it has no text in these dtypes
            continue
        if found.is_refusing and not source.is_refusing:
            continue  # another dtype is not worth a derivative
        call = _called(comparison, found, name)
        rows = (comparison.rows[0], *wrong, *right)
        if not comparison.difference(call) and all(is_alike(comparison, call, r) for r in rows):
            return found
    names = [source.parts.names[node] for node in source.parts.joint.inputs]
    checks = needed_dtypes(comparison, names, wrong, right)
    narrow = Comparison(
        comparison.captured,
        comparison.program,
        comparison.specs,
        is_narrow=True,
        needs=comparison.wanted.needs,
    )
    return write(narrow, checks=checks)


def _compared(
    comparison: Comparison,
    *,
    save: str | int,
    name: str,
    said: Any,
    checks: Sequence[InputCheck] = (),
) -> FunctionSource:
    """The Function `name` as text with these checks, compared with the program.

    What differs is written without the rules that only make it read better, and then refused.
    """
    captured = comparison.captured
    written = functools.partial(_written, comparison, save, name, said, checks)
    try:
        source = written(readable_parts(captured, save))
        found = _difference(comparison, source, name)
    except PullbackError:
        raise
    except Exception:  # a rule that fails in any way is one that must not be applied here
        found, source = None, None
    if source is None or found is not None:
        source = written(parts_in_order(parts_of(captured, save)))
        found = _difference(comparison, source, name)
    if found is not None:
        raise differing_text(captured.name, found)
    return source


def differing_text(name: str, found: TextDifference | None) -> DifferingTextError:
    """The error for a text that does not compute what the program `name` computes."""
    fix = f"use `pb.derive({name}, ...)` itself, which does not run this text, and report this"
    if found is not None and found.is_filled:
        fix = (
            "print one Function for each output, or use "
            f"`pb.derive({name}, ...)` itself: PyTorch hands a Function zeros for the outputs that "
            "are not used, and zero times an infinite slope is NaN"
        )
    return DifferingTextError(
        f"the text of `{name}` must compute what `{name}` computes",
        **(found.facts(f"`{name}`", "its text") if found is not None else {}),
        fix=fix,
    )


def _written(
    comparison: Comparison,
    save: str | int,
    name: str,
    said: Any,
    dtypes: Sequence[InputCheck],
    parts: Parts,
) -> FunctionSource:
    """The text of these graphs, with the checks of dtypes, and those of sizes that it needs."""
    captured = comparison.captured
    names = [parts.names[node] for node in parts.joint.inputs]
    constants = tuple(
        _constant(one, given)
        for one, given in zip(captured.inputs, names, strict=True)
        if one.kind == "constant"
    )
    checks, goes_by_layout = [*dtypes, *fixed_sizes(captured, names)], False

    def made(more: Again) -> FunctionSource:
        doc = _doc(captured, parts, said, more.extra, checks)
        lines = [f"class {name}(torch.autograd.Function):", *doc, ""]
        lines += _forward(comparison, parts, more, name, checks, goes_by_layout=goes_by_layout)
        lines.append("")
        lines += _backward(captured, parts, more)
        return FunctionSource(parts, constants, tuple(lines), more.is_refusing)

    def call() -> Call:
        return _called(comparison, made(more), name)

    more = again_of(parts, name, _dtype_names(captured, parts))
    checks += needed_sizes(comparison, names, call(), checks)
    checks = gathered(checks, captured, names)
    checks = [*needed_ranks(comparison, names, call()), *checks]
    goes_by_layout = reads_memory(captured) or not comparison.is_same_strided(call())
    if not more.is_refusing and not comparison.is_same_twice(call()):
        more = refused_again(name, "its ops do not tell its second derivative")
    return made(more)


def _difference(comparison: Comparison, source: FunctionSource, name: str) -> TextDifference | None:
    return comparison.difference(_called(comparison, source, name))


def _called(comparison: Comparison, source: FunctionSource, name: str) -> Call:
    """What the text of a Function computes."""
    space = loaded("\n".join(["import torch", *source.constants, *source.lines]))
    return comparison.of_function(space[name].apply)


def loaded(text: str) -> dict[str, Any]:
    """The names of a module, run in a fresh namespace."""
    space: dict[str, Any] = {"__name__": "written"}
    run_text(text, "written", space)
    return space


def readable_parts(captured: Capture, save: str | int) -> Parts:
    """The graphs of a capture as they are printed: simplified to be read, names in order."""
    return parts_in_order(parts_of(captured, save, readable=True))


def parts_in_order(parts: Parts) -> Parts:
    """`parts` as they are printed: no saved number that a size gives, names in order."""
    return _renumbered(_with_fewer_numbers(parts))


def _with_fewer_numbers(parts: Parts) -> Parts:
    """`parts` without the saved numbers that backward can read from sizes."""
    numbers = {node.name for node in parts.cut.numbers}
    backward = read_numbers(parts.backward, numbers)
    given = {node.name for node in backward.find_nodes(op="placeholder")}
    kept = tuple(node for node in parts.cut.numbers if node.name in given)
    count = len(parts.joint.outputs) + len(parts.cut.saved)
    places = [count + parts.cut.numbers.index(node) for node in kept]
    forward = graph_returning(
        parts.forward, lambda row: [*row[:count], *(row[place] for place in places)]
    )
    return replace(parts, cut=replace(parts.cut, numbers=kept), forward=forward, backward=backward)


def _renumbered(parts: Parts) -> Parts:
    """`parts` with the numbers of names in the order in which they are read."""
    names = parts.names
    for _ in range(2):  # a shorter name may make room for an expression, which needs none then
        texts = [graph_text(graph, names) for graph in (parts.forward, parts.backward)]
        lines = [line for text in texts for line in (*text.parameters, *text.statements)]
        names = names.renumbered(NAME.findall("\n".join(lines)))
    return replace(parts, names=names)


def _doc(
    captured: Capture,
    parts: Parts,
    program: Any,
    extra: Sequence[str],
    checks: Sequence[InputCheck],
) -> list[str]:
    said = (inspect.getdoc(program) or "").split("\n\n")[0] or "Derived."
    said = said.replace("\\", "\\\\").replace('"""', "'''")
    rows = [(parts.names[node], _why(parts, node)) for node in parts.cut.saved]
    rows += [(name, "the input itself, to be differentiated again") for name in extra]
    width = max((len(name) for name, _ in rows), default=0)
    table = [f"    {name:<{width}}  {why}" for name, why in rows] or ["    nothing"]
    text = [*textwrap.wrap(said, DOC_WIDTH - 4), "", "Saved for backward:", *table]
    plain = _plain_values(captured, program)
    text += ["", *textwrap.wrap(f"Written for {', '.join(plain)}.", DOC_WIDTH - 4)] if plain else []
    if checks:
        said = ", ".join(check.condition for check in checks)
        kind = "inputs" if any(".dtype" in check.condition for check in checks) else "sizes"
        text += ["", *textwrap.wrap(f"Written for {kind} with {said}.", DOC_WIDTH - 4)]
    form = returned_form(captured)
    text += ["", *textwrap.wrap(f"Returns {form}.", DOC_WIDTH - 4)] if form else []
    return _indented(['"""' + text[0], *text[1:], '"""'], 1)


def _plain_values(captured: Capture, program: Any) -> list[str]:
    """The arguments that are no tensors, which the text holds as they were: `slope=0.1`."""
    args = unflatten(captured.leaves, captured.in_spec)
    try:
        names = list(inspect.signature(program).parameters)
    except (TypeError, ValueError):
        return []
    plain = (type(None), bool, int, float, complex, str)
    values = zip(names, args, strict=False)
    return [f"{name}={value!r}" for name, value in values if isinstance(value, plain)]


def _why(parts: Parts, node: fx.Node) -> str:
    """Why a tensor is saved, in a few words."""
    if node in parts.joint.inputs:
        return "the input itself, which costs nothing to keep"
    if node in parts.joint.outputs:
        return "an output, which the caller keeps anyway"
    return "computed in forward, and cheaper to keep than to compute again"


# ---- the two methods ----


def _forward(
    comparison: Comparison,
    parts: Parts,
    more: Again,
    name: str,
    checks: Sequence[InputCheck],
    *,
    goes_by_layout: bool,
) -> list[str]:
    captured = comparison.captured
    text = graph_text(parts.forward, parts.names, _dtype_names(captured, parts))
    given = [n for n, one in zip(text.parameters, captured.inputs, strict=True) if one.is_given]
    count, saved = parts.joint.output_count, len(parts.cut.saved)
    returned, kept = list(text.returned[:count]), text.returned[count : count + saved]
    body = offset_checks(captured, text.parameters)
    body += layout_checks(captured, given, name) if goes_by_layout else []
    body += [line for check in checks for line in check.lines(name)]
    body += text.statements
    idle = idle_among(captured, text.parameters)
    kept = tuple(f"{n}.detach()" if n in idle else n for n in (*kept, *more.extra))
    body += [f"ctx.save_for_backward({', '.join(kept)})"] if kept else []
    for node, value in zip(parts.cut.numbers, text.returned[count + saved :], strict=True):
        body.append(f"ctx.{parts.names[node]} = {value}")
    body += [f"ctx.{name} = {owner}.dtype" for name, owner in _kept_dtypes(captured, parts)]
    body += taken_apart(captured, parts, returned)
    body += history_marks(comparison, returned)
    body.append(return_line(captured, returned))
    return _method("forward", ["ctx", *given], body)


def return_line(captured: Capture, values: Sequence[str]) -> str:
    """What a text returns, with these names for the outputs of the graph: all that it can write."""
    written = [o for o in captured.outputs if o.is_written]
    row = [literal_of(o.value) if o.index is None else values[o.index] for o in written]
    return returning([text for text in row if text is not None], captured.out_spec)


def returning(row: Sequence[str], spec: Spec) -> str:
    """A return of these values: a tuple of one stays a tuple."""
    is_row_of_one = len(row) == 1 and not spec.is_leaf()
    return f"return ({row[0]},)" if is_row_of_one else f"return {', '.join(row)}"


def _dtypes(captured: Capture, parts: Parts) -> dict[torch.dtype, fx.Node]:
    """The dtypes that a call brings along, each with the first input that has it."""
    pairs = zip(captured.inputs, parts.joint.inputs, strict=True)
    given = [node for one, node in pairs if one.is_given and is_smooth(node)]
    return {node.meta["val"].dtype: node for node in reversed(given)}


def _dtype_names(captured: Capture, parts: Parts) -> dict[torch.dtype, str]:
    """The names of these where no tensor in sight has them."""
    taken = {*parts.names.values()}
    owners = _dtypes(captured, parts).items()
    return {dtype: unused(f"{parts.names[node]}_dtype", taken) for dtype, node in owners}


def _kept_dtypes(captured: Capture, parts: Parts) -> list[tuple[str, str]]:
    """The names of dtypes that backward reads, each with that of the input it is of."""
    names = _dtype_names(captured, parts)
    text = graph_text(parts.backward, parts.names, names)
    read = set(NAME.findall("\n".join([*text.statements, *text.returned])))
    owners = _dtypes(captured, parts)
    return [(name, parts.names[owners[d]]) for d, name in names.items() if name in read]


def _backward(captured: Capture, parts: Parts, more: Again) -> list[str]:
    text = graph_text(parts.backward, parts.names, _dtype_names(captured, parts))
    saved, numbers = len(parts.cut.saved), len(parts.cut.numbers)
    cotangents = list(text.parameters[saved + numbers :])
    body = []
    row = (*text.parameters[:saved], *more.extra)
    if row:
        body.append(f"{f'({row[0]},)' if len(row) == 1 else ', '.join(row)} = ctx.saved_tensors")
    for name in text.parameters[saved : saved + numbers]:
        body.append(f"{name} = ctx.{name}")
    body += [f"{name} = ctx.{name}" for name, _ in _kept_dtypes(captured, parts)]
    pulled = iter(text.returned)
    gradients = [next(pulled) if one.needs else "None" for one in captured.inputs if one.is_given]
    body += [*more.lines, *text.statements, f"return {', '.join(gradients)}"]
    every = iter(cotangents)
    returned = [o for o in captured.outputs if o.is_written]
    named = [next(every) if o.differentiable and o.used else "_" for o in returned]
    return _method("backward", ["ctx", *_distinct(named)], body)


def _distinct(names: list[str]) -> list[str]:
    """Give each unused parameter a distinct name."""
    return [name if name != "_" else f"_{i}" for i, name in enumerate(names)]


def _method(name: str, parameters: list[str], body: list[str]) -> list[str]:
    lines = ["@staticmethod", f"def {name}({', '.join(parameters)}):"]
    lines += [f"    {line}" for statement in body for line in statement.splitlines()]
    return _indented(lines, 1)


def _indented(lines: list[str], level: int) -> list[str]:
    return [f"{'    ' * level}{line}" if line else line for line in lines]


def _constant(one: CaptureInput, name: str) -> str:
    tensor = small_constant(one, to="printed")
    if not tensor.numel():
        return f"{name} = torch.empty({tuple(tensor.shape)}, dtype={tensor.dtype})"
    return f"{name} = torch.tensor({python_literal(tensor.tolist())}, dtype={tensor.dtype})"


# ---- what has no text ----


def returned_form(captured: Capture) -> str:
    """What a text returns in the place of named or nested results; nothing where these are plain.

    `a plain tuple: values, indices`, `a flat tuple: ['loss'], ['parts'][0]`
    """
    spec = captured.out_spec
    if _is_flat(captured):
        return ""
    example = unflatten(range(spec.num_leaves), spec)
    fields = getattr(example, "_fields", getattr(example, "__match_args__", ()))
    is_named = isinstance(example, tuple) and len(fields) == spec.num_leaves
    places = fields if is_named else paths_of(example)
    returned = zip(places, (o for o in captured.outputs if o.returned), strict=True)
    listed = ", ".join(place for place, o in returned if o.is_written)
    return f"a {'plain' if is_named else 'flat'} tuple: {listed}"


def _is_flat(captured: Capture) -> bool:
    spec = captured.out_spec
    return spec.is_leaf() or (spec.type in (tuple, list) and is_row(spec))


def require_flat(captured: Capture, *, to: str) -> None:
    """Raise unless a program returns a tensor, or a tuple or list of tensors and values.

    `to` says what for, such as "emitted".
    """
    if not _is_flat(captured):
        raise CaptureError(
            f"`{captured.name}` must return a tensor or a tuple of tensors to be {to}",
            got=f"a nested {captured.out_spec.type.__name__}",
            fix="return the tensors in one tuple, and nest them outside",
        )
    require_beginnings(captured, to=to)


def require_beginnings(captured: Capture, *, to: str) -> None:
    """Raise unless the inputs begin where their memory does, if the program can see that."""
    late = [one for one in captured.inputs if one.offset]
    if late:
        raise CaptureError(
            f"`{late[0].name}` must begin where its memory does for `{captured.name}` to be {to}",
            expected="0 from `storage_offset()`, which the program depends on",
            got=f"{late[0].offset}",
            fix=f"pass a clone of `{late[0].name}` as the example",
        )


def small_constant(one: CaptureInput, *, to: str) -> Tensor:
    """The tensor that a program makes from numbers; raise if it is too large to be written out."""
    tensor = one.tensor
    if tensor is None or tensor.numel() > LARGEST_CONSTANT:
        raise UnsupportedOpError(
            f"a tensor that the program makes from numbers must be small to be {to}",
            expected=f"at most {LARGEST_CONSTANT} elements",
            got=f"`{one.name}` with {0 if tensor is None else tensor.numel()}",
            fix="pass it as an argument of the program",
        )
    return tensor
