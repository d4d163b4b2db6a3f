"""Edits: the small changes of a hand-written backward that might make it right.

An edit gives one or more operands in the user's graph a new value: another value in scope, the same
with a sign, a factor or a summand, or the op with another constant, another argument order, or
another op. Each has a cost, so that the smallest is tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.trees import flatten, unflatten
from pullback.diagnose.op_alternatives import alternatives, is_idle, is_wrapper, turns
from pullback.diagnose.scope import (
    ARITHMETIC,
    COTANGENT,
    DERIVED,
    NUMBER,
    REDUCED,
    NamedValue,
    Scope,
    literals_in,
    numbers_in,
)
from pullback.diagnose.wording import Wording, is_reduction
from pullback.graph.cost import op_name
from pullback.graph.parts import BACKWARD, calls, phase_of
from pullback.graph.values import aten, tensor_of

Use = tuple[fx.Node, int]
"""One operand: a node that uses it, and its place among the leaves of the node's arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class NewCall:
    """A call of an op on named values, nodes of the user's graph, other calls, and numbers."""

    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


def built(
    operand: Any,
    of_value: Callable[[NamedValue], Any],
    of_node: Callable[[fx.Node], Any],
    call: Callable[..., Any],
) -> Any:
    """A new operand, made by `call` from what stands for its named values and nodes."""

    def make(part: Any) -> Any:
        if isinstance(part, NamedValue):
            return of_value(part)
        if isinstance(part, fx.Node):
            return of_node(part)
        if isinstance(part, NewCall):
            kwargs = {key: make(value) for key, value in part.kwargs}
            return call(part.op, *map(make, part.args), **kwargs)
        return [make(item) for item in part] if isinstance(part, (list, tuple)) else part

    return make(operand)


@dataclass(frozen=True, slots=True, eq=False)
class CandidateEdit:
    """An edit that is not tried yet: the new operands, its cost, and its description.

    `needs` are the nodes of the user's backward that the new operands are made from: the edit
    makes sense only if it does not change those. `say` gives the text of the edit, and of the
    error that it repairs.
    """

    cost: float
    changes: tuple[tuple[Use, Any], ...]
    needs: frozenset[fx.Node]
    kind: str
    say: Callable[[], tuple[str, str]]

    @property
    def users(self) -> list[fx.Node]:
        """The nodes that are given a new operand."""
        return [user for (user, _), _ in self.changes]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Some uses of one value, that change together."""

    old: fx.Node
    uses: tuple[Use, ...]
    extent: str = ""  # of several uses

    @property
    def is_returned(self) -> bool:
        """Whether the value is a gradient, which is returned there."""
        return all(user.op == "output" for user, _ in self.uses)


def argument_leaves(node: fx.Node) -> tuple[list[Any], Any]:
    """The leaves of a node's arguments, and their form."""
    return flatten((node.args, node.kwargs))


def candidate_edits(
    scope: Scope, place: int, in_time: Callable[[], bool] = lambda: True
) -> list[CandidateEdit]:
    """Every edit that might repair the gradient at `place`, the smallest first.

    When the time is over, those that were made until then.
    """
    if not isinstance(scope.hand.joint.gradients[place], fx.Node):
        return []
    maker = _Maker(scope, place)
    kinds = (maker.rewrites(), maker.literals(), maker.replacements(), maker.additions())
    found = takewhile(lambda _: in_time(), chain(*kinds))
    return sorted(found, key=lambda candidate: candidate.cost)


def swap(scope: Scope, place: int, other: int) -> CandidateEdit | None:
    """The edit that exchanges two of the returned gradients."""
    joint = scope.hand.joint
    one, two = joint.gradients[place], joint.gradients[other]
    if not isinstance(one, fx.Node) or not isinstance(two, fx.Node):
        return None
    output, count = joint.graph.output_node(), joint.output_count
    changes = (((output, count + place), two), ((output, count + other), one))
    return CandidateEdit(0, changes, frozenset(), "swap", lambda: ("", ""))


