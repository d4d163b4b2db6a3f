"""The source of a derived Function: one module that imports only torch, and belongs to the user."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx

from pullback.capture.joint import Capture, Input
from pullback.capture.trees import unflatten
from pullback.derive.again import Again, again_of, refusing
from pullback.derive.likes import Like
from pullback.derive.recipe import Parts, parts_of
from pullback.derive.twice import differs_twice
from pullback.errors import CaptureError, UnsupportedOpError
from pullback.graph.copies import copy_of
from pullback.graph.simplify.sizes import read_numbers
from pullback.graph.text import text_of
from pullback.graph.text_lines import NAME

WIDTH = 88
LARGEST_CONSTANT = 64


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a Function in pieces: constants, and the class.

    `parts` are the graphs that it was written from, with the names in it.
    """

    parts: Parts
    constants: tuple[str, ...]
    lines: tuple[str, ...]


def module_source(
    captured: Capture, save: str | int, name: str, program: Any, likes: Sequence[Like]
) -> str:
    """A module with the Function `name`: forward, what is saved and why, backward."""
    source = function_source(captured, save, name, program, likes)
    said = f"`{name}`, derived from `{captured.name}` by pullback (save={save!r}): yours to keep."
    head = [f'"""{said}"""', "", "import torch"]
    head += ["", *source.constants] if source.constants else []
    return "\n".join([*head, "", "", *source.lines, ""])


def function_source(
    captured: Capture,
    save: str | int,
    name: str,
    program: Any,
    likes: Sequence[Like],
    *,
    said: Any = None,
) -> Source:
    """The Function `name` as text, which can be differentiated again, or refuses it.

    `program` is what was captured, with inputs like `likes`; `said` is where its docstring and
    arguments are read, if that is something else.
    """
    parts = readable_parts(captured, save)
    constants = tuple(_constant(one) for one in captured.inputs if one.kind == "constant")

    def made(more: Again) -> Source:
        doc = _doc(captured, parts, program if said is None else said, more.extra)
        lines = [f"class {name}(torch.autograd.Function):", *doc, ""]
        lines += [*_forward(captured, parts, more), "", *_backward(captured, parts, more)]
        return Source(parts, constants, tuple(lines))

    source = made(again_of(parts, name))
    if differs_twice(_loaded(source, name), program, captured, likes):
        source = made(refusing(name, "its ops do not tell its second derivative"))
    return source


def _loaded(source: Source, name: str) -> Any:
    """What the text of a Function computes."""
    space: dict[str, Any] = {}
    exec("\n".join(["import torch", *source.constants, *source.lines]), space)
    return space[name].apply


def readable_parts(captured: Capture, save: str | int) -> Parts:
    """The graphs of a capture as they are printed: simplified to be read, names in order."""
    return _renumbered(_with_fewer_numbers(parts_of(captured, save, readable=True)))


def _with_fewer_numbers(parts: Parts) -> Parts:
    """`parts` without the saved numbers that backward can read from sizes."""
    numbers = {node.name for node in parts.cut.numbers}
    backward = read_numbers(parts.backward, numbers)
    given = {node.name for node in backward.find_nodes(op="placeholder")}
    kept = tuple(node for node in parts.cut.numbers if node.name in given)
    count = len(parts.joint.outputs) + len(parts.cut.saved)
    forward, _ = copy_of(parts.forward)
    returned: Any = forward.output_node().args[0]
    number_of = dict(zip(parts.cut.numbers, returned[count:], strict=True))
    forward.output_node().args = ((*returned[:count], *(number_of[node] for node in kept)),)
    return replace(parts, cut=replace(parts.cut, numbers=kept), forward=forward, backward=backward)


def _renumbered(parts: Parts) -> Parts:
    """`parts` with the numbers of names in the order in which they are read."""
    names = parts.names
    for _ in range(2):  # a shorter name may make room for an expression, which needs none then
        texts = [text_of(graph, names) for graph in (parts.forward, parts.backward)]
        lines = [line for text in texts for line in (*text.parameters, *text.statements)]
        names = names.renumbered(NAME.findall("\n".join(lines)))
    return replace(parts, names=names)


def _doc(captured: Capture, parts: Parts, program: Any, extra: Sequence[str]) -> list[str]:
    said = (inspect.getdoc(program) or "").split("\n\n")[0] or "Derived."
    rows = [(parts.names[node], _why(parts, node)) for node in parts.cut.saved]
    rows += [(name, "the input itself, to be differentiated again") for name in extra]
    width = max((len(name) for name, _ in rows), default=0)
    table = [f"    {name:<{width}}  {why}" for name, why in rows] or ["    nothing"]
    text = [*textwrap.wrap(said, WIDTH - 4), "", "Saved for backward:", *table]
    plain = _plain_values(captured, program)
    text += ["", *textwrap.wrap(f"Written for {', '.join(plain)}.", WIDTH - 4)] if plain else []
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


