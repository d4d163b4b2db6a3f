"""How the recipe of a derived Function becomes a node of the fast path, by one backend or another.

The eager node serves every size and layout that its capture serves. A backend that compiles makes
code for the first layout of each pattern of strides, and once more, with the sizes left open, for
further sizes of that pattern. Each node is compared with the recipe before it is used. What cannot
be compiled, or computes something else, runs eagerly, and the reason is kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.capture.layouts import Layout
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.run import candidates_now
from pullback.run.backend import Backend
from pullback.run.nodes.choosing import fastest
from pullback.run.nodes.exact import exact_spec
from pullback.run.nodes.node import make_node
from pullback.run.nodes.open_sizes import open_spec, stride_pattern
from pullback.run.nodes.paths import LAYOUTS, LAZY, META, OFFSETS, RANDOM, Paths, UncompiledReason
from pullback.run.nodes.specs import SpecMaker, forward_only, text_spec
from pullback.run.nodes.verify import graph_difference, node_difference, raised_difference

PATTERNS = 8  # how many patterns of strides of one recipe are compiled for

Node = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Found:
    """A node, and the path that a call of it takes, in words."""

    node: Node
    path: str


@dataclass(eq=False)
class _Pattern:
    """What a backend made for one pattern of strides; None where it could not.

    `first` is code for `layouts`, those of the first call; `rest` for all other sizes, compared at
    sizes of about `compared`, and made when one comes.
    """

    layouts: tuple[Layout, ...]
    first: Node | None
    rest: Node | None = None
    has_rest: bool = False
    compared: set[int] = field(default_factory=set)


@dataclass(eq=False)
class _Made:
    """What was made of one recipe.

    `choices` are the backends chosen, by about how large the tensors are; `patterns` what each
    backend made for a pattern of strides; `alone` what it made for some layouts to give the outputs
    without gradients.
    """

    eager: Node | None = None
    choices: dict[int, str] = field(default_factory=dict)
    patterns: dict[tuple[str, Any], _Pattern] = field(default_factory=dict)
    alone: dict[tuple[str, Any], Node | None] = field(default_factory=dict)


@dataclass(eq=False)
class Nodes:
    """The nodes of one derived Function; safe to use from several threads.

    `derived` is what its class knows; of `backends` the fastest is taken. `reasons` says why
    something that should be compiled is not, `unseen` what of compiled code could not be compared,
    `paths` how its calls were run, `is_wrong` whether compiled code was seen to compute something
    else.

    Nothing is looked up here for a call that comes again: see `derive.call_table`.
    """

    name: str
    module: str
    derived: Any
    backends: Mapping[str, Backend]
    verifies: bool = True
    is_wrong: bool = False
    reasons: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    _of: dict[Recipe, _Made] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)
    _notify: Any = None

    def __post_init__(self) -> None:
        compiles = any(backend.compiles for backend in self.backends.values())
        self.paths = Paths(self.name, warns=compiles)

    def find(self, recipe: Recipe, row: Sequence[Tensor]) -> Found | None:
        """The node for a row of tensors; None where only the general way is right."""
        reason = _reason(recipe, row)
        if reason is not None:
            if self.paths.warns:
                self.paths.warn(reason)
            return None
        with self._lock:
            if not torch.is_grad_enabled() or not _is_live(recipe):
                return self._outputs_alone(recipe, row)
            choices, size = self._made_of(recipe).choices, _bucket(row)
            if size not in choices:
                choices[size] = self._fastest(recipe, row)
            name = choices[size]
            node = self._node(name, recipe, row)
            if node is None:
                return Found(
                    self._eager_node(recipe, row), "run eagerly, since nothing could be compiled"
                )
            return Found(node, f'run by backend "{name}"')

    def await_backends(self, notify: Callable[[], Any]) -> None:
        """Call the method `notify`, and choose again, once a backend that was missing is built."""
        self._notify = weakref.WeakMethod(notify)

    def _begin_anew(self) -> None:
        with self._lock:
            for made in self._of.values():
                made.choices.clear()
        notify = self._notify() if self._notify else None
        if notify is not None:
            notify()

    def _made_of(self, recipe: Recipe) -> _Made:
        return self._of.setdefault(recipe, _Made())

    # ---- one backend or another ----

    def _fastest(self, recipe: Recipe, row: Sequence[Tensor]) -> str:
        """The backend that runs tensors of about these sizes fastest."""
        names = candidates_now(self.backends, self._begin_anew)
        if len(names) == 1:
            return names[0]
        nodes = {name: self._node(name, recipe, row) for name in names}
        made = {name: node for name, node in nodes.items() if node is not None}
        return fastest(made, row) if made else names[0]  # whose node is None: runs eagerly

    def _node(self, name: str, recipe: Recipe, row: Sequence[Tensor]) -> Node | None:
        """The node of one backend; None where it cannot compile, or computes something else."""
        backend = self.backends[name]
        if not backend.compiles:
            return self._eager_node(recipe, row)
        patterns, key = self._made_of(recipe).patterns, (name, stride_pattern(row))
        layouts = tuple(Layout.of(x) for x in row)
        if key not in patterns:
            if sum(other == name for other, _ in patterns) >= PATTERNS:
                self.paths.warn(LAYOUTS)
                return None
            patterns[key] = _Pattern(layouts, self._made(name, recipe, row, exact_spec))
        pattern = patterns[key]
        if layouts == pattern.layouts:
            return pattern.first
        return self._shared(name, recipe, row, pattern)

    def _shared(
        self, name: str, recipe: Recipe, row: Sequence[Tensor], pattern: _Pattern
    ) -> Node | None:
        """The node of a backend that serves every size of one pattern."""
        if not pattern.has_rest:
            pattern.rest = self._made(name, recipe, row, open_spec)
            pattern.has_rest = True
        size = _bucket(row)
        if pattern.rest is not None and size not in pattern.compared:
            if not self._is_right(name, pattern.rest, recipe, row):
                pattern.rest = None
            pattern.compared.add(size)
        return pattern.rest

    def _made(
        self, name: str, recipe: Recipe, row: Sequence[Tensor], spec_of: Callable[..., Any]
    ) -> Node | None:
        """A node, compiled and compared."""
        backend = self.backends[name]
        make = backend.make_node if spec_of is exact_spec else make_node

        def made() -> Node | None:
            node = make(spec_of(self._maker(name), backend, backend.prepared(recipe), row))
            return node if self._is_right(name, node, recipe, row) else None

        return self._unless_it_raises(name, made, recipe, row)

    def _unless_it_raises(
        self, name: str, make: Callable[[], Node | None], recipe: Recipe, row: Sequence[Tensor]
    ) -> Node | None:
        """What is compiled, and run once on the way; None where that fails, and eager ops do not.

        What the program itself raises goes on.
        """
        try:
            return make()
        except CaptureError as error:
            self.note(error)
        except Exception as error:
            if not self.verifies:
                raise
            given = [x.detach() for x in row]
            self._differs(name, row, raised_difference(error, lambda: recipe.run_row(given)))
        return None

    def _eager_node(self, recipe: Recipe, row: Sequence[Tensor]) -> Node:
        made = self._made_of(recipe)
        if made.eager is None:
            made.eager = make_node(text_spec(self._maker("eager"), recipe, row))
        return made.eager

    def _outputs_alone(self, recipe: Recipe, row: Sequence[Tensor]) -> Found | None:
        """What gives the outputs without gradients, compiled; None where that cannot be had."""
        names = [
            name
            for name in candidates_now(self.backends, self._begin_anew)
            if self.backends[name].compiles
        ]
        if not names:
            return None
        name, alone = names[-1], self._made_of(recipe).alone
        key = name, tuple(Layout.of(x, needs=False) for x in row)
        if key not in alone:
            if sum(other == name for other, _ in alone) >= PATTERNS:
                return None
            alone[key] = self._alone_of(name, recipe, row)
        node = alone[key]
        return None if node is None else Found(node, f'without gradients by backend "{name}"')

    def _alone_of(self, name: str, recipe: Recipe, row: Sequence[Tensor]) -> Node | None:
        def made() -> Node | None:
            backend = self.backends[name]
            prepared = backend.prepared(recipe)
            node, code, one = forward_only(backend, prepared, row)
            if self.verifies:
                text = one.printed("forward", prepared)
                names = [f"output {place}" for place in range(len(one.made))]
                given = [x.detach() for x in row]
                found = graph_difference(code, text, one.graph, given, names, keeps_layout=True)
                if found is not None:
                    self._differs(name, row, found)
                    return None
            return node

        return self._unless_it_raises(name, made, recipe, row)

    # ---- comparing ----

    def _is_right(self, name: str, node: Node, recipe: Recipe, row: Sequence[Tensor]) -> bool:
        """Whether a compiled node computes what the recipe computes, as far as can be seen."""
        if not self.verifies:
            return True
        try:
            found, is_telling = node_difference(node, recipe, row)
        except torch.OutOfMemoryError:
            _keep(
                self.unseen,
                f'what backend "{name}" made was not compared: no memory was left for that',
            )
            return True
        if found is not None:
            self._differs(name, row, found)
        elif not is_telling:
            _keep(
                self.unseen,
                f'what backend "{name}" made was compared only where outputs or gradients are all '
                "zero or not finite; call it first with other numbers",
            )
        return found is None

    def _differs(self, name: str, row: Sequence[Tensor], found: object) -> None:
        self.is_wrong = True
        _keep(self.reasons, f'what backend "{name}" made computes something else: {found}')
        self.paths.differs(name, ", ".join(map(_kind, row)), found)

    def _maker(self, name: str) -> SpecMaker:
        def differs(found: object) -> None:
            self._differs(name, (), found)

        return SpecMaker(
            self.name,
            self.module,
            self.derived,
            self.paths.uncompiled,
            self.note,
            differs,
            self.verifies,
        )

    # ---- in words ----

    def text(self) -> str:
        """The backends in words, and which of them were chosen so far."""
        names = list(self.backends)
        if len(names) == 1:
            return f'backend "{names[0]}"'
        chosen = dict.fromkeys(one for made in self._of.values() for one in made.choices.values())
        return 'backend "auto"' + (f" ({', '.join(chosen)})" if chosen else "")

    def lines(self) -> list[str]:
        """Why something is not compiled, and how often each path was taken."""
        return [
            *(f"  eager: {why}" for why in self.reasons),
            *(f"  {what}" for what in self.unseen),
            *self.paths.lines(),
        ]

    def note(self, error: CaptureError) -> None:
        """Keep, and tell, why something is not compiled."""
        got = error.facts["got"]
        reason = " ".join((error.rule + (f": {got}" if got else "")).split())
        _keep(self.reasons, reason)
        self.paths.warn(
            UncompiledReason(reason, error.facts["fix"] or 'use backend="eager" to say so')
        )


def _keep(said: list[str], what: str) -> None:
    if what not in said:
        said.append(what)


def _reason(recipe: Recipe, row: Sequence[Tensor]) -> UncompiledReason | None:
    """Why no node serves these tensors; None if one does."""
    if recipe.is_random:
        return RANDOM
    if recipe.captured.sees_offsets:
        return OFFSETS  # code counts from the beginning of a tensor, not of its memory
    if any(x.is_neg() or x.is_conj() for x in row):
        return LAZY  # memory holds the negative (`z.conj().imag`), which code does not see
    return META if any(x.is_meta for x in row) else None


def _bucket(row: Sequence[Tensor]) -> int:
    """About how large tensors are: a choice is made, and code compared, once for each."""
    return sum(x.numel() for x in row).bit_length()


def _kind(x: Tensor) -> str:
    laid = "" if x.is_contiguous() else f" with strides {x.stride()}"
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{laid}"


def _is_live(recipe: Recipe) -> bool:
    """Whether there is anything to differentiate."""
    captured = recipe.captured
    return any(o.differentiable for o in captured.outputs) and any(i.needs for i in captured.inputs)
