"""Where each node of a growing graph came from: its unit, its phase, its place, its name.

Nodes are marked as they appear: whatever was added to the graph during a call is marked with that
call. In backward the engine says which node of the autograd graph it runs, through the hooks that
every such node has, and what is added then is marked with the call that made that node in forward.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, fx
from torch.autograd.function import BackwardCFunction

from pullback.capture.places import frames_above
from pullback.function.slots import no_torch_function
from pullback.graph.names import Local
from pullback.graph.parts import BACKWARD, FORWARD

# A name from an outer frame is worth more than one from an inner frame, and `grad_h` more than what
# a hand-written backward calls it.
_OF_GRADIENTS, _IN_BACKWARD = 100, 200


@dataclass(frozen=True, slots=True)
class NodeMark:
    """The unit and the place that nodes come from."""

    unit: int | None = None
    place: str = ""


class NodeMarks:
    """The marks of one growing graph.

    `graph()` gives the graph, `node_of(tensor)` the node in it that computes a tensor, or None.
    """

    def __init__(
        self, graph: Callable[[], fx.Graph], node_of: Callable[[Tensor], fx.Node | None]
    ) -> None:
        self.graph = graph
        self.node_of = node_of
        self.phase = FORWARD
        self.now = NodeMark()
        self.taken: set[str] = set()  # names of inputs, that no variable of a helper may take
        self._last: fx.Node | None = None
        self._makers: dict[Any, NodeMark] = {}  # nodes of the autograd graph
        self._names: dict[fx.Node, tuple[int, str]] = {}
        self._numbers: dict[fx.Node, int] = {}  # which value a name stands for
        self._frames: dict[FrameType, int] = {}
        self._heads: dict[tuple[Any, int], fx.Node] = {}

    # ---- units and places ----

    def mark_added(self, mark: NodeMark) -> list[fx.Node]:
        """Give `mark` to every call that was added since the last time; these, newest first."""
        added = []
        for node in reversed(self.graph().nodes):
            if node is self._last:
                break
            added.append(node)
        self._last = added[0] if added else self._last
        calls = [node for node in added if node.op == "call_function"]
        for node in calls:
            node.meta.update(unit=mark.unit, place=mark.place, phase=self.phase)
        return calls

    def own(self, tensors: Iterable[Tensor], mark: NodeMark, *, is_op: bool = False) -> None:
        """Remember that the newest part of the history of `tensors` was made under `mark`.

        An ordinary op makes no node of a Function: one that shows up in its history was called
        before, unwatched, and is left without a mark.
        """
        for maker in self._history(tensors, stop=self._makers):
            is_functions = is_op and isinstance(maker, BackwardCFunction)
            self._makers[maker] = NodeMark() if is_functions else mark

    def leaves(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The leaves that the history of `outputs` ends in."""
        leaves = [getattr(maker, "variable", None) for maker in self._history(outputs)]
        return [leaf for leaf in leaves if leaf is not None]

    def has_functions(self, outputs: Sequence[Tensor]) -> bool:
        """Whether a Function, with a hand-written backward, is in the history of `outputs`."""
        return any(isinstance(maker, BackwardCFunction) for maker in self._history(outputs))

    def _history(self, tensors: Iterable[Tensor], stop: Container[Any] = ()) -> list[Any]:
        """The nodes of the autograd graph behind `tensors`, not beyond those in `stop`."""
        with no_torch_function():
            left = [tensor.grad_fn for tensor in tensors if tensor.requires_grad]
        found: dict[Any, None] = {}
        while left:
            maker = left.pop()
            if maker is not None and maker not in found and maker not in stop:
                found[maker] = None
                left += [before for before, _ in maker.next_functions]
        return list(found)

    # ---- backward ----

    @contextmanager
    def followed(self, outputs: Sequence[Tensor]) -> Iterator[None]:
        """While backward runs from `outputs`, know at each moment what it is differentiating."""
        with no_torch_function():
            self.mark_added(self.now)
        self.phase = BACKWARD
        hooks = [
            maker.register_prehook(self._make_hook(maker, self._makers.get(maker, NodeMark())))
            for maker in self._history(outputs)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _make_hook(self, maker: Any, mark: NodeMark) -> Callable[[Any], None]:
        def hook(cotangents: Sequence[Tensor | None]) -> None:
            self.mark_added(self.now)
            self.now = mark
            for position, cotangent in enumerate(cotangents):
                head = self._heads.get((maker, position))
                if head in self._names and cotangent is not None:
                    name = Local(f"grad_{self._names[head][1]}", self._numbers[head])
                    self.name(cotangent, name, _OF_GRADIENTS)

        return hook

    # ---- names ----

    def read(self, frame: FrameType | None) -> None:
        """Read the names that the user's frames from `frame` upwards give to tensors."""
        frames = list(frames_above(frame))
        least = 0 if self.phase == FORWARD else _IN_BACKWARD
        for depth, users in enumerate(reversed(frames), least):
            self._frames.setdefault(users, depth)
            self._read_frame(users, self._frames[users])

    def read_again(self) -> None:
        """Read what the frames of a pass held when they were left: the last names given there.

        A frame that someone still refers to keeps its variables after its function has returned.
        """
        for frame, depth in self._frames.items():
            self._read_frame(frame, depth)
        self._frames.clear()

    def _read_frame(self, frame: FrameType, depth: int) -> None:
        for name, value in list(frame.f_locals.items()):
            if name.isidentifier() and name != "_":
                self._read_variable(name, value, depth)

    def _read_variable(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            self.name(value, name, depth)
        elif isinstance(value, (tuple, list)) and len(value) <= 32:
            for position, item in enumerate(value):
                if isinstance(item, Tensor):
                    self.name(item, f"{name}_{position}", depth)

    def name(self, tensor: Tensor, name: str, depth: int = 0) -> None:
        """Name the node of `tensor`; of several names the one with the least depth counts."""
        node = self.node_of(tensor)
        is_helpers = depth > 0 and not isinstance(name, Local)
        if node is None or node.op == "placeholder" or (is_helpers and name in self.taken):
            return
        if node not in self._names or depth < self._names[node][0]:
            self._names[node] = (depth, name)
            number = self._numbers.setdefault(node, len(self._numbers))
            node.meta["local"] = name if isinstance(name, Local) else Local(name, number)
        with no_torch_function():
            if self.phase == FORWARD and tensor.grad_fn is not None:
                self._heads[tensor.grad_fn, tensor.output_nr] = node