def _forward(captured: Capture, parts: Parts, more: Again) -> list[str]:
    text = text_of(parts.forward, parts.names)
    given = [n for n, one in zip(text.parameters, captured.inputs, strict=True) if one.is_given]
    count, saved = parts.joint.output_count, len(parts.cut.saved)
    returned, kept = text.returned[:count], text.returned[count : count + saved]
    body = [*_offset_checks(captured, text.parameters), *text.statements]
    kept = (*kept, *more.extra)
    body += [f"ctx.save_for_backward({', '.join(kept)})"] if kept else []
    for node, value in zip(parts.cut.numbers, text.returned[count + saved :], strict=True):
        body.append(f"ctx.{parts.names[node]} = {value}")
    silent = [
        returned[o.index]
        for o in captured.outputs
        if o.index is not None and o.kind == "tensor" and not o.differentiable
    ]
    body += [f"ctx.mark_non_differentiable({', '.join(silent)})"] if silent else []
    body.append(f"return {', '.join(returned)}")
    return _method("forward", ["ctx", *given], body)


def _offset_checks(captured: Capture, parameters: Sequence[str]) -> list[str]:
    """What refuses inputs that do not begin where their memory does, if that can be seen."""
    pairs = zip(parameters, captured.inputs, strict=True)
    return [
        f"if {name}.storage_offset() != 0:\n"
        f'    raise ValueError("`{name}` must begin where its memory does: pass a clone")'
        for name, one in pairs
        if one.offset is not None
    ]


def _backward(captured: Capture, parts: Parts, more: Again) -> list[str]:
    text = text_of(parts.backward, parts.names)
    saved, numbers = len(parts.cut.saved), len(parts.cut.numbers)
    cotangents = list(text.parameters[saved + numbers :])
    body = []
    row = (*text.parameters[:saved], *more.extra)
    if row:
        body.append(f"{f'({row[0]},)' if len(row) == 1 else ', '.join(row)} = ctx.saved_tensors")
    for name in text.parameters[saved : saved + numbers]:
        body.append(f"{name} = ctx.{name}")
    pulled = iter(text.returned)
    gradients = [next(pulled) if one.needs else "None" for one in captured.inputs if one.is_given]
    body += [*more.lines, *text.statements, f"return {', '.join(gradients)}"]
    every = iter(cotangents)
    returned = [o for o in captured.outputs if o.returned and o.index is not None]
    named = [next(every) if o.differentiable and o.used else "_" for o in returned]
    return _method("backward", ["ctx", *_distinct(named)], body)


def _distinct(names: list[str]) -> list[str]:
    """Parameters that nobody reads, each with a name of its own."""
    return [name if name != "_" else f"_{i}" for i, name in enumerate(names)]


def _method(name: str, parameters: list[str], body: list[str]) -> list[str]:
    lines = ["@staticmethod", f"def {name}({', '.join(parameters)}):"]
    lines += [f"    {line}" for statement in body for line in statement.splitlines()]
    return _indented(lines, 1)


def _indented(lines: list[str], level: int) -> list[str]:
    return [f"{'    ' * level}{line}" if line else line for line in lines]


def _constant(one: Input) -> str:
    tensor = small_constant(one, to="printed")
    return f"{one.name} = torch.tensor({tensor.tolist()}, dtype={tensor.dtype})"


# ---- what has no text ----


def require_flat(captured: Capture, *, to: str) -> None:
    """Raise unless a program returns a tensor, or a tuple or list of tensors and values.

    Its inputs must begin where their memory does, if it can see that. `to` says what for, such as
    "printed".
    """
    spec = captured.out_spec
    flat = spec.is_leaf() or (
        spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())
    )
    if not flat:
        raise CaptureError(
            f"`{captured.name}` must return a tensor or a tuple of tensors to be {to}",
            got=f"a nested {spec.type.__name__}",
            fix="return the tensors in one tuple, and nest them outside",
        )
    late = [one for one in captured.inputs if one.offset]
    if late:
        raise CaptureError(
            f"`{late[0].name}` must begin where its memory does for `{captured.name}` to be {to}",
            expected="0 from `storage_offset()`, which the program depends on",
            got=f"{late[0].offset}",
            fix=f"pass a clone of `{late[0].name}` as the example",
        )


def small_constant(one: Input, *, to: str) -> Tensor:
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