def give(scope: Scope, place: int, known: NamedValue | None) -> CandidateEdit:
    """The edit that returns another value for the gradient at `place`, or None."""
    joint = scope.hand.joint
    use = (joint.graph.output_node(), joint.output_count + place)
    instead = " instead of `None`" if joint.gradients[place] is None else ""
    text = f"return `{known.text.text if known else None}`{instead}"
    needs = known.needs if known else frozenset()
    return CandidateEdit(99, ((use, known),), needs, "derived", lambda: (text, ""))


@dataclass(frozen=True, slots=True, eq=False)
class _Maker:
    """Makes the candidates for one gradient."""

    scope: Scope
    place: int

    @property
    def words(self) -> Wording:
        """How its edits are described."""
        return Wording(self.scope)

    # ---- where ----

    @property
    def output_use(self) -> Use:
        """The place of the gradient among what is returned."""
        joint = self.scope.hand.joint
        return joint.graph.output_node(), joint.output_count + self.place

    def cone(self) -> list[fx.Node]:
        """The nodes of the user's backward that the gradient depends on, last first."""
        joint = self.scope.hand.joint
        wanted = {joint.gradients[self.place]}
        found = []
        for node in reversed(list(calls(joint.graph))):
            if node in wanted and phase_of(node) == BACKWARD:
                wanted.update(node.all_input_nodes)
                found.append(node)
        return found

    def within_reach(self) -> list[NamedValue]:
        """The cheapest values in scope that have an expression."""
        clear = [known for known in self.scope.known if known.is_clear]
        return sorted(clear, key=_cost_of)[:VALUES]

    def sites(self) -> Iterator[Site]:
        """Where a value may change, the places nearest to what is returned first."""
        return islice(self._every_site(), SITES)

    def _every_site(self) -> Iterator[Site]:
        """Each operand by itself, and each value that is used more than once as a whole."""
        seen: dict[fx.Node, list[Use]] = {}
        for user, place in [self.output_use, *_uses(self.cone())]:
            old = argument_leaves(user)[0][place]
            if tensor_of(old) is not None:
                seen.setdefault(old, []).append((user, place))
        for old, uses in seen.items():
            yield from (Site(old, (use,)) for use in uses)
            together = {tuple(uses): "for this gradient", tuple(self.every_use(old)): "everywhere"}
            yield from (Site(old, many, where) for many, where in together.items() if many[1:])

    def every_use(self, node: fx.Node) -> list[Use]:
        """Every use of `node` in the user's backward, and among the returned gradients."""
        joint = self.scope.hand.joint
        users = [user for user in node.users if user.op == "output" or phase_of(user) == BACKWARD]
        uses = [use for use in _uses(users) if argument_leaves(use[0])[0][use[1]] is node]
        return [u for u in uses if u[0].op != "output" or u[1] >= joint.output_count]

    # ---- another op, other constants ----

    def rewrites(self) -> Iterator[CandidateEdit]:
        """Another op or another order of its arguments."""
        for node in self.cone():
            for op, args in alternatives(node):
                yield self._rewritten(node, NewCall(op, args, tuple(node.kwargs.items())), 1.0)

    def literals(self) -> Iterator[CandidateEdit]:
        """Another number instead of one in the user's backward."""
        for node in self.cone():
            leaves, spec = argument_leaves(node)
            for place, leaf in enumerate(leaves):
                for number in self._instead_of(node, leaf):
                    args, kwargs = unflatten([*leaves[:place], number, *leaves[place + 1 :]], spec)
                    formula = NewCall(node.target, args, tuple(kwargs.items()))
                    if not is_idle(node.target, args):
                        yield self._renumbered(node, formula, leaf, number)

    def _rewritten(self, node: fx.Node, new: NewCall, cost: float) -> CandidateEdit:
        changes = _changed(self.every_use(node), new)
        kind = "reduction" if is_reduction(node, new) else "op"
        say = partial(self.words.rewritten, node, new)
        return CandidateEdit(cost, changes, _needs(node), kind, say)

    def _renumbered(self, node: fx.Node, new: NewCall, was: Any, number: Any) -> CandidateEdit:
        changes = _changed(self.every_use(node), new)
        cost = 1.1 + (0.2 if isinstance(number, NamedValue) else 0.0)
        say = partial(self.words.renumbered, node, new, was, number)
        return CandidateEdit(cost, changes, _needs(node), "constant", say)

    def _instead_of(self, node: fx.Node, leaf: Any) -> Iterator[Any]:
        if isinstance(leaf, bool):
            yield not leaf
        elif isinstance(leaf, float) or (isinstance(leaf, int) and op_name(node) in ARITHMETIC):
            for known in self._numbers(leaf):
                if known.values[0] != leaf or len(set(known.values)) > 1:
                    yield known if known.origin != NUMBER else known.values[0]
        elif isinstance(leaf, int) and op_name(node) not in SHAPES:
            yield from (n for n in dict.fromkeys((-leaf, leaf + 1, leaf - 1, 0, 1)) if n != leaf)

    def _numbers(self, leaf: float = 2) -> list[NamedValue]:
        near = [-leaf, 2 * leaf, leaf / 2, leaf + 1, leaf - 1, leaf * leaf]
        near += [1 / leaf] if leaf else []
        known = literals_in(self.scope.hand.joint.graph)[:NUMBERS]
        return numbers_in(self.scope, [*near, *known, *self.scope.numbers[:NUMBERS], *COMMON])

    # ---- another value ----

    def replacements(self) -> Iterator[CandidateEdit]:
        """Another value in the place of one that is used."""
        reach = self.within_reach()
        for site in self.sites():
            for known in reach:
                is_like = _stands_for(known.values[0], _first(self.scope, site.old), site)
                # Returning a long expression instead would not be an edit of the user's backward.
                is_edit = known.size <= SMALL_EDIT or not site.is_returned
                if is_like and is_edit and known is not self.scope.named.get(site.old):
                    yield self._replaced(site, known)

    def _replaced(self, site: Site, known: NamedValue) -> CandidateEdit:
        part = known.node
        is_whole = is_wrapper(site.old) and site.old not in self.scope.names
        if part is not None and is_whole and part in site.old.all_input_nodes:
            cost, kind = 1.2, "drop"
            say = partial(self.words.dropped, site.old, part, site)
        else:
            is_like = known.values[0].shape == _first(self.scope, site.old).shape
            cost = (1 if is_like else 1.2) + 0.3 * self.scope.texts[site.old].size + _cost_of(known)
            cost += 2.0 if site.is_returned else 0.0
            kind, say = "value", partial(self.words.replaced, site.old, known, site)
        cost += 0.01 * len(site.uses)
        return CandidateEdit(cost, _changed(site.uses, known), known.needs, kind, say)

    # ---- a sign, a factor, a summand ----

    def additions(self) -> Iterator[CandidateEdit]:
        """The same value, with something done to it."""
        numbers = numbers_in(self.scope, [*self.scope.numbers[:NUMBERS], 2, 3, 4])
        reach = self.within_reach()
        for site in self.sites():
            first = _first(self.scope, site.old)
            if not (first.is_floating_point() or first.is_complex()):
                continue
            base = 0.0 if site.is_returned else 0.3
            base += 0.05 * (len(site.uses) - 1)
            yield from self._turned(site, first, base)
            for known in numbers:
                whole = all(float(value).is_integer() for value in known.values)
                extra = base if whole else base + 0.05
                yield from self._joined(site, known, extra, (aten.mul.Tensor, aten.div.Tensor))
            for known in reach if site.is_returned else reach[: VALUES // 2]:
                if _fits_into(known.values[0], first):
                    yield from self._joined(site, known, base + 0.5 + _cost_of(known), JOINS)

    def _turned(self, site: Site, first: Tensor, base: float) -> Iterator[CandidateEdit]:
        for kind, op, args, cost in turns(first):
            changes = _changed(site.uses, NewCall(op, (site.old, *args)))
            say = partial(self.words.turned, site.old, kind, args, site)
            yield CandidateEdit(cost + base, changes, frozenset({site.old}), kind, say)

    def _joined(
        self, site: Site, known: NamedValue, base: float, ops: Iterable[Any]
    ) -> Iterator[CandidateEdit]:
        for op in ops:
            is_sum = op in (aten.add.Tensor, aten.sub.Tensor)
            if is_sum and known.values[0].dtype == torch.bool:
                continue
            changes = _changed(site.uses, NewCall(op, (site.old, known)))
            kind = "summand" if is_sum else "divisor" if op == aten.div.Tensor else "factor"
            if kind == "factor" and known.origin == COTANGENT:
                kind = "cotangent"
            needs = known.needs | {site.old}
            cost = base + (2.0 if is_sum else 1.5) + (0.01 if op == aten.div.Tensor else 0)
            say = partial(self.words.joined, site.old, op, known, site)
            yield CandidateEdit(cost, changes, needs, kind, say)


def _changed(uses: Iterable[Use], operand: Any) -> tuple[tuple[Use, Any], ...]:
    return tuple((use, operand) for use in uses)


# ---- tables ----

SMALL_EDIT = 2
"""How many ops a value may have that is returned instead of a gradient."""

SITES, VALUES, NUMBERS = 120, 200, 12
"""How many places, values and numbers of a large backward are tried, the cheapest first."""

COMMON = (1, 2, 3, 4, 0.5, 0, -1, 1.5, 0.25, 1 / 3)
"""Numbers that a formula may need."""

SHAPES = ("view", "reshape", "expand", "sym_size", "_unsafe_view", "new_zeros", "zeros")
"""Ops whose integer arguments are sizes."""

BROADCASTING = ("add", "sub", "rsub", "mul", "div", "pow", "where", "maximum", "minimum")
"""Ops that take operands of different shapes."""

JOINS = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor)


