"""The engine of rewrites: rules from tables are applied to a graph until none applies.

A rule looks at one node and gives what may stand in its place, or None. It is written as a pair of
formulas, or as a function of the node:

    Rule.of("added-negative", a + -b, lambda a, b: a - b, why="IEEE defines a - b as a + (-b)")

    @rule("whole-slice", aten.slice.Tensor, why="the slice takes everything")
    def whole_slice(node: Value) -> Value | None: ...

The engine keeps the invariants, so that rules need not: what replaces a node has its shape, dtype,
device and strides; a new node goes on under the name of the node it replaces, in its phase, unit
and place; no output of the program turns into one of its inputs or into another output; memory that
`as_strided` reads past the strides of a tensor stays as it is. A rule that would break one of them
does not apply. A node says in `meta["rules"]` which rules made it what it is, and in
`meta["stands_for"]` the names of the nodes whose place it took.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import fx

from pullback.errors import InternalError
from pullback.graph.copies import copied_graph
from pullback.graph.cost import base_of, is_view, op_name
from pullback.graph.dead import erase_dead
from pullback.graph.patterns import CallPattern
from pullback.graph.values import (
    Maker,
    Value,
    outcome_of,
    same,
    same_kind,
    same_layout,
    unwrapped_values,
)

Formula = Callable[..., Any]
"""A function of values that gives a value, a tuple of them for several results, or None."""

SWEEPS = 100
"""How often the rules may go over a graph. No graph we met took more than ten."""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One rewrite: its name, why it is right, the ops it looks at, and what it does.

    A rule that does not keep strides applies where all that follows runs with the new ones, and
    nothing is returned that newly overlaps itself. A late rule waits until no other applies.
    """

    name: str
    why: str
    heads: tuple[Any, ...]
    formula: Formula
    keeps_strides: bool = True
    is_late: bool = False

    @staticmethod
    def of(
        name: str,
        pattern: CallPattern,
        formula: Formula,
        *,
        why: str,
        when: Formula | None = None,
        keeps_strides: bool = True,
    ) -> RewriteRule:
        """The rule that turns what matches `pattern` into `formula`, if `when` holds.

        The names of the wildcards are the names of the parameters of both functions.
        """

        def rewrite(node: Value) -> Any:
            for bound in pattern.matches_root(node.node, {}):
                values = {key: node.maker.wrap(arg) for key, arg in bound.items()}
                if when is None or when(**values):
                    return formula(**values)
            return None

        return RewriteRule(name, why, (pattern.target,), rewrite, keeps_strides)


Table = tuple[RewriteRule, ...]


