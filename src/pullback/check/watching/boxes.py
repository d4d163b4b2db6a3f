"""A wrapper subclass of Tensor, as sharded and quantised tensors are: it holds another tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pullback.judge.example import mapped


class Box(Tensor):
    """A tensor without memory of its own; every operator is done on what it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Box:
        """Wrap `held`."""
        made: Box = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=held.device,
        )
        made.held = held
        return made

    def __init__(self, held: Tensor) -> None:
        """See `__new__`."""

    def data_ptr(self) -> int:
        """Refuse: a kernel that is given the address of nothing loses the process its GPU."""
        raise RuntimeError("a wrapper subclass has no memory of its own, so no address either")

    def __repr__(self) -> str:  # type: ignore[override]
        """Say what is held."""
        return f"Box({self.held})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Open the boxes, compute, and box the result."""
        result = func(*mapped(args, opened), **mapped(kwargs or {}, opened))
        return mapped(result, boxed)


def boxed(tensor: Tensor) -> Tensor:
    """The tensor in a box; it requires grad as before."""
    if isinstance(tensor, Box):
        return tensor
    # A box cannot carry the bits of a conjugate or negative view.
    return Box(tensor.detach().resolve_conj().resolve_neg())


def opened(tensor: Tensor) -> Tensor:
    """What a box holds."""
    return tensor.held if isinstance(tensor, Box) else tensor
