"""The numbers of a result as they lie in its memory: nothing that the result says of itself counts.

A tensor of a class of its own, or with a method of its own, may compute when it is first asked. So
it is not asked: what is compared, and what stands there when the clock is stopped, is memory.
"""

from __future__ import annotations

from torch import Tensor

from pullback.function.slots import no_torch_function

# Before a candidate could replace them.
_detach, _clone, _dispatch = Tensor.detach, Tensor.clone, Tensor.__torch_dispatch__


def in_memory(tensor: Tensor) -> Tensor:
    """A plain tensor in the same memory; of a class that has none, what it says there is."""
    if not _has_numbers(tensor):
        found = tensor.detach().clone()
        return found if type(found) is Tensor else _detach(found.cpu())
    with no_torch_function():
        return _detach(tensor)


def written_copy(tensor: Tensor) -> Tensor:
    """The numbers that stand there now, in a plain tensor of their own."""
    return _clone(in_memory(tensor))


def why_lazy(tensor: Tensor) -> str:
    """What kind of tensor this is, where its numbers need not be there; else nothing."""
    own = [name for name in vars(tensor) if hasattr(Tensor, name)]
    if own:
        return f"a tensor with a method of its own: `{own[0]}`"
    if not _has_numbers(tensor):
        is_plain = type(tensor) is Tensor
        return "a tensor without memory" if is_plain else _of_class(tensor)
    return ""


def why_other(tensor: Tensor) -> str:
    """As `why_lazy`, for one that says other numbers than stand in its memory. It is asked."""
    before = written_copy(tensor)
    said = in_memory(tensor.detach().clone())
    is_same = before.shape == said.shape and bool(((before == said) | (before != before)).all())
    return "" if is_same else _of_class(tensor)


def _of_class(tensor: Tensor) -> str:
    return f"a tensor of class `{type(tensor).__qualname__}`"


def _has_numbers(tensor: Tensor) -> bool:
    """Whether a tensor has memory, and PyTorch itself reads it."""
    with no_torch_function():
        return type(tensor).__torch_dispatch__ is _dispatch and not tensor.is_meta
