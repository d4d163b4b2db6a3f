"""Derive: a backward, and every further derivative, from the forward by PyTorch's own rules.

The public functions stand here and import what they need when they are called: capturing a program
brings in the symbolic part of PyTorch, which takes longer to load than the rest of pullback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from torch.autograd.function import Function as TorchFunction

from pullback.derive import missing
from pullback.function.unwritten import register_derivation

if TYPE_CHECKING:
    from pullback.derive.returned import DerivedFunction

register_derivation(missing)  # of what a Function leaves unwritten

P = ParamSpec("P")
R = TypeVar("R")


@overload
def derive(
    program: type[TorchFunction],
    *examples: object,
    save: str | int = ...,
    name: str | None = ...,
) -> DerivedFunction[..., Any]: ...
@overload
def derive(
    program: Callable[P, R],
    *examples: object,
    save: str | int = ...,
    name: str | None = ...,
) -> DerivedFunction[P, R]: ...
def derive(
    program: Callable[..., Any],
    *examples: object,
    save: str | int = "auto",
    name: str | None = None,
) -> DerivedFunction[..., Any]:
    """A `Function` that computes `program`, with a derived backward: see `derive.backward`."""
    from pullback.derive.backward import derive_function as make  # heavy

    return make(program, *examples, save=save, name=name)  # type: ignore[no-any-return]


def jvp_of(target: Any) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]:
    """Forward mode for a Function or callable, derived where it is missing: see `derive.jvp`."""
    from pullback.derive.jvp import jvp_of as make  # heavy

    return make(target)


def vmap_of(
    target: Any, *, in_dims: int | Sequence[int | None] = 0, out_dims: int = 0
) -> Callable[..., Any]:
    """`target` over a batch, by a loop where it has no rule: see `derive.batch`."""
    from pullback.derive.batch import vmap_of as make  # heavy

    return make(target, in_dims=in_dims, out_dims=out_dims)
