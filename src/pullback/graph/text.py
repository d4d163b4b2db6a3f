"""A graph as the text of a Python function, in torch ops, that runs as it stands.

What is used once and reads well inside another expression is written there; everything else gets a
line and a name. Names that the user gave always get a line: the text then follows the user's own
code. Running the text gives bit for bit what running the graph gives.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback.errors import UnsupportedOpError
from pullback.graph.cost import is_mutating, is_opaque, is_random
from pullback.graph.dead import drop_dead
from pullback.graph.names import RESERVED, Names, unused
from pullback.graph.parts import BACKWARD, phase_of
from pullback.graph.spelling import spell
from pullback.graph.spelling.expressions import Expression, PythonWriter
from pullback.graph.spelling.views import assigned
from pullback.graph.text_lines import WIDTH, Line, read_lines, wrapped_call
from pullback.graph.values import aten, is_scalar

LONGEST, LARGEST, TRIVIAL = 64, 8, 20
"""Characters and ops of an expression that may stand inside another one, or inside several."""

TURNS = (aten.t.default, aten.transpose.int, aten.unsqueeze.default)
"""Views that are written out rather than named: `w.T`."""


@dataclass(frozen=True, slots=True)
class Text:
    """The parts of a printed function: parameters, statements and returned expressions."""

    parameters: tuple[str, ...]
    statements: tuple[str, ...]
    returned: tuple[str, ...]


def function_text(
    graph: fx.Graph,
    name: str,
    names: Mapping[fx.Node, str] | None = None,
    *,
    is_row: bool = False,
) -> str:
    """The source of a function `name` that computes what `graph` computes.

    It needs `torch` in its namespace and nothing else.

    Arguments:
        graph: Placeholders, calls and one output: a forward, a backward, or a joint graph.
        name: The name of the function.
        names: The names of nodes, from `names_of`; also those of a graph that this one is a part
            of, since nodes keep their names.
        is_row: Whether one value is returned in a tuple, as several are, or as it is.
    """
    text = graph_text(graph, names)
    body = [f"    {line}" for statement in text.statements for line in statement.splitlines()]
    returned = ", ".join(text.returned) or "()"
    returned += "," * (is_row and len(text.returned) == 1)
    head = wrapped_call(f"def {name}", text.parameters, ":")
    return "\n".join([head, *body, f"    return {returned}", ""])


def graph_text(
    graph: fx.Graph,
    names: Mapping[fx.Node, str] | None = None,
    dtypes: Mapping[torch.dtype, str] | None = None,
) -> Text:
    """The parts of the text of `graph`, for those who put their own head around it.

    `dtypes` are those that are not the same for every call, each with the name that it has where no
    tensor in sight is of it; by default, those of all tensors in sight.
    """
    live = drop_dead(graph)
    page = _Page(live, names or {}, dtypes)
    for node in live.nodes:
        page.write(node)
    parameters = tuple(page.names[node] for node in page.writer.placeholders)
    returned = page.returned()
    return Text(parameters, tuple(read_lines(page.lines, returned)), returned)


class _Page:
    """A text that grows node by node."""

    def __init__(
        self,
        graph: fx.Graph,
        names: Mapping[fx.Node, str],
        dtypes: Mapping[torch.dtype, str] | None,
    ) -> None:
        wishes = {node.name: name for node, name in names.items()}
        given = names.given if isinstance(names, Names) else names.keys()
        self.wishes = wishes
        self.given = {node.name for node in given}
        self.graph = graph
        self.names: dict[fx.Node, str] = {}
        self.lines: list[Line] = []
        self.used = {wishes[name] for name in self.given if name in wishes}
        placeholders = tuple(graph.find_nodes(op="placeholder"))
        self.writer = PythonWriter(placeholders, self.names, {}, dtypes)

    # ---- names ----

    def name(self, node: fx.Node) -> str:
        """Fix the name of a node that gets a line."""
        if node not in self.names:
            wish = self.wishes.get(node.name, node.name)
            is_given = node.name in self.given
            self.names[node] = wish if is_given else self.unused(wish)
            self.used.add(self.names[node])
        return self.names[node]

    def unused(self, wish: str) -> str:
        """`wish`, with a number if it is taken."""
        wish = f"{wish}_" if keyword.iskeyword(wish) or wish in RESERVED else wish
        return unused(wish, self.used)

    # ---- statements ----

    def write(self, node: fx.Node) -> None:
        """Give `node` a parameter, a line, or a place inside the expression that uses it."""
        if node.op == "placeholder":
            self.name(node)
        elif node.op == "call_function":
            self.write_call(node)
        elif node.op != "output":
            raise UnsupportedOpError(
                "a constant in the graph must be a literal to be printed",
                at=str(node.meta.get("place", "")),
                got=f"node `{node.name}` ({node.op})",
                fix="pass it as an argument of the function",
            )

    def write_call(self, node: fx.Node) -> None:
        """Decide where a call goes."""
        if node in self.names:  # unpacked already
            return
        if _is_put(node):
            if not self.is_put_again(node):
                self.put(node)
            return
        expression = spell(self.writer, node)
        is_small = self.is_inlinable(node) and _is_short(expression)
        if is_small or _is_trivial(node, expression):
            self.writer.inlined[node] = expression
        else:
            self.state(node)

    def state(self, node: fx.Node) -> None:
        """Write a line for `node`, taking expressions out of it until it fits."""
        parts = _unpacked(node)
        targets = [self.name(part) if part else "_" for part in parts or [node]]
        target = ", ".join(targets)
        expression = spell(self.writer, node)
        while len(f"{target} = {expression.text}") > WIDTH:
            longest = self.longest_part(node)
            if longest is None:
                break
            self.take_out(longest)
            expression = spell(self.writer, node)
        has_effect = is_random(node) or is_mutating(node) or is_opaque(node)
        self.lines.append(_line(targets, expression, has_effect=has_effect))

    def take_out(self, node: fx.Node) -> None:
        """Give a line to an expression that was to stand inside another one."""
        del self.writer.inlined[node]
        self.state(node)

    # ---- zeros with something put in ----

    def is_put_again(self, node: fx.Node) -> bool:
        """Whether more is put into what `node` gives, and nothing else is done with it."""
        users = list(uses_of(node))
        is_base = len(users) == 1 and _is_put(users[0]) and users[0].args[0] is node
        return is_base and node.name not in self.given

    def put(self, node: fx.Node) -> None:
        """Write `node` as zeros that parts are assigned to: `grad[:, 0] = g`."""
        steps = [node]
        while _is_put(steps[-1].args[0]):
            steps.append(steps[-1].args[0])  # type: ignore[arg-type]
        base = self.writer.arg(steps[-1].args[0])
        for step in steps:
            value: Any = step.args[1]
            if value in self.writer.inlined and len(self.writer.inlined[value].text) > TRIVIAL:
                self.take_out(value)
        name = self.name(node)
        puts = [f"{assigned(self.writer, name, step)}" for step in steps[::-1]]
        self.lines.append(Line((name,), "\n".join([f" = {base}", *puts])))

    def longest_part(self, node: fx.Node) -> fx.Node | None:
        """The longest expression inside that of `node` that can have a line of its own."""
        inlined = self.writer.inlined
        inside = [arg for arg in node.all_input_nodes if arg in inlined and not is_scalar(arg)]
        inside = [arg for arg in inside if inlined[arg].size > 0]
        return max(inside, key=lambda arg: len(inlined[arg].text), default=None)

    def is_inlinable(self, node: fx.Node) -> bool:
        """Whether `node` may stand inside the expression of its only user."""
        if node.name in self.given or is_random(node) or is_opaque(node):
            return False
        uses = list(uses_of(node))
        if len(uses) != 1 or _unpacked(node):
            return False
        (user,) = uses
        return user.op != "output" or len(_returned(self.graph)) == 1

    def returned(self) -> tuple[str, ...]:
        """The returned expressions."""
        return tuple(self.writer.arg(value) for value in _returned(self.graph))


PUTS = (aten.select_scatter.default, aten.slice_scatter.default)
ZEROS = (aten.zeros_like.default, aten.new_zeros.default, aten.zeros.default)


def _is_put(node: Any) -> bool:
    """Whether `node` puts a part into zeros that nothing else reads, in backward."""
    if not isinstance(node, fx.Node) or node.target not in PUTS or phase_of(node) != BACKWARD:
        return False
    base: Any = node.args[0]
    return len(list(uses_of(base))) == 1 and (base.target in ZEROS or _is_put(base))


def _is_short(expression: Expression) -> bool:
    return len(expression.text) <= LONGEST and expression.size <= LARGEST


def _is_trivial(node: fx.Node, expression: Expression) -> bool:
    """Whether an expression is written where it is used: a number, a transpose, one of results."""
    if isinstance(node.meta.get("val"), list | tuple):
        return len(node.users) == 1 and not is_random(node)  # one result, which spells it
    if is_scalar(node) or node.target == aten.scalar_tensor.default:
        return len(expression.text) <= LONGEST
    is_turn = node.target in TURNS and len(node.users) <= 3
    return is_turn and expression.size == 1 and len(expression.text) <= TRIVIAL


def _returned(graph: fx.Graph) -> Any:
    return graph.output_node().args[0]


def uses_of(node: fx.Node) -> Iterator[fx.Node]:
    """The users of `node`, each as often as it uses it."""
    for user in node.users:
        found: list[fx.Node] = []
        fx.map_arg((user.args, user.kwargs), found.append)
        yield from [user] * found.count(node)


def _unpacked(node: fx.Node) -> list[fx.Node | None]:
    """The nodes that take the results of `node` apart; nothing if it has one that is used."""
    results = node.meta.get("val")
    if not isinstance(results, list | tuple) or len(results) > 8:
        return []
    return unpacking_users(node, len(results))


def unpacking_users(node: fx.Node, count: int) -> list[fx.Node | None]:
    """For each of the `count` results of `node`, the node that takes it out.

    Nothing if fewer than two are taken out, or if anything else is done with `node`.
    """
    users = list(node.users)
    if len(users) < 2 or any(user.target is not operator.getitem for user in users):
        return []
    takers = {user.args[1]: user for user in users}
    return [takers.get(index) for index in range(count)] if len(takers) == len(users) else []


def _line(targets: list[str], expression: Expression, *, has_effect: bool) -> Line:
    rest = f" = {expression.text}"
    if len(", ".join(targets) + rest) > WIDTH and expression.head:
        head = f"{', '.join(targets)} = {expression.head}"
        rest = wrapped_call(head, expression.arguments)[len(", ".join(targets)) :]
    return Line(tuple(targets), rest, has_effect)
