"""What `derive` and the compositions return, as a type checker and an editor see it.

At run time it is a class, a subclass of `Function`, so that everything that takes Functions takes
it. It is called like the program that it was made of: `K(x)` is `K.apply(x)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from pullback.errors import CaptureError
from pullback.function.plain import MARKER

if TYPE_CHECKING:
    from pullback.graph.cut import TradePoint

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class DerivedFunction(Protocol[P, R]):
    """A `Function` that pullback made of a program, and that is called like it."""

    __name__: str
    __module__: str

    @property
    def program(self) -> Callable[P, R]:
        """The program as it was given."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the program returns, with its derivatives: the same as `apply`."""

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the program returns, with its derivatives."""

    def source(self) -> str:
        """The text of a module with this Function that needs only torch."""

    def frontier(self, *args: P.args, **kwargs: P.kwargs) -> tuple[TradePoint, ...]:
        """What other amounts of saved bytes would cost, for a call with these arguments."""

    def explain(self) -> str:
        """How the program is run, and why, line by line."""


def record_of(cls: Any) -> Any:
    """What a derived Function was made with, if it is one node: its `backward.DerivedRecord`."""
    return getattr(cls, MARKER)


def instantiated(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`__new__` of what is made: to call the class is to call `apply`.

    A metaclass would do as well, but Dynamo knows Functions by theirs.
    """
    return cls.apply(*args, **kwargs)


def unprintable(name: str, how: str) -> dict[str, Any]:
    """`source` and `frontier` for what is not one node."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CaptureError(
            f"`{name}` must be one node to have a source and a frontier of its own",
            got=f"a {how} program",
            fix="pb.emit writes it as text; pb.derive and pb.combine make one node of it",
        )

    return {"source": staticmethod(refuse), "frontier": staticmethod(refuse)}
