"""Compose: one program of Functions and ops as one node, as it is written, or in groups.

What every composition guarantees: the same outputs and the same gradients, first and second order,
as the program as written. The public functions stand here and import what they need when called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from torch import nn
from torch.autograd.function import Function as TorchFunction

if TYPE_CHECKING:
    from pullback.compose.chunks import Rows
    from pullback.derive.returned import DerivedFunction

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)


@overload  # a module is callable, too, and says of itself what it gives
def combine(  # type: ignore[overload-overlap]
    program: M,
    *examples: object,
    backend: str = ...,
    save: str | int | None = ...,
    name: str | None = ...,
    verify: bool = ...,
) -> M: ...
@overload
def combine(
    program: type[TorchFunction],
    *examples: object,
    backend: str = ...,
    save: str | int | None = ...,
    name: str | None = ...,
    verify: bool = ...,
) -> DerivedFunction[..., Any]: ...
@overload
def combine(
    program: Callable[P, R],
    *examples: object,
    backend: str = ...,
    save: str | int | None = ...,
    name: str | None = ...,
    verify: bool = ...,
) -> DerivedFunction[P, R]: ...
def combine(
    program: Callable[..., Any],
    *examples: object,
    backend: str = "auto",
    save: str | int | None = None,
    name: str | None = None,
    verify: bool = True,
) -> DerivedFunction[..., Any] | nn.Module:
    """A `Function` that computes `program` in one node: see `compose.combined`.

    Of a module, a module that does so: see `compose.modules`.
    """
    if isinstance(program, nn.Module):
        from pullback.compose.modules import combine_module  # heavy

        module: nn.Module = combine_module(
            program, *examples, backend=backend, save=save, name=name, verify=verify
        )
        return module
    from pullback.compose.combined import combine as make  # heavy

    return make(  # type: ignore[no-any-return]
        program, *examples, backend=backend, save=save, name=name, verify=verify
    )


@overload
def nest(program: type[TorchFunction], *, name: str | None = ...) -> DerivedFunction[..., Any]: ...
@overload
def nest(program: Callable[P, R], *, name: str | None = ...) -> DerivedFunction[P, R]: ...
def nest(program: Callable[..., Any], *, name: str | None = None) -> DerivedFunction[..., Any]:
    """A `Function` that runs `program` as it is written: see `compose.nested`."""
    from pullback.compose.nested import nest as make

    return make(program, name=name)  # type: ignore[no-any-return]


@overload
def hybrid(
    program: type[TorchFunction],
    *examples: object,
    groups: Iterable[Iterable[int]] = ...,
    backend: str = ...,
    save: str | int | None = ...,
    name: str | None = ...,
    verify: bool = ...,
) -> DerivedFunction[..., Any]: ...
@overload
def hybrid(
    program: Callable[P, R],
    *examples: object,
    groups: Iterable[Iterable[int]] = ...,
    backend: str = ...,
    save: str | int | None = ...,
    name: str | None = ...,
    verify: bool = ...,
) -> DerivedFunction[P, R]: ...
def hybrid(
    program: Callable[..., Any],
    *examples: object,
    groups: Iterable[Iterable[int]] = (),
    backend: str = "auto",
    save: str | int | None = None,
    name: str | None = None,
    verify: bool = True,
) -> DerivedFunction[..., Any]:
    """A `Function` that runs `program` with some of its units combined: see `compose.grouped`."""
    from pullback.compose.grouped import hybrid as make  # heavy

    return make(  # type: ignore[no-any-return]
        program, *examples, groups=groups, backend=backend, save=save, name=name, verify=verify
    )


@overload
def chunked(
    program: type[TorchFunction],
    *examples: object,
    over: Rows = ...,
    chunks: int | str = ...,
    backend: str = ...,
    name: str | None = ...,
) -> DerivedFunction[..., Any]: ...
@overload
def chunked(
    program: Callable[P, R],
    *examples: object,
    over: Rows = ...,
    chunks: int | str = ...,
    backend: str = ...,
    name: str | None = ...,
) -> DerivedFunction[P, R]: ...
def chunked(
    program: Callable[..., Any],
    *examples: object,
    over: Rows = 0,
    chunks: int | str = "auto",
    backend: str = "auto",
    name: str | None = None,
) -> DerivedFunction[..., Any]:
    """A `Function` that computes `program` a few rows at a time: see `compose.chunks`."""
    from pullback.compose.chunks import chunked as make  # heavy

    return make(  # type: ignore[no-any-return]
        program, *examples, over=over, chunks=chunks, backend=backend, name=name
    )
