"""A minimal graph as a function: compiled by a backend, or as Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.run import eager
from pullback.run.backend import Backend
from pullback.run.minimal import Minimal, whole
from pullback.run.node import Compiled, Source


def compiled(
    backend: Backend,
    one: Minimal,
    row: Sequence[Any],
    name: str,
    *,
    is_open: bool,
    donated: Sequence[int] = (),
) -> Compiled:
    """A minimal graph, compiled by a backend for arguments like `row`."""
    if not one.made_count:
        return whole(one, lambda row: ())
    made = backend.specialise(one.graph, row, name=name, free_sizes=is_open, donated=donated)
    found = backend.whole(one, made)
    if is_open and found is not made:
        found = _meeting(found, made)
    return found


def _meeting(run: Compiled, code: Any) -> Compiled:
    """`run`, which serves what `code` serves."""

    def call(row: list[Any]) -> Sequence[Any]:
        return run(row)

    call.meets = code.meets  # type: ignore[attr-defined]
    return call


def made_by(one: Minimal) -> tuple[Source, ...]:
    """What a minimal graph itself returns."""
    return tuple(Source(False, i) for i in range(one.made_count))


def text_of(one: Minimal, name: str, recipe: Recipe) -> Compiled:
    """A minimal graph as Python."""
    if not one.made_count:
        return whole(one, lambda row: ())
    program, names = recipe.captured.name, recipe.parts.names
    return whole(one, eager.specialise(one.graph, name=name, program=program, names=names))


def require_own_memory(
    recipe: Recipe, sources: Sequence[Any], row: Sequence[Tensor], made: Sequence[Any]
) -> None:
    """Raise if an output shares memory with another value: nobody would see it changed in place."""
    count = recipe.captured.joint.output_count
    outputs = [one for one in sources[:count] if isinstance(one, Source)]
    tensors = [(Source(True, i), x) for i, x in enumerate(row)]
    tensors += [(Source(False, i), x) for i, x in enumerate(made) if isinstance(x, Tensor)]
    at = {source: x.untyped_storage().data_ptr() for source, x in tensors if x.numel()}
    for one in outputs:
        if one in at and sum(place == at[one] for place in at.values()) > 1:
            raise CaptureError(
                f"the outputs of `{recipe.captured.name}` must not share memory to be compiled",
                got="an output that is a view of an input or of another value",
                fix="clone it before it is returned",
            )