# ---- values ----


def _uses(users: Iterable[fx.Node]) -> Iterator[Use]:
    """Each operand of each node that is a node."""
    for user in users:
        for place, leaf in enumerate(argument_leaves(user)[0]):
            if isinstance(leaf, fx.Node):
                yield user, place


def _needs(node: fx.Node) -> frozenset[fx.Node]:
    return frozenset(arg for arg in node.all_input_nodes if phase_of(arg) == BACKWARD)


def _first(scope: Scope, node: fx.Node) -> Tensor:
    first: Tensor = scope.hand.values[0][node]
    return first


def _cost_of(known: NamedValue) -> float:
    """How much a value adds to the cost of an edit."""
    extra = {DERIVED: 0.5, REDUCED: 1.0, COTANGENT: 0.0}.get(known.origin, 0.0)
    return extra + 0.5 * known.size


def _stands_for(value: Any, first: Tensor, site: Site) -> bool:
    """Whether a value may be used in the place of another: of its shape, or as arithmetic takes."""
    if not isinstance(value, Tensor) or value.dtype != first.dtype:
        return False
    if value.shape == first.shape:
        return True
    users = [user for user, _ in site.uses]
    if not all(user.op != "output" and op_name(user) in BROADCASTING for user in users):
        return False
    pairs = zip(reversed(value.shape), reversed(first.shape), strict=False)
    return bool(value.dim() and first.dim()) and all(a == b or 1 in (a, b) for a, b in pairs)


def _fits_into(value: Any, first: Tensor) -> bool:
    """Whether a value can be multiplied with or added to another without changing its shape."""
    if not isinstance(value, Tensor) or value.dim() > first.dim():
        return False
    pairs: Sequence[Any] = list(zip(reversed(value.shape), reversed(first.shape), strict=False))
    return value.dtype in (first.dtype, torch.bool) and all(a in (1, b) for a, b in pairs)
