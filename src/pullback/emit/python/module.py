"""Python: one module that imports only torch, and tests itself.

It holds the Function (the user's own class where that can stand alone, else the text of its graphs;
several of them and the function that runs them, where a program is in several nodes), what is saved
for backward and why, and a self-test with numbers that were recorded from the program. Only where
that draws random numbers, `reference` computes the same in plain PyTorch for comparison.
"""

from __future__ import annotations

import functools
import keyword
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pullback.capture.names import identifier
from pullback.derive.source import DOC_WIDTH, differing_text, function_source, loaded
from pullback.emit.python.own_source import OwnSource
from pullback.emit.python.own_text import own_text
from pullback.emit.python.self_test import SelfTest
from pullback.emit.python.self_test_choice import chosen_self_test, fault_of
from pullback.emit.subject import EmitSubject
from pullback.errors import CaptureError, first_line
from pullback.function.plain import forward_of
from pullback.graph.copies import graph_returning
from pullback.graph.text import Text, graph_text
from pullback.graph.text_lines import wrapped_call
from pullback.judge.comparison import Comparison
from pullback.judge.text_difference import TextDifference

TESTED = "tested"
RESERVED = frozenset(
    {
        *("torch", "reference", "spread", "inputs", "called", "same", "self_test", TESTED),
        *("RECORDED", "few", "cotangent"),
    }
)
"""The names that the module itself needs."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The texts of a module before `reference`: imports besides torch, and blocks.

    `call` is the expression of what takes the tensors of the capture. `names` are those that the
    blocks bind. `held` are the inputs of the capture that are among them: they are not passed.
    """

    imports: tuple[str, ...]
    blocks: tuple[str, ...]
    call: str
    names: frozenset[str]
    held: frozenset[str]


def function_of(pieces: Pieces) -> Any:
    """What takes the tensors of the capture, by the text alone."""
    text = "\n\n".join([*pieces.imports, "import torch", *pieces.blocks])
    return eval(pieces.call, loaded(text))


def emit_python(subject: EmitSubject) -> dict[str, str]:
    """The module of a subject, by the name of its file.

    It is run and compared with the program, as a whole: what differs is not handed out.
    """
    file, found = f"{snake(subject.name)}.py", None
    for pieces in _pieces(subject):
        write = functools.partial(_module, subject, pieces, file)
        reference = reference_of(subject, pieces.held)
        text = write(chosen_self_test(subject, pieces.call, pieces.held, write, reference))
        found = _difference(subject.comparison, pieces, text)
        if found is None:
            return {file: text}
    raise differing_text(subject.captured.name, found)


def _difference(comparison: Comparison, pieces: Pieces, text: str) -> TextDifference | None:
    """What is wrong with a module: it differs from the program, or from what was recorded.

    A self-test that fails by finite differences is right: so does the user's own backward.
    """
    space = loaded(text)
    function = eval(pieces.call, space)
    found = comparison.difference(comparison.of_function(function, pieces.held))
    fault = fault_of(space)
    if found is None and isinstance(fault, AssertionError):
        return TextDifference("the self-test", "its inputs", "no error", first_line(fault))
    return found


def snake(name: str) -> str:
    """The name of a module for a class: `my_relu` for `MyReLU`.

    >>> snake("MyReLU"), snake("SineSquared"), snake("ROIAlign")
    ('my_relu', 'sine_squared', 'roi_align')
    """
    parted = re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z])", "_", name).lower()
    return f"{parted}_" if keyword.iskeyword(parted) or parted in RESERVED else parted


# ---- the module ----


def _module(subject: EmitSubject, pieces: Pieces, file: str, test: SelfTest) -> str:
    reference = [] if test.recorded is not None else [reference_of(subject, pieces.held)]
    future = [line for line in pieces.imports if "__future__" in line]
    rest = [line for line in pieces.imports if line not in future]
    before = [line for line in rest if not _is_torch(line)]
    after = [line for line in rest if _is_torch(line)]
    head = [_docstring(subject, test), "", *future, *([""] if future else [])]
    head += [*before, *([""] if before else []), "import torch", *after]
    text = "\n\n\n".join(["\n".join(head), *pieces.blocks, *reference])
    return f"{text}\n{test.text(subject.name, file)}"


def _is_torch(line: str) -> bool:
    return line.split()[1].split(".")[0] == "torch"