def rule(
    name: str, *heads: Any, why: str, keeps_strides: bool = True, is_late: bool = False
) -> Callable[[Formula], RewriteRule]:
    """Make the decorated function of a node a rule for the ops in `heads`."""
    return lambda formula: RewriteRule(name, why, heads, formula, keeps_strides, is_late)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A new graph, and how often each rule was applied to get it, by name."""

    graph: fx.Graph
    applied: Counter[str]


def rewrite(graph: fx.Graph, table: Table, output_count: int | None = None) -> Rewritten:
    """Apply the rules of `table` until none applies, and drop what is dead.

    Arguments:
        graph: A graph in the form of `parts.py`, which stays as it is.
        table: The rules, in order of preference.
        output_count: How many of the returned values are outputs, and not gradients, which
            may alias one another; None for all.
    """
    copy, _ = copied_graph(graph)
    work = _Work(copy, output_count)
    early, late = (_by_head(table, is_late=is_late) for is_late in (False, True))
    for _ in range(SWEEPS):
        if not work.sweep(early) and not work.sweep(late):
            break
    else:
        raise InternalError(
            "the rules must come to an end",
            expected=f"at most {SWEEPS} sweeps",
            got=", ".join(f"{name} {count} times" for name, count in work.applied.most_common(4)),
        )
    return Rewritten(copied_graph(copy, work.names)[0], work.applied)


Rules = dict[Any, list[RewriteRule]]


def _by_head(table: Table, *, is_late: bool) -> Rules:
    heads: Rules = defaultdict(list)
    for entry in table:
        for head in entry.heads if entry.is_late == is_late else ():
            heads[head].append(entry)
    return dict(heads)


class _Work:
    """A graph that is being rewritten in place."""

    def __init__(self, graph: fx.Graph, output_count: int | None) -> None:
        self.graph = graph
        self.applied: Counter[str] = Counter()
        self.names: dict[fx.Node, str] = {}
        self.outputs: slice = slice(output_count)
        self.reads_memory = any(map(_reads_memory, graph.nodes))

    def sweep(self, rules: Rules) -> bool:
        """Try the rules on every node once; whether one applied."""
        before = self.applied.total()
        for node in list(self.graph.nodes):
            if node.op == "call_function" and node.users:
                self.try_rules(node, rules.get(node.target, []))
        erase_dead(self.graph)
        return self.applied.total() > before

    def try_rules(self, node: fx.Node, rules: list[RewriteRule]) -> None:
        """Apply the first rule that applies to `node`."""
        for entry in rules:
            last = node.prev
            applies = self.apply(entry, node)
            made = list(_between(last, node))
            for unused in reversed([] if applies else made):
                self.graph.erase_node(unused)
            if applies:
                self.applied[entry.name] += 1
                return

    def apply(self, entry: RewriteRule, node: fx.Node) -> bool:
        """Put what `entry` gives in the place of `node`; whether it gave something fitting."""
        last = node.prev
        try:
            new = unwrapped_values(entry.formula(Value(node, Maker(node))))
        except (RuntimeError, ValueError):  # the fake run of a new op: its arguments do not fit
            return False
        if new is None:
            return False
        made = set(_between(last, node))
        if any(node in part.all_input_nodes for part in made):
            return False
        pairs = list(_pairs(node, new))
        if not all(self.fits(entry, old, replacement) for old, replacement in pairs):
            return False
        for old, replacement in pairs:
            self.replace(entry.name, old, replacement, replacement in made)
        return True

    def fits(self, entry: RewriteRule, old: fx.Node, new: Any) -> bool:
        """Whether `new` may stand in the place of `old`."""
        if not isinstance(new, fx.Node) or new is old:
            return False
        before: Any = old.meta.get("val")
        after: Any = new.meta.get("val")
        if isinstance(before, torch.SymInt):
            return isinstance(after, torch.SymInt) and same(before, after)
        if not same_kind(before, after) or self.would_alias(old, new):
            return False
        if self.reads_memory and _is_read_raw(old):
            return False
        return same_layout(before, after) or (not entry.keeps_strides and self.relay(old, after))

    def would_alias(self, old: fx.Node, new: fx.Node) -> bool:
        """Whether an output would become an input, or newly share its memory."""
        returned: Any = self.graph.output_node().args[0]
        outputs = [node for node in returned[self.outputs] if isinstance(node, fx.Node)]
        if old in outputs and (new.op == "placeholder" or new in outputs):
            return True
        bases = list(map(base_of, outputs))
        if is_view(old) or old not in bases:
            return False
        base = base_of(new)
        return base.op == "placeholder" or base in bases

    def relay(self, old: fx.Node, after: torch.Tensor) -> bool:
        """Update the strides of what follows from `old`; whether it all still runs."""
        vals: dict[fx.Node, Any] = {old: after}
        returned: Any = self.graph.output_node().args[0]
        for node in _between(old, self.graph.output_node()):
            if vals.keys().isdisjoint(node.all_input_nodes):
                continue
            if _reads_memory(node):
                return False
            args, kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda arg: vals.get(arg, arg.meta.get("val"))
            )
            try:
                val = outcome_of(node.target, args, kwargs)
            except (RuntimeError, ValueError):  # a view that these strides do not allow
                return False
            if not _is_laid_out_like(val, node.meta["val"]):
                vals[node] = val
        if any(
            _overlaps(vals[node]) > _overlaps(node.meta["val"]) for node in vals.keys() & returned
        ):
            return False
        for node, val in vals.items():
            node.meta["val"] = val
        return True

    def replace(self, name: str, old: fx.Node, new: fx.Node, is_made: bool) -> None:
        """Let the users of `old` use `new`, and note where it came from."""
        old.replace_all_uses_with(new, propagate_meta=False)
        former = self.names.get(old, old.name)
        if is_made:
            self.names[new] = former
        stood_for = (*old.meta.get("stands_for", ()), *(() if is_made else (former,)))
        new.meta["stands_for"] = (*new.meta.get("stands_for", ()), *stood_for)
        new.meta["rules"] = (*new.meta.get("rules", ()), *old.meta.get("rules", ()), name)


def _reads_memory(node: fx.Node) -> bool:
    """Whether `node` takes numbers by their place in memory, whatever the strides of its source."""
    return op_name(node).startswith("as_strided")


def _is_read_raw(node: fx.Node) -> bool:
    """Whether something takes numbers from the memory of `node` by their place in it."""
    left = [node]
    while left:
        for user in left.pop().users:
            if _reads_memory(user):
                return True
            left += [user] if is_view(user) else []
    return False


def _is_laid_out_like(one: Any, two: Any) -> bool:
    """Whether two values are tensors of the same kind and strides, or no tensors."""
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return not isinstance(one, list | tuple)
    return same_kind(one, two) and same_layout(one, two)


def _overlaps(value: Any) -> bool:
    """Whether a tensor holds one number in several places, as `expand` does."""
    if not isinstance(value, torch.Tensor):
        return False
    steps = zip(value.shape, value.stride(), strict=True)
    return any(same(step, 0) and not same(size, 1) for size, step in steps)


def _between(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    """The nodes after `first` and before `last`."""
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _pairs(node: fx.Node, new: Any) -> Iterator[tuple[fx.Node, Any]]:
    """Which node is replaced by what: `node`, or the parts of it if `new` is a tuple."""
    if not isinstance(new, tuple):
        yield node, new
        return
    for part in list(node.users):
        if part.target is not getitem:
            raise InternalError(
                f"`{node.name}` must be taken apart before it is rewritten",
                got=f"`{part.name}` uses it as a whole",
            )
        if part.users:
            yield part, new[part.args[1]]  # type: ignore[index]
