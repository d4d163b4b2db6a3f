"""The body of a function in C++: a graph, statement by statement.

What is used once and is short stands inside the expression that uses it; all else has a line and a
name. In backward, what only some of the gradients need stands in a block that is run only where one
of these is asked for.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from pullback.emit.cpp.calls import spell_cpp
from pullback.emit.cpp.values import SYMBOLIC, CppWriter, no_cpp_form, quoted, symbolic_type
from pullback.function.slots import op_schema
from pullback.graph.cost import is_opaque, is_random, op_of
from pullback.graph.cut_problem import ancestors
from pullback.graph.dead import drop_dead
from pullback.graph.names import Names, unused
from pullback.graph.spelling.expressions import Expression
from pullback.graph.text import unpacking_users, uses_of
from pullback.graph.values import held_value

CPP_WIDTH = 92
"""The longest statement, with room for its indentation."""

LONGEST, LARGEST = 56, 4
"""Characters and ops of an expression that may stand inside another one."""

RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return
    co_yield decltype default delete do double dynamic_cast else enum explicit export extern
    false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires
    return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq at c10 std torch ctx guard saved cotangents number scalar
    no_autocast silent widest
    call_op floor_div floor_mod floor_of power main forward backward apply check_inputs
    assert errno signbit isnan isinf NULL EOF stdin stdout stderr
    """,
    )
)
"""Words that C++ or the emitted file has a use for."""


