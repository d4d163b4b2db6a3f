"""`ctx.needs_input_grad`: a tuple by index as in Python, and a question as in C++."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pullback.errors import InputIndexError
from pullback.function.slots import will_run

if TYPE_CHECKING:
    from pullback.function.context import AutogradContext


class NeedsInputGrad(tuple[bool, ...]):
    """Which inputs need a gradient: a tuple as in Python, and a question as in C++.

    `needs[i]` counts every argument and says whether it required grad in `forward`. `needs(i)`
    counts tensor inputs only and, asked in `backward`, answers for the backward under way;
    `needs([(first, last), ...])` is whether any index in the half-open ranges is needed.
    """

    _ctx: Callable[[], AutogradContext | None]

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)

    def __call__(self, index: int | Iterable[tuple[int, int]]) -> bool:
        ctx = self._ctx()
        if ctx is None:
            raise ReferenceError("`needs_input_grad` was called after its context was freed")
        if isinstance(index, int):
            return _needs(ctx, index)
        ranges = list(index)
        return any(_needs(ctx, i) for first, last in ranges for i in range(first, last))


def _needs(ctx: AutogradContext, index: int) -> bool:
    edges = ctx.next_functions
    if not edges:
        return False  # nothing is recorded, so no backward will ask
    if not 0 <= index < len(edges):
        raise InputIndexError(
            f"`{ctx._pb_info.name}`: `needs_input_grad(i)` must name one of the tensor inputs",
            at=ctx._pb_info.signature.place,
            expected=f"0 <= i < {len(edges)}",
            got=f"i = {index}",
            fix="count tensor inputs only, or use `needs_input_grad[i]` to count every argument",
        )
    node = edges[index][0]
    return node is not None and will_run(node)
