"""A program in several nodes as text: each node a class, and one function that runs them in order.

A unit that is a Function is its class; an op that runs as written is an expression.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from pullback.capture.joint import Capture, capture
from pullback.capture.names import identifier
from pullback.capture.trees import flatten, literal_of, tensor_leaves
from pullback.capture.units import Ref, Unit, part_of, refs_in, with_values
from pullback.capture.watch import FUNCTION
from pullback.compose.flow import Flow
from pullback.derive.dtypes import misled_by_dtypes, needed_dtypes
from pullback.derive.recipe import parts_of
from pullback.derive.size_checks import InputCheck, needed_sizes
from pullback.derive.source import returning
from pullback.emit.python.module import (
    RESERVED,
    Pieces,
    VerbatimName,
    function_of,
    graph_pieces,
    snake,
)
from pullback.emit.python.own_text import own_text
from pullback.emit.subject import EmitSubject, subject_of
from pullback.graph.copies import graph_returning
from pullback.graph.names import Local, unused
from pullback.graph.parts import FORWARD, phase_of
from pullback.graph.text import Text, graph_text
from pullback.graph.text_lines import wrapped_call

_NUMBERED = re.compile(r"(grad_)?v(\d+)")  # as `compose.text` names values


def steps_of(subject: EmitSubject) -> Pieces | None:
    """The nodes of a subject and the function that runs them; None where they cannot be parted.

    That is where a unit changes something in place: then one text for the whole is the same.
    """
    flow = subject.flow
    if flow is None or any(unit.changed for unit in flow.program.units):
        return None
    return _Steps(subject, flow).pieces()


class _Steps:
    """The text of the function, growing, and the classes that it calls."""

    def __init__(self, subject: EmitSubject, flow: Flow) -> None:
        self.subject, self.flow = subject, flow
        self.function = snake(subject.name)
        self.imports: dict[str, None] = {}
        self.blocks: dict[str, None] = {}
        self.classes: dict[Any, str] = {}
        self.taken = {*RESERVED, *dir(builtins), self.function}
        self.names: dict[int, str] = {}
        parts = subject.parts
        self.inputs = [parts.names[node] for node in parts.joint.inputs]
        self._name_values()
        self.values = flow.program.values(_inputs(subject))
        self.lines: list[str] = []
        self.written: Counter[bool] = Counter()  # by whether it is a node

    def pieces(self) -> Pieces:
        """All of it, with checks where it is not right for inputs of other dtypes and sizes."""
        program = self.flow.program
        for group in self.flow.groups:
            if group in self.flow.nodes:
                self.add_node(group)
            else:
                for number in group:
                    self.add_unit(program.units[number])
        plain, comparison = self._pieces(()), self.subject.comparison
        call = comparison.of_function(function_of(plain), plain.held)
        wrong, right = misled_by_dtypes(comparison, call)
        checks = needed_dtypes(comparison, self.inputs, wrong, right)
        checks += needed_sizes(comparison, self.inputs, call, ())
        return self._pieces(checks) if checks else plain

    def _pieces(self, checks: Sequence[InputCheck]) -> Pieces:
        every = self.flow.program.outputs
        row = [self.names[o.number] if isinstance(o, Ref) else literal_of(o) for o in every]
        returned = [text for text in row if text is not None]
        nodes, rest = self.written[True], self.written[False]
        inputs = self.subject.captured.inputs
        given = [name for one, name in zip(inputs, self.inputs, strict=True) if one.is_given]
        held = frozenset(one.name for one in inputs if one.kind == "constant")
        said = f"{nodes} node{'s' * (nodes != 1)} and {rest} unit{'s' * (rest != 1)} as written"
        checked = [line for check in checks for line in check.lines(self.subject.name)]
        lines = [
            wrapped_call(f"def {self.function}", given, ":"),
            f'    """`{self.subject.name}`: {said}."""',
            *(f"    {line}" for line in (*checked, *self.lines)),
            f"    {returning(returned, self.flow.program.out_spec)}",
        ]
        blocks = (*self.blocks, "\n".join(lines))
        return Pieces(tuple(self.imports), blocks, self.function, frozenset(self.taken), held)

    # ---- names ----

    def _name_values(self) -> None:
        """Name every value: as the user does, else by the unit that makes it."""
        program, captured = self.flow.program, self.subject.captured
        named = list(zip(captured.inputs, self.inputs, strict=True))
        own = [name for one, name in named if one.kind == "argument"]
        self.names |= zip((number for number, _ in program.inputs), own, strict=True)
        for closure in program.closures:
            same = (name for one, name in named if one.tensor is closure.tensor)
            self.names[closure.number] = next(same)
        self.taken |= set(self.names.values())
        given = _local_names(self.subject, self.flow)
        for unit in program.units:
            for number in unit.outputs:
                if number not in self.names:
                    wish = given.get(unit.number, snake(identifier(unit.name)))
                    self.names[number] = self.free(wish)

    def free(self, wish: str) -> str:
        """`wish`, with a number if it is taken; it is then."""
        name = unused(wish, self.taken)
        self.taken.add(name)
        return name

    def row(self, numbers: Sequence[int]) -> str:
        """The names of values, with commas."""
        return ", ".join(self.names[number] for number in numbers)

    # ---- steps ----

    def add_node(self, group: tuple[int, ...]) -> None:
        """A group that is one node; nodes that are written alike share one class."""
        part, cls = self.flow.parts[group], self.flow.nodes[group]
        if not part.outputs:  # its results are unused
            return
        self.written[True] += 1
        if cls not in self.classes:
            sub = self._named(subject_of(cls))
            self.classes[cls] = self.add_class(sub, cls.__name__)
        call = self.classes[cls]
        self.lines.append(f"{self.row(part.outputs)} = {call}({self.row(part.inputs)})")

    def _named(self, sub: EmitSubject) -> EmitSubject:
        """The subject of a node, its values under the names that they have outside.

        The one output of a node is not in a row: it is read where it is made.
        """
        captured = sub.captured
        spec = captured.out_spec
        spec = flatten(None)[1] if spec.num_leaves == 1 else spec
        inputs = tuple(replace(one, name=self._outside(one.name)) for one in captured.inputs)
        names = {node: self._outside(name) for node, name in captured.local_names.items()}
        outside = replace(captured, inputs=inputs, local_names=names, out_spec=spec)
        return replace(sub, captured=outside)

    def _outside(self, name: str) -> str:
        """The name of the value that the text of a node calls `v7`, or of its gradient."""
        found = _NUMBERED.fullmatch(name)
        if found is None or int(found[2]) not in self.names:
            return name
        renamed = f"{found[1] or ''}{self.names[int(found[2])]}"
        return Local(renamed, name.value) if isinstance(name, Local) else renamed

    def add_unit(self, unit: Unit) -> None:
        """A unit as written."""
        if unit.kind == FUNCTION:
            self.add_function(unit)
        else:
            self.add_op(unit)

    def add_function(self, unit: Unit) -> None:
        """A unit that is a Function: its class, and a call of it."""
        self.written[False] += 1
        args = with_values(unit.args, {n: x.detach() for n, x in self.values.items()})
        sub = subject_of(unit.target, args)
        own = own_text(sub) if sub.function is not None and not unit.kwargs else None
        pieces = Pieces(own.imports, own.statements, "", own.names, frozenset()) if own else None
        if pieces is not None and not self._clashes(pieces):
            self._take(pieces)
            names = {number: VerbatimName(name) for number, name in self.names.items()}
            shown = with_values(unit.args, names)
            call, given = f"{sub.name}.apply", ", ".join(map(repr, shown))
        else:
            call = self.add_class(sub, sub.name)
            given = self.row(refs_in((unit.args, unit.kwargs)))
        self.lines.append(f"{self.row(unit.outputs)} = {call}({given})")

    def add_op(self, unit: Unit) -> None:
        """A unit that is an op: an expression, or a function of its own if it needs lines."""
        part = part_of(self.flow.program, (unit.number,))
        if not part.outputs:
            return
        self.written[False] += 1
        examples = [self.values[number] for number in part.inputs]
        captured = capture(part.call, examples, needs=[t.requires_grad for t in examples])
        text = _forward(captured, [self.names[number] for number in part.inputs])
        made = ", ".join(text.returned)
        if text.statements:
            name = self.free(snake(identifier(unit.name)))
            body = [line for statement in text.statements for line in statement.splitlines()]
            head = wrapped_call(f"def {name}", text.parameters, ":")
            lines = [head, *(f"    {line}" for line in (*body, f"return {made}"))]
            self.blocks["\n".join(lines)] = None
            made = f"{name}({', '.join(text.parameters)})"
        line = f"{self.row(part.outputs)} = {made}"
        is_silent = any(t.requires_grad for t in examples) and _is_silent(captured)
        self.lines += ["with torch.no_grad():", f"    {line}"] if is_silent else [line]

    # ---- classes ----

    def add_class(self, sub: EmitSubject, wish: str) -> str:
        """The class of a subject, under a name of its own; gives how it is called."""
        name, number = wish, 2
        while True:
            pieces = graph_pieces(sub, name)
            if not self._clashes(pieces):
                self._take(pieces)
                return pieces.call
            if pieces.held.isdisjoint(self.taken):
                name, number = f"{wish}{number}", number + 1
            sub = self._with_own_constants(sub)

    def _with_own_constants(self, sub: EmitSubject) -> EmitSubject:
        """A subject with names for its constants that nothing else has."""
        inputs, names = list(sub.captured.inputs), {one.name for one in sub.captured.inputs}
        for place, one in enumerate(inputs):
            if one.name in self.taken and not one.is_given:
                inputs[place] = replace(one, name=unused(one.name, self.taken | names))
                names.add(inputs[place].name)
        return replace(sub, captured=replace(sub.captured, inputs=tuple(inputs)))

    def _clashes(self, pieces: Pieces) -> bool:
        """Whether a name in `pieces` is taken by something else."""
        is_there = all(block in self.blocks for block in pieces.blocks)
        return not is_there and not pieces.names.isdisjoint(self.taken)

    def _take(self, pieces: Pieces) -> None:
        self.imports |= dict.fromkeys(pieces.imports)
        self.blocks |= dict.fromkeys(pieces.blocks)
        self.taken |= pieces.names


def _local_names(subject: EmitSubject, flow: Flow) -> dict[int, str]:
    """The user's names for what units make, by the numbers of the units; as far as they are known.

    The capture of the whole has them, if it saw the same units. Inside a Function, the names are
    those of its forward, which are not meant.
    """
    captured = subject.captured
    if list(captured.units) != [unit.name for unit in flow.program.units]:
        return {}
    ops = [unit for unit in flow.program.units if unit.kind != FUNCTION]
    single = {unit.number for unit in ops if len(unit.outputs) == 1}
    found: dict[int, str] = {}
    for node in captured.joint.graph.nodes:
        number = node.meta.get("unit")
        if phase_of(node) == FORWARD and number in single and node.name in captured.local_names:
            found[number] = captured.local_names[node.name]
    return found


def _inputs(subject: EmitSubject) -> list[Tensor]:
    """Tensors for the arguments of a subject, like those of its examples."""
    pairs = zip(subject.tensors(), subject.captured.inputs, strict=False)
    return [tensor.requires_grad_(one.needs) for tensor, one in pairs]


def _forward(captured: Capture, names: Sequence[str]) -> Text:
    """The forward of one unit, its inputs under the names that they have outside."""
    parts = parts_of(captured, "everything", readable=True)
    graph = graph_returning(parts.forward, lambda row: row[: captured.joint.output_count])
    placeholders = graph.find_nodes(op="placeholder")
    return graph_text(graph, dict(zip(placeholders, names, strict=True)))


def _is_silent(captured: Capture) -> bool:
    """Whether a unit gives numbers without history: it ran with recording off."""
    made = [node.meta["val"] for node in captured.joint.outputs if hasattr(node, "meta")]
    numbers = [v for v in tensor_leaves(made) if v.is_floating_point() or v.is_complex()]
    return bool(numbers) and not any(o.differentiable for o in captured.outputs)
