"""`ctx.saved_data`: a mapping for any data, whose tensors behave as if saved."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from pullback.function.context import AutogradContext


class SavedData(MutableMapping[str, Any]):
    """Any data under string keys; PyTorch holds the tensors among it once forward is over."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: AutogradContext) -> None:
        self._ctx = ctx

    def __getitem__(self, key: str) -> Any:
        places = self._ctx._pb_data_slots
        if places is not None and key in places:
            return self._ctx._pb_tensor_at(places[key])
        return (self._ctx._pb_data or {})[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if self._ctx._pb_data_slots is not None:
            self._ctx._pb_data_slots.pop(key, None)
        self._ctx.__dict__.setdefault("_pb_data", {})[key] = value

    def __delitem__(self, key: str) -> None:
        if self._ctx._pb_data_slots is None or self._ctx._pb_data_slots.pop(key, None) is None:
            del (self._ctx._pb_data or {})[key]

    def __iter__(self) -> Iterator[str]:
        return iter([*(self._ctx._pb_data or {}), *(self._ctx._pb_data_slots or {})])

    def __len__(self) -> int:
        return len(self._ctx._pb_data or {}) + len(self._ctx._pb_data_slots or {})

    def __repr__(self) -> str:
        return f"SavedData({dict(self)})"

    def hand_over(self, first: int) -> list[Tensor]:
        """The tensors in here, taken out and given places from `first` on."""
        data = self._ctx._pb_data or {}
        tensors = {key: data.pop(key) for key in list(data) if isinstance(data[key], Tensor)}
        places = {key: place for place, key in enumerate(tensors, first)}
        self._ctx.__dict__["_pb_data_slots"] = places
        return list(tensors.values())
