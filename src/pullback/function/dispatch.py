"""`apply`: from the user's call to PyTorch's C code, by the shortest way that is right.

`apply` is called all day, so its usual path is short: no keyword arguments, no functorch transform,
as many arguments as `forward` has. Everything else takes `_apply_slowly`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.errors import HiddenTensorWarning
from pullback.function.door import Door, open_door
from pullback.function.forward import LIST
from pullback.function.lists import taken_apart
from pullback.function.slots import (
    below_ad_guard,
    torch_apply,
    transforms_active,
    unseen,
    unwrap_if_dead,
)

_CONTAINERS = (list, tuple, dict, set, frozenset)


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Dispatch below autograd, in-place and view tracking: `AutoDispatchBelowADInplaceOrView`.

    For the kernel of an op whose Autograd entry is a Function: inside the guard, a call of the op
    reaches its backend kernel and not the Function again.
    """
    with below_ad_guard():
        yield


def _apply(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    door = cls._door
    if door is None or door.cls is not cls:
        door = open_door(cls)
    if kwargs or (door.fixed != -1 and len(args) != door.fixed) or transforms_active():
        return _apply_slowly(door, args, kwargs)
    for arg in args:
        if not isinstance(arg, Tensor):
            door.is_mixed = True
            if isinstance(arg, _CONTAINERS):
                return _apply_slowly(door, args, kwargs)
        elif unwrap_if_dead(arg) is not arg:
            return _apply_slowly(door, args, kwargs)
    output = door.raw(*args)
    if output.__class__ is tuple and output and output[-1] is LIST:
        return list(output[:-1])
    return output


def _apply_slowly(door: Door, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with keywords, defaults, containers, or under a functorch transform."""
    if kwargs or door.fixed != -1:
        args = door.signature.bind(args, kwargs)
    if door.traverses:
        flat = taken_apart(door, args)
        if flat is not None:
            return flat[0].apply(*flat[1])
    for position, arg in enumerate(args):
        if isinstance(arg, _CONTAINERS) and _hides_tensor(arg):
            _warn_hidden(door, position, arg)
    if transforms_active():
        return torch_apply(door.cls)(*args)
    door.is_mixed |= not all(isinstance(arg, Tensor) for arg in args)
    args = tuple(unwrap_if_dead(a) if isinstance(a, Tensor) else a for a in args)
    output = door.raw(*args)
    if output.__class__ is tuple and output and output[-1] is LIST:
        return list(output[:-1])
    return output


def _hides_tensor(container: Any) -> bool:
    """Whether a tensor that requires grad sits anywhere inside `container`."""
    values = container.values() if isinstance(container, dict) else container
    return any(
        item.requires_grad
        if isinstance(item, Tensor)
        else isinstance(item, _CONTAINERS) and _hides_tensor(item)
        for item in values
    )


def _warn_hidden(door: Door, position: int, container: Any) -> None:
    name = door.signature.name(position)
    door.warn_once(
        HiddenTensorWarning(
            f"`{door.name}.apply` must be given tensors that need gradients directly",
            at=door.signature.place,
            got=f"one that requires grad inside `{name}`, a {type(container).__name__}: "
            "no gradient will reach it",
            fix="pass it as an argument of its own, or set `traverse_lists = True` on the class",
        )
    )


_apply.__name__ = _apply.__qualname__ = "apply"
apply: Any = classmethod(unseen(_apply))