def _docstring(subject: EmitSubject, test: SelfTest) -> str:
    said = subject.doc.replace("\\", "\\\\").replace('"""', "'''")
    first = f"`{subject.name}`: {said}" if said else f"`{subject.name}`."
    came = f"`{subject.captured.name.removesuffix('.apply')}`"
    lines = textwrap.wrap(first, DOC_WIDTH - 3)
    lines += ["", f"Written by pullback from {came}, and yours: it needs torch and nothing else."]
    against = "`reference`" if test.recorded is None else f"what {came} gave"
    if test.by_differences or test.recorded is None:
        lines += [f"Run it to test it: outputs against {against}, gradients against differences."]
    else:
        lines += [f"Run it to test it: outputs and gradients against {against}."]
    if not test.by_differences:
        lines += ["Not compared with differences: it rounds, has a kink there, or is not finite."]
    for why in dict.fromkeys(why for _, why in test.silent):
        left = ", ".join(f"`{name}`" for name, reason in test.silent if reason == why)
        lines += textwrap.wrap(f"Not compared, because {why}: the gradients of {left}.", DOC_WIDTH)
    return '"""' + "\n".join(lines) + '\n"""'


def reference_of(subject: EmitSubject, held: frozenset[str]) -> str:
    """The forward of a subject as a plain function."""
    text = forward_text(subject)
    lines = [f'"""What `{subject.name}` computes, in plain PyTorch: for comparison."""']
    lines += [line for statement in text.statements for line in statement.splitlines()]
    lines.append(f"return {', '.join(text.returned)}")
    given = [
        name
        for name, one in zip(text.parameters, subject.captured.inputs, strict=True)
        if one.name not in held
    ]
    return "\n".join(
        [wrapped_call("def reference", given, ":"), *(f"    {line}" for line in lines)]
    )


def forward_text(subject: EmitSubject) -> Text:
    """The forward graph alone, with what the program returns."""
    parts, captured = subject.parts, subject.captured
    places = [o.index for o in captured.outputs if o.returned and o.index is not None]
    graph = graph_returning(parts.forward, lambda row: [row[place] for place in places])
    return graph_text(graph, parts.names)


# ---- the Function ----


def _pieces(subject: EmitSubject) -> Iterator[Pieces]:
    """The ways to write a subject, the one that reads best first."""
    if subject.flow is None:
        yield function_pieces(subject)
        return
    from pullback.emit.python.steps import steps_of  # it needs what stands here

    steps = steps_of(subject)
    if steps is not None:
        yield steps
    yield graph_pieces(subject, subject.name)


def function_pieces(subject: EmitSubject) -> Pieces:
    """The Function: the user's own text if it can stand alone, else that of its graphs."""
    own = own_text(subject) if subject.function is not None else None
    closures = {one.name for one in subject.captured.closures}
    if own is not None and not own.names & RESERVED and closures <= own.names:
        return _own_pieces(subject, own)
    if subject.captured.mutated:
        names = ", ".join(
            subject.captured.inputs[place].name for place, _ in subject.captured.mutated
        )
        raise CaptureError(
            f"`{subject.name}` must stand alone to be emitted, since it changes an input in place",
            expected="torch, the standard library, and things of its own module",
            got=f"`{names}` changed in place, by a class that needs something else",
            fix="work on a clone, and return it",
        )
    return graph_pieces(subject, subject.name)


def graph_pieces(subject: EmitSubject, name: str) -> Pieces:
    """The Function as the text of its graphs, under a name."""
    said = subject.program if subject.function is None else forward_of(subject.function)
    source = function_source(subject.comparison, subject.save, name, said)
    constants = [one.name for one in subject.captured.inputs if one.kind == "constant"]
    block = ["\n".join(source.constants)] if source.constants else []
    held = frozenset(constants)
    blocks = (*block, "\n".join(source.lines))
    return Pieces((), blocks, f"{name}.apply", held | {name}, held)


def _own_pieces(subject: EmitSubject, own: OwnSource) -> Pieces:
    """The user's own class, and a function that calls it with tensors alone where it takes more."""
    captured, name = subject.captured, subject.name
    names = [identifier(one.name) for one in captured.inputs if one.kind == "argument"]
    held = frozenset(one.name for one in captured.inputs if one.kind != "argument")
    changed = {place for place, _ in captured.mutated}
    given = [f"{one}.clone()" if i in changed else one for i, one in enumerate(names)]
    shown: list[Any] = [VerbatimName(one) for one in given]
    arguments = [repr(leaf) for leaf in captured.fill(shown)]
    if arguments == names:
        return Pieces(own.imports, own.statements, f"{name}.apply", own.names, held)
    call = [
        f"def {TESTED}({', '.join(names)}):",
        f'    """`{name}` with the plain arguments that this was written for."""',
        f"    return {name}.apply({', '.join(arguments)})",
    ]
    blocks = (*own.statements, "\n".join(call))
    return Pieces(own.imports, blocks, TESTED, own.names, held)


class VerbatimName:
    """A name, which is written as it is, in the place of a tensor."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name
