"""Inputs that are not positional arguments: elements of lists, and keyword-only parameters.

PyTorch registers only tensors that are passed directly, by position. A class with
`traverse_lists = True` asks for its list and tuple arguments to be taken apart, and a keyword-only
parameter may be a tensor too. Such a call goes through a second class whose inputs are all of these
one after the other, so that everything else (the engine, hooks, `torch.func`) sees plain inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback.errors import BackwardArityError, BatchError
from pullback.function.gradients import by_name
from pullback.function.info import FunctionInfo
from pullback.function.signature import REQUIRED, Signature, source_place
from pullback.function.slots import new_class, no_jvp, no_vmap
from pullback.function.unwritten import derived, lacks_backward


@dataclass(frozen=True, slots=True)
class SpreadLayout:
    """How a row of inputs is made from the arguments of a call, and back.

    `lengths` has one entry per argument: how many elements a list brings, or -1 for an argument
    that is passed as it is. The last arguments are the keyword-only ones called `keywords`.
    """

    kinds: tuple[type, ...]
    lengths: tuple[int, ...]
    names: tuple[str, ...]
    keywords: tuple[str, ...]

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Where each argument's inputs begin and end in the row."""
        ends, end = [], 0
        for length in self.lengths:
            first, end = end, end + (1 if length < 0 else length)
            ends.append((first, end))
        return tuple(ends)

    @property
    def inputs(self) -> tuple[str, ...]:
        """A name for each input in the row."""
        rows = zip(self.names, self.lengths, strict=True)
        return tuple(
            name if length < 0 else f"{name}[{i}]"
            for name, length in rows
            for i in range(max(length, 1) if length < 0 else length)
        )

    def nested(self, row: tuple[Any, ...]) -> list[Any]:
        """The arguments again, keyword-only ones last."""
        rows = zip(self.kinds, self.lengths, self.groups, strict=True)
        return [row[a] if length < 0 else kind(row[a:b]) for kind, length, (a, b) in rows]

    def split(self, row: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments again, as a call takes them."""
        values = self.nested(row)
        rest = len(values) - len(self.keywords)
        return values[:rest], dict(zip(self.keywords, values[rest:], strict=True))


def spread_call(
    info: FunctionInfo, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, tuple[Any, ...]] | None:
    """The class and the row of inputs for a call, or None when the plain call does."""
    values = (*args, *keywords.values())
    lengths = tuple(len(v) if info.traverses and _has_tensor(v) else -1 for v in values)
    if not keywords and all(length < 0 for length in lengths):
        return None
    names = (*(info.signature.name(i) for i in range(len(args))), *keywords)
    layout = SpreadLayout(tuple(map(type, values)), lengths, names, tuple(keywords))
    cls = info.layouts.get(layout)
    if cls is None:
        cls = info.layouts[layout] = _spread_class(info, layout)
    rows = (v if n >= 0 else [v] for v, n in zip(values, lengths, strict=True))
    return cls, tuple(item for row in rows for item in row)


def _has_tensor(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value)


def _spread_class(info: FunctionInfo, layout: SpreadLayout) -> Any:
    """The class of `info`, with one positional input for everything that `layout` names."""
    cls = info.cls
    base = next(c for c in cls.__mro__ if c.__dict__.get("_pb_is_base"))
    spread_cls: Any = new_class(cls.__name__, base, _methods(info, layout))
    spread = FunctionInfo(spread_cls, _signature(info, layout))
    spread.groups = layout.groups
    spread.warned = info.warned
    spread_cls._pb_info = spread
    return spread_cls


def _signature(info: FunctionInfo, layout: SpreadLayout) -> Signature:
    return Signature(
        owner=info.signature.owner,
        place=info.signature.place,
        has_setup=info.signature.has_setup,
        names=layout.inputs,
        defaults=(REQUIRED,) * len(layout.inputs),
        variadic="",
        keyword_only=(),
        keyword_defaults=(),
    )


def _methods(info: FunctionInfo, layout: SpreadLayout) -> dict[str, Any]:
    """The methods of the user's class, which take and give rows instead."""
    cls, has_setup = info.cls, info.signature.has_setup

    def forward(ctx: Any, *row: Any) -> Any:
        args, keywords = layout.split(row)
        return cls.forward(ctx, *args, **keywords)

    def forward_alone(*row: Any) -> Any:
        args, keywords = layout.split(row)
        return cls.forward(*args, **keywords)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        return cls.setup_context(ctx, tuple(layout.nested(inputs)), output)

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return _row(info, layout, cls.backward(ctx, *cotangents))

    def vmap(batch: Any, in_dims: tuple[Any, ...], *row: Any) -> Any:
        args, keywords = layout.split(row)
        dims, keyword_dims = layout.split(in_dims)  # a rule for PyTorch's class knows no others
        _require_unbatched(info, keyword_dims)
        return cls.vmap(batch, tuple(dims), *args, **keywords)

    backward.__wrapped__ = cls.backward  # type: ignore[attr-defined]
    space: dict[str, Any] = {
        "forward": staticmethod(forward_alone if has_setup else forward),
        "generate_vmap_rule": cls.generate_vmap_rule,
        "is_traceable": cls.is_traceable,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    if cls.jvp is not no_jvp:
        space["jvp"] = staticmethod(lambda ctx, *ts: cls.jvp(ctx, *layout.nested(ts)))
    if not lacks_backward(cls):
        space["backward"] = staticmethod(backward)
    if has_setup:
        space["setup_context"] = staticmethod(setup_context)
    if cls.vmap is not no_vmap:
        space["vmap"] = staticmethod(vmap)
    return space


def _require_unbatched(info: FunctionInfo, keyword_dims: dict[str, Any]) -> None:
    """Raise if a keyword-only tensor is batched: `in_dims` has no place to say so."""
    batched = [name for name, dim in keyword_dims.items() if dim is not None]
    if batched:
        raise BatchError(
            f"`{info.name}.apply` must be given `{batched[0]}` unbatched to be batched by `vmap`",
            at=source_place(info.cls.vmap),
            got="a batched tensor for a keyword-only parameter, which `in_dims` does not mention",
            fix=f"make `{batched[0]}` a positional parameter of `forward`",
        )


def _row(info: FunctionInfo, layout: SpreadLayout, result: Any) -> tuple[Any, ...]:
    """One gradient per input of the row from what the user's backward returned."""
    if isinstance(result, Mapping):
        result = by_name(info.name, layout.names, result, info.signature.names)
    values = result if isinstance(result, tuple) else (result,)
    count = len(layout.lengths)
    if len(values) < count:
        raise BackwardArityError(
            f"`{info.name}.backward` must return one value per input of `forward`",
            at=source_place(info.cls.backward),
            expected=f"{count}, for ({', '.join(layout.names)})",
            got=f"{len(values)}",
            fix="return `None` in the place of each input that needs no gradient",
        )
    row: list[Any] = []
    for gradient, length in zip(values, layout.lengths, strict=False):
        row += [gradient] if length < 0 else _per_element(info, gradient, length)
    return (*row, *values[count:])


def _per_element(info: FunctionInfo, gradients: Any, length: int) -> list[Any]:
    """One gradient per element of a list argument."""
    if gradients is None or gradients is derived:
        return [gradients] * length
    counted = isinstance(gradients, (list, tuple))
    if not counted or len(gradients) != length:
        raise BackwardArityError(
            f"`{info.name}.backward` must return one gradient per element of a list argument",
            at=source_place(info.cls.backward),
            expected=f"a list of {length}, or `None`",
            got=f"{len(gradients)}" if counted else type(gradients).__name__,
            fix="return a list with `None` for each element that needs no gradient",
        )
    return list(gradients)
