"""Lists of tensors as arguments, taken apart: `traverse_lists = True`.

PyTorch registers only tensors that are passed directly. A class may ask for its list and tuple
arguments to be traversed: each call then goes through a second class whose inputs are the elements,
so that everything else (the engine, hooks, `torch.func`) sees plain inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from pullback.errors import BackwardArityError
from pullback.function.door import Door
from pullback.function.gradients import by_name
from pullback.function.signature import REQUIRED, Signature, place_of
from pullback.function.slots import new_class


def taken_apart(door: Door, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """The class and the arguments of a call whose lists of tensors are taken apart, if any."""
    lengths = tuple(len(arg) if _is_tensor_list(arg) else -1 for arg in args)
    if all(length < 0 for length in lengths):
        return None
    key = ("flat", lengths, tuple(type(arg) for arg in args))
    flat_cls = door.layouts.get(key)
    if flat_cls is None:
        flat_cls = _flat_class(door, args, lengths)
        door.layouts[key] = cast(Any, flat_cls)
    items = (arg if length >= 0 else [arg] for arg, length in zip(args, lengths, strict=True))
    return flat_cls, tuple(item for row in items for item in row)


def _is_tensor_list(arg: Any) -> bool:
    return isinstance(arg, (list, tuple)) and any(isinstance(item, Tensor) for item in arg)


def _flat_class(door: Door, args: tuple[Any, ...], lengths: tuple[int, ...]) -> Any:
    """The class of `door` with each list argument spread over inputs of its own."""
    cls, signature = door.cls, door.signature
    kinds = [type(arg) for arg in args]
    stops: list[tuple[int, int]] = []
    names: list[str] = []
    for position, length in enumerate(lengths):
        first, name = len(names), signature.name(position)
        names += [name] if length < 0 else [f"{name}[{i}]" for i in range(length)]
        stops.append((first, len(names)))

    def nested(flat: tuple[Any, ...]) -> list[Any]:
        rows = zip(kinds, lengths, stops, strict=True)
        return [flat[a] if n < 0 else kind(flat[a:b]) for kind, n, (a, b) in rows]

    def spread(result: Any) -> tuple[Any, ...]:
        if isinstance(result, Mapping):
            owned = tuple(signature.name(i) for i in range(len(lengths)))
            result = by_name(signature.owner, owned, result, signature.names)
        row = result if isinstance(result, tuple) else (result,)
        flat: list[Any] = []
        for gradient, length in zip(row, lengths, strict=False):
            if length < 0:
                flat.append(gradient)
            else:
                flat += _per_element(door, gradient, length)
        return (*flat, *row[len(lengths) :])

    space: dict[str, Any] = {
        "backward": staticmethod(lambda ctx, *gs: spread(cls.backward(ctx, *gs))),
        "jvp": staticmethod(lambda ctx, *ts: cls.jvp(ctx, *nested(ts))),
        "generate_vmap_rule": cls.generate_vmap_rule,
        "is_traceable": cls.is_traceable,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    if signature.has_setup:
        space["forward"] = staticmethod(lambda *flat: cls.forward(*nested(flat)))
        space["setup_context"] = staticmethod(
            lambda ctx, inputs, output: cls.setup_context(ctx, tuple(nested(inputs)), output)
        )
    else:
        space["forward"] = staticmethod(lambda ctx, *flat: cls.forward(ctx, *nested(flat)))
    base = next(c for c in cls.__mro__ if c.__dict__.get("_is_pullback_base"))
    flat_cls: Any = new_class(cls.__name__, base, space)
    flat_signature = Signature(
        owner=signature.owner,
        place=signature.place,
        has_setup=signature.has_setup,
        names=tuple(names),
        defaults=(REQUIRED,) * len(names),
        variadic="",
        keyword_only=(),
        keyword_defaults=(),
    )
    flat_door = Door(flat_cls, flat_signature)
    flat_door.groups = tuple(stops)
    flat_door.warned = door.warned
    flat_cls._door = flat_door
    return flat_cls


def _per_element(door: Door, gradients: Any, length: int) -> list[Any]:
    """One gradient per element of a list argument."""
    if gradients is None:
        return [None] * length
    if not isinstance(gradients, (list, tuple)) or len(gradients) != length:
        counted = isinstance(gradients, (list, tuple))
        raise BackwardArityError(
            f"`{door.name}.backward` must return one gradient per element of a list argument",
            at=place_of(door.cls.backward),
            expected=f"a list of {length}, or `None`",
            got=f"{len(gradients)}" if counted else type(gradients).__name__,
            fix="return a list with `None` for each element that needs no gradient",
        )
    return list(gradients)