def cpp_identifier(wish: str) -> str:
    """`wish` as an identifier of C++ that means nothing else."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", wish) or "_"
    name = f"v{name}" if name[0].isdigit() else name
    name = re.sub(r"__+", "_", name).lstrip("_") or "value"
    name = f"v{name}" if name[0].isdigit() else name
    return f"{name}_" if name in RESERVED else name


class Body:
    """The statements of a graph, and the expressions that it returns."""

    def __init__(
        self,
        graph: fx.Graph,
        names: Mapping[fx.Node, str],
        given: Mapping[str, str],
        *,
        flags: Sequence[str] = (),
        taken: Iterable[str] = (),
        owner: str = "",
    ) -> None:
        """Write `graph`, for the Function `owner`.

        `given` are the user's names of inputs, by those of their nodes; `flags` the conditions
        under which each returned value is needed; `taken` the names that mean something else.
        """
        self.graph = drop_dead(graph)
        self.owner = owner
        self.flags = list(flags)
        self.wishes = {node.name: name for node, name in names.items()} | dict(given)
        named = names.given if isinstance(names, Names) else names.keys()
        self.given = {node.name for node in named}
        self.taken = set(taken)
        self.names: dict[fx.Node, str] = {}
        placeholders = self.graph.find_nodes(op="placeholder")
        for node in placeholders:
            self._name(node)
        sources = [node for node in placeholders if isinstance(node.meta.get("val"), Tensor)]
        self.placeholders = list(placeholders)
        self.writer = CppWriter(sources, self.names)
        self.needs = self._needs()
        self.blocks: dict[frozenset[int], list[str]] = {}
        self.early: dict[frozenset[int], list[str]] = {}
        for node in self._in_order():
            self._write(node)

    @property
    def returned(self) -> list[Any]:
        """The nodes and constants that the graph returns."""
        return list(self.graph.output_node().args[0])  # type: ignore[arg-type]

    def text(self, value: Any) -> str:
        """A returned value."""
        if isinstance(value, fx.Node):
            return self.writer.node(value).text
        raise no_cpp_form("a value that is no tensor", repr(value))

    # ---- which gradients need what ----

    def _everything(self) -> frozenset[int]:
        return frozenset(i for i, v in enumerate(self.returned) if isinstance(v, fx.Node))

    def _needs(self) -> dict[fx.Node, frozenset[int]]:
        """For each node, the places of the returned values that need it."""
        everything = self._everything()
        if not self.flags or len(everything) < 2:
            return dict.fromkeys(self.graph.nodes, everything)
        found: dict[fx.Node, set[int]] = {node: set() for node in self.graph.nodes}
        for place in everything:
            for node in ancestors([self.returned[place]]):
                found[node].add(place)
        # A draw moves the stream of random numbers even if its result is unused.
        draws = {node for node in found if is_random(node)}
        for node in draws:
            for before in ancestors([node]):
                found[before] |= everything
        return {node: frozenset(places) for node, places in found.items()}

    def _in_order(self) -> list[fx.Node]:
        """The calls, those that more gradients need first: what they use, as many need, too."""
        calls = [node for node in self.graph.nodes if node.op == "call_function"]
        return sorted(calls, key=lambda node: -len(self.needs[node]))

    def _is_shared(self, node: fx.Node) -> bool:
        """Whether a node is used outside of the block that it stands in.

        A size or one of several results may be written wherever it is used.
        """
        for user in node.users:
            if user.op == "output" or self.needs[user] != self.needs[node]:
                return True
            is_carried = user.target is operator.getitem or isinstance(held_value(user), SYMBOLIC)
            if is_carried and self._is_shared(user):
                return True
        return False

    # ---- statements ----

    def _write(self, node: fx.Node) -> None:
        if node in self.names:  # unpacked already
            return
        expression = spell_cpp(self.writer, node)
        if self._is_inlinable(node, expression):
            self.writer.inlined[node] = expression
        else:
            self._state(node, expression)

    def _state(self, node: fx.Node, expression: Expression) -> None:
        places = self.needs[node]
        lines = self.blocks.setdefault(places, [])
        takers = _takers(node)
        is_always = places == self._everything()
        if takers and (is_always or not any(t and self._is_shared(t) for t in takers)):
            names = [self._name(t) if t else self._unused("unused") for t in takers]
            lines.append(f"auto [{', '.join(names)}] = {expression.text};")
            return
        name = self._name(node)
        if is_always or not self._is_shared(node):
            lines.append(f"auto {name} = {expression.text};")
        else:
            self.early.setdefault(places, []).append(f"{_declared(node)} {name};")
            lines.append(f"{name} = {expression.text};")
        if _is_list(node):
            lines.append(self._counted(node, name))

    def _counted(self, node: fx.Node, name: str) -> str:
        """The line that refuses sizes with which there are more pieces, or fewer, than here."""
        count, op = len(node.meta["val"]), op_schema(op_of(node)).name.partition("::")[2]
        source = node.all_input_nodes[0] if node.all_input_nodes else node
        of = f" of {self.names[source]}" if source in self.names and source is not node else ""
        said = quoted(f"{self.owner}: {op}{of} must give {count} tensors, got ")
        return f"TORCH_CHECK({name}.size() == {count}, {said}, {name}.size());"

    def _is_inlinable(self, node: fx.Node, expression: Expression) -> bool:
        if is_random(node) or (is_opaque(node) and op_of(node) is not None):
            return False
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC):
            return len(expression.text) <= LONGEST
        uses = list(uses_of(node))
        if len(uses) != 1 or self.needs[uses[0]] != self.needs[node]:
            return bool(uses) and node.target is operator.getitem and _is_name(expression.text)
        (user,) = uses
        if isinstance(value, list | tuple):
            return user.target is operator.getitem and not _is_list(node)
        if node.name in self.given or user.op == "output":
            return False
        return len(expression.text) <= LONGEST and expression.size <= LARGEST

    def lines(self) -> Iterator[str]:
        """The statements, blocks indented."""
        everything = self._everything()
        for places, lines in self.blocks.items():
            if places == everything:
                yield from (part for line in lines for part in wrapped_statement(line, ""))
                continue
            yield from self.early.get(places, ())
            yield f"if ({' || '.join(self.flags[place] for place in sorted(places))}) {{"
            yield from (part for line in lines for part in wrapped_statement(line, "  "))
            yield "}"

    # ---- names ----

    def _name(self, node: fx.Node) -> str:
        if node not in self.names:
            self.names[node] = self._unused(cpp_identifier(self.wishes.get(node.name, node.name)))
        return self.names[node]

    def _unused(self, wish: str) -> str:
        name = unused(wish, self.taken)
        self.taken.add(name)
        return name


def _is_name(text: str) -> bool:
    return re.fullmatch(r"\w+\.at\(\d+\)|std::get<\d+>\(\w+\)", text) is not None


def _is_list(node: fx.Node) -> bool:
    """Whether an op gives a list, as long as the sizes of its inputs make it."""
    op, value = op_of(node), node.meta.get("val")
    return op is not None and len(op_schema(op).returns) == 1 and isinstance(value, list | tuple)


def _takers(node: fx.Node) -> list[fx.Node | None]:
    """The nodes that take the results of `node` apart, if that is all that is done with it."""
    op = op_of(node)
    count = 0 if op is None else len(op_schema(op).returns)
    return unpacking_users(node, count) if count > 1 else []


def _declared(node: fx.Node) -> str:
    """The type of a variable that is declared before it gets its value."""
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return "at::Tensor"
    if isinstance(value, SYMBOLIC):
        return symbolic_type(value)
    op = op_of(node)
    if op is not None and len(op_schema(op).returns) > 1 and isinstance(value, tuple | list):
        return f"std::tuple<{', '.join('at::Tensor' for _ in value)}>"
    return "std::vector<at::Tensor>"


def wrapped_statement(line: str, indent: str) -> Iterator[str]:
    """A statement over as many lines as it takes: broken after commas, never inside a string."""
    limit = CPP_WIDTH - len(indent)
    first = True
    while len(line) > limit:
        cut = _break(line, limit if first else limit - 4)
        if cut is None:
            break
        yield f"{indent}{'' if first else '    '}{line[:cut].rstrip()}"
        line, first = line[cut:].lstrip(), False
    yield f"{indent}{'' if first else '    '}{line}"


def _break(line: str, limit: int) -> int | None:
    """The best place to break a line: the last comma or operator outside of strings that fits."""
    best, depth_of_best, depth, inside = None, 99, 0, False
    for place, character in enumerate(line[:limit]):
        if character == '"' and line[place - 1] != "\\":
            inside = not inside
        if inside:
            continue
        depth += (character in "({[") - (character in ")}]")
        ends = character == "," or line[place : place + 3] in (" + ", " - ", " * ", " / ")
        ends = ends or line[place : place + 4] in (" = a", " = c", " = x")
        if ends and place > limit // 3 and depth <= depth_of_best:
            best, depth_of_best = place + (2 if character == " " else 1), depth
    return best


def includes_of(bodies: Iterable[Body]) -> list[str]:
    """The headers that the bodies need."""
    return sorted({header for body in bodies for header in body.writer.includes})
