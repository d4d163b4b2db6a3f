"""A context that only listens: what would `forward` save, if it ran again?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


class ListeningContext:
    """Takes every call that `AutogradContext` takes, and notes what was kept."""

    def __init__(self, flags: tuple[bool, ...], plain: tuple[int, ...]) -> None:
        self._pb_saved: tuple[Any, ...] = ()
        self._pb_dirty: tuple[Tensor, ...] = ()
        self._pb_non_differentiable: tuple[Tensor, ...] = ()
        self.saved_data: dict[str, Any] = {}
        self.needs_input_grad = ListeningNeeds(flags)
        self.needs_input_grad.tensors = [f for i, f in enumerate(flags) if i not in plain]

    def save_for_backward(self, *tensors: Any) -> None:
        """Note `tensors`."""
        self._pb_saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Nothing, as in any forward."""
        return ()

    def get_saved_variables(self) -> tuple[Any, ...]:
        """Nothing, as in any forward."""
        return ()

    def save_for_forward(self, *tensors: Any) -> None:
        """Take no notice: there is no jvp."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Note `tensors`."""
        self._pb_dirty = tensors

    def get_and_bump_dirty(self) -> tuple[Tensor, ...]:
        """What was marked dirty."""
        return self._pb_dirty

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Note `tensors`."""
        self._pb_non_differentiable = tensors

    def get_non_differentiable(self) -> tuple[Tensor, ...]:
        """What was marked non-differentiable."""
        return self._pb_non_differentiable

    def set_materialize_grads(self, value: bool) -> None:
        """Take no notice: there is no backward."""


class ListeningNeeds(tuple[bool, ...]):
    """`needs_input_grad` in a forward: one flag per argument, and the C++ question."""

    tensors: list[bool]

    def __call__(self, index: int | Iterable[tuple[int, int]]) -> bool:
        if isinstance(index, int):
            return self.tensors[index]
        return any(any(self.tensors[first:last]) for first, last in index)
