"""How the recipe of a derived Function becomes a light node, with one backend or another.

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

from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.run import candidates, specs
from pullback.run.backend import Backend
from pullback.run.choosing import fastest
from pullback.run.graphs import text_of
from pullback.run.node import Layout, make_node
from pullback.run.open_sizes import pattern_of
from pullback.run.paths import LAYOUTS, LAZY, META, OFFSETS, RANDOM, Paths, Reason
from pullback.run.specs import Maker
from pullback.run.verify import graph_difference, node_difference

PATTERNS = 8  # how many patterns of strides of one recipe are compiled for

Node = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Found:
    """A node, and the path that a call of it takes, in words."""

    node: Node
    path: str


@dataclass(eq=False)
class Nodes:
    """The light nodes of one derived Function; safe to use from several threads.

    `derived` is what its class knows; of `backends` the fastest is taken. `reasons` says why
    something that should be compiled is not, `choices` which backends run it, `paths` how its calls
    were run, `is_wrong` whether compiled code was seen to compute something else.
    """

    name: str
    module: str
    derived: Any
    backends: Mapping[str, Backend]
    verifies: bool = True
    is_wrong: bool = False
    reasons: list[str] = field(default_factory=list)
    choices: dict[Any, str] = field(default_factory=dict)
    _eager: dict[Any, Node] = field(default_factory=dict)
    _open: dict[Any, Node | None] = field(default_factory=dict)
    _fixed: dict[Any, dict[Any, Node | None]] = field(default_factory=dict)
    _alone: dict[Any, Node | None] = field(default_factory=dict)
    _verified: set[Any] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.RLock)
    _tell: Any = None

    def __post_init__(self) -> None:
        compiles = any(backend.compiles for backend in self.backends.values())
        self.paths = Paths(self.name, is_told=compiles)

    def find(self, recipe: Recipe, row: Sequence[Tensor]) -> Found | None:
        """The node for a row of tensors; None where only the general way is right."""
        reason = _reason(recipe, row)
        if reason is not None:
            if self.paths.is_told:
                self.paths.tell(reason)
            return None
        with self._lock:
            if not torch.is_grad_enabled() or not _is_live(recipe):
                return self._outputs_alone(recipe, row)
            key = recipe, _bucket(row)
            if key not in self.choices:
                self.choices[key] = self._fastest(recipe, row)
            name = self.choices[key]
            node = self._node(name, recipe, row)
            if node is None:
                return Found(
                    self._eager_node(recipe, row), "run eagerly, since nothing could be compiled"
                )
            return Found(node, f'run by backend "{name}"')

    def await_backends(self, tell: Callable[[], Any]) -> None:
        """Call the method `tell`, and choose anew, when a backend that is being built is there."""
        self._tell = weakref.WeakMethod(tell)

    def _begin_anew(self) -> None:
        with self._lock:
            self.choices.clear()
        tell = self._tell() if self._tell else None
        if tell is not None:
            tell()

    # ---- one backend or another ----

    def _fastest(self, recipe: Recipe, row: Sequence[Tensor]) -> str:
        """The backend that runs tensors of about these sizes fastest."""
        names = candidates(self.backends, self._begin_anew)
        if len(names) == 1:
            return names[0]
        nodes = {name: self._node(name, recipe, row) for name in names}
        made = {name: node for name, node in nodes.items() if node is not None}
        return fastest(made, row)

    def _node(self, name: str, recipe: Recipe, row: Sequence[Tensor]) -> Node | None:
        """The node of one backend; None where it cannot compile, or computes something else."""
        backend = self.backends[name]
        if not backend.compiles:
            return self._eager_node(recipe, row)
        pattern = pattern_of(row)
        fixed = self._fixed.setdefault((name, recipe, pattern), {})
        key = tuple(Layout.of(x) for x in row)
        if not fixed and sum(k[:2] == (name, recipe) for k in self._fixed) > PATTERNS:
            del self._fixed[name, recipe, pattern]
            self.paths.tell(LAYOUTS)
            return None
        if key not in fixed and not fixed:
            fixed[key] = self._made(name, recipe, row, specs.exact)
        if key in fixed:
            return fixed[key]
        return self._shared(name, recipe, row, pattern)

    def _shared(
        self, name: str, recipe: Recipe, row: Sequence[Tensor], pattern: Any
    ) -> Node | None:
        """The node of a backend that serves every size of one pattern."""
        key = name, recipe, pattern
        if key not in self._open:
            self._open[key] = self._made(name, recipe, row, specs.open_sizes)
        node = self._open[key]
        if node is not None and (key, _bucket(row)) not in self._verified:
            if not self._is_right(name, node, recipe, row):
                node = self._open[key] = None
            self._verified.add((key, _bucket(row)))
        return node

    def _made(
        self, name: str, recipe: Recipe, row: Sequence[Tensor], spec_of: Callable[..., Any]
    ) -> Node | None:
        """A node, compiled and compared."""
        backend = self.backends[name]
        make = backend.make_node if spec_of is specs.exact else make_node
        try:
            node = make(spec_of(self._maker(name), backend, recipe, row))
            return node if self._is_right(name, node, recipe, row) else None
        except CaptureError as error:
            self.note(error)
            return None

    def _eager_node(self, recipe: Recipe, row: Sequence[Tensor]) -> Node:
        if recipe not in self._eager:
            self._eager[recipe] = make_node(specs.eager(self._maker("eager"), recipe, row))
        return self._eager[recipe]

    def _outputs_alone(self, recipe: Recipe, row: Sequence[Tensor]) -> Found | None:
        """What gives the outputs without gradients, compiled; None where that cannot be had."""
        names = [
            name
            for name in candidates(self.backends, self._begin_anew)
            if self.backends[name].compiles
        ]
        if not names:
            return None
        name = names[-1]
        key = name, recipe, tuple(Layout.of(x, needs=False) for x in row)
        if key not in self._alone:
            if sum(k[:2] == key[:2] for k in self._alone) >= PATTERNS:
                return None
            self._alone[key] = self._alone_of(name, recipe, row)
        node = self._alone[key]
        return None if node is None else Found(node, f'without gradients by backend "{name}"')

    def _alone_of(self, name: str, recipe: Recipe, row: Sequence[Tensor]) -> Node | None:
        try:
            node, code, one = specs.forward_only(self.backends[name], recipe, row)
        except CaptureError as error:
            self.note(error)
            return None
        if self.verifies:
            text = text_of(one, "forward", recipe)
            names = [f"output {place}" for place in range(one.made_count)]
            given = [x.detach() for x in row]
            found = graph_difference(code, text, one.graph, given, names)
            if found is not None:
                self._differs(name, row, found)
                return None
        return node

    # ---- comparing ----

    def _is_right(self, name: str, node: Node, recipe: Recipe, row: Sequence[Tensor]) -> bool:
        """Whether a compiled node computes what the recipe computes, as far as can be seen."""
        if not self.verifies:
            return True
        try:
            found = node_difference(node, recipe, row)
        except torch.OutOfMemoryError:
            self._note(f'what backend "{name}" made was not compared: no memory was left for that')
            return True
        if found is not None:
            self._differs(name, row, found)
        return found is None

    def _differs(self, name: str, row: Sequence[Tensor], found: object) -> None:
        self.is_wrong = True
        self._note(f'what backend "{name}" made computes something else: {found}')
        self.paths.differs(name, ", ".join(map(_kind, row)), found)

    def _maker(self, name: str) -> Maker:
        def differs(found: object) -> None:
            self._differs(name, (), found)

        return Maker(
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
        chosen = dict.fromkeys(self.choices.values())
        return 'backend "auto"' + (f" ({', '.join(chosen)})" if chosen else "")

    def lines(self) -> list[str]:
        """Why something is not compiled, and how often each path was taken."""
        return [*(f"  eager: {why}" for why in self.reasons), *self.paths.lines()]

    def note(self, error: CaptureError) -> None:
        """Keep, and tell, why something is not compiled."""
        got = error.facts["got"]
        reason = " ".join((error.rule + (f": {got}" if got else "")).split())
        self._note(reason)
        self.paths.tell(Reason(reason, error.facts["fix"] or 'use backend="eager" to say so'))

    def _note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def _reason(recipe: Recipe, row: Sequence[Tensor]) -> Reason | None:
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
