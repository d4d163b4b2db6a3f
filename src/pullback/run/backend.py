"""What a backend is: how the graphs of a node become functions.

`Backend` is all that is ever asked of one. Two methods must be written, `absence` and `specialise`;
the others have a default that suits a backend which compiles graphs and nothing else:

    class Abacus(Backend):
        def absence(self):
            return None if shutil.which("abacus") else "there is no abacus"

        def specialise(self, graph, row, *, name, donated=()):
            return abacus.compile(graph, [bead.like(x) for x in row])

What every backend must keep:

- For arguments that fit, it computes what eager mode computes, up to rounding. Nobody relies on
  that: each node is compared with its recipe (`verify`). That a call fits is for the caller to see
  to (`making`, `node`); one that does not, takes another way.
- It leaves its arguments as they are, keeps none of them, and draws no random numbers.
- It may be called from several threads at once, and on the device and stream of its arguments.

What a backend cannot compile, it refuses with `CaptureError`: that node then runs eagerly, and
`explain()` repeats the reason.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import fx

from pullback.errors import CaptureError
from pullback.run.nodes.node import Compiled, NodeSpec, make_node

if TYPE_CHECKING:
    from pullback.derive.recipe import Recipe
    from pullback.run.nodes.minimal import Minimal


class SizedCode(Protocol):
    """A compiled graph for arguments of many sizes."""

    def __call__(self, row: list[Any], /) -> Sequence[Any]:
        """The results for a row of arguments, which it may empty."""

    def meets(self, row: Sequence[Any], /) -> bool:
        """Whether it serves a row of arguments."""


class Backend(Protocol):
    """How the graphs of a node become functions; the top of this module says what it must keep."""

    compiles: ClassVar[bool] = True
    """Whether its code is made for some layouts, and compared with the recipe before it is used.

    Without that, `specialise` gives the recipe's own text ("eager"), which serves every call.
    """

    meanwhile: ClassVar[str] = ""
    """The name of a backend that "auto" takes while this one is being built, and not afterwards."""

    @abstractmethod
    def absence(self) -> str | None:
        """Why it cannot be used here, in one line; None if it can."""

    def prepared(self, recipe: Recipe) -> Recipe:
        """The recipe that its nodes are made of: it computes the same, and may save other things.

        Raises `CaptureError` for a program that it cannot compile.
        """
        return recipe

    @abstractmethod
    def specialise(
        self, graph: fx.Graph, row: Sequence[Any], *, name: str, donated: Sequence[int] = ()
    ) -> Compiled:
        """A graph of a node as a function, for arguments that are laid out as those of `row`.

        Arguments:
            graph: a forward or a backward graph, in the form that `graph.split` gives.
            row: one value for each placeholder of the graph: a tensor, or a number.
            name: "forward" or "backward".
            donated: the places in the row of tensors that the function may write over. There are
                none unless `donates` asks for them.

        What is returned takes a list of the arguments, which it may empty, checks nothing, and
        returns a row of results. Raises `CaptureError` for what cannot be compiled.
        """

    def specialise_all_sizes(self, graph: fx.Graph, row: Sequence[Any], *, name: str) -> SizedCode:
        """As `specialise`, for arguments of every size that lie in memory as those of `row` do.

        Numbers in `row` that stand for sizes may change, too. By default it is refused.
        """
        raise CaptureError(f"the {name} graph must be compiled for each size by itself")

    def make_node(self, spec: NodeSpec) -> Callable[..., Any]:
        """The autograd node for calls of one layout; by default that of `node`, in Python.

        One that sees for itself whether a call fits has an attribute `checks_calls` that is True,
        and returns `node.MISS` for one that does not.
        """
        return make_node(spec)

    def whole(self, minimal: Minimal, compiled: Compiled) -> Compiled:
        """What completes the results of a minimal graph; by default in Python."""
        return minimal.whole(compiled)

    def donates(self, forward: Compiled) -> bool:
        """Whether the node may give away what `forward` saved, for backward to write over."""
        return False

    def is_ready(self, notify: Callable[[], Any]) -> bool:
        """Whether it can compile at once; asked only of one that has another `meanwhile`.

        If not, its building begins, and the method `notify` is called when that is done.
        """
        return True
