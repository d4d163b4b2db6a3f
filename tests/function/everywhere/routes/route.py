"""The type of a route."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.function.everywhere.compare import Call, Tensors


@dataclass(frozen=True)
class Route:
    """One way to run and differentiate a Function.

    Attributes
    ----------
    run
        Raises unless the Function gives what its reference gives.
    needs
        Names of the `Entry` flags without which PyTorch does not promise the route.
    quick
        The entries of the default test run; the others are slow. All of them, if None.
    """

    run: Callable[[Call, Call, Tensors], None]
    needs: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
