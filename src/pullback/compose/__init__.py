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
    from pullback.compose.rows.chunks import Rows
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
    """A `Function` that computes `program` in one node with one backward; of a module, a module.

    Arguments:
        program: takes tensors and plain values, also in lists, tuples and dicts, and returns such.
        examples: arguments to capture it with; calls of other kinds are captured when they come.
        backend: what runs the node: "eager" (Python that calls torch's ops), "inductor" (fused
            code), "native" (fused code called from C++), or "auto": the fastest of those at hand,
            by measurement at the first call of each size.
        save: what forward keeps for backward, as in `derive`. By default "auto" where a backend
            fuses what is computed again, and "everything", as the program as written, for "eager".
        name: what the Function is called, as in `derive`.
        verify: whether compiled code is compared with the program at its first call: outputs, and
            the gradients of each cotangent alone and of all together. What differs is not used.

    What cannot be captured runs as written, and `explain()` says why: the whole program if its
    examples cannot, otherwise the calls that cannot.

    Guarantee: the same outputs and the same gradients, first and second order, as the program as
    written. A Function of PyTorch's that saves an intermediate has a second derivative that PyTorch
    gets wrong; here it is right, as if it were a `pb.Function`.

    >>> import torch
    >>> F = combine(lambda x: x.sin() ** 2, torch.zeros(3, requires_grad=True), backend="eager")
    >>> x = torch.tensor([0.5], requires_grad=True)
    >>> F(x).backward()
    >>> bool(torch.allclose(x.grad, (2 * x).sin()))
    True
    >>> print(F.explain())
    combined: one node of 2 units, backend "eager"
    """
    from pullback.compose.combined import combine_program  # heavy
    from pullback.compose.modules import combine_module
    from pullback.compose.options import ComposeOptions

    make: Any = combine_module if isinstance(program, nn.Module) else combine_program
    made: nn.Module = make(program, examples, ComposeOptions(backend, save, name, verify))
    return made


@overload
def nest(program: type[TorchFunction], *, name: str | None = ...) -> DerivedFunction[..., Any]: ...
@overload
def nest(program: Callable[P, R], *, name: str | None = ...) -> DerivedFunction[P, R]: ...
def nest(program: Callable[..., Any], *, name: str | None = None) -> DerivedFunction[..., Any]:
    """A `Function` whose `apply` runs `program` as it is written, node by node.

    It takes no examples and captures nothing, so it serves every program. To whoever records or
    captures a program that calls it, it is transparent: its units are units of that program. It is
    called after the program, or `name`.

    Guarantee: `apply` is `program`: the same outputs, gradients and errors, first and second order.

    >>> import torch
    >>> F = nest(lambda x: x.sin() ** 2)
    >>> x = torch.tensor([0.5], requires_grad=True)
    >>> F(x).backward()
    >>> bool(torch.allclose(x.grad, (2 * x).sin()))
    True
    >>> print(F.explain())
    nested: as written
    """
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
    """A `Function` that runs `program` with each of `groups` as one node.

    Arguments:
        program: as for `combine`.
        examples: arguments to record it with.
        groups: for each node, the numbers of its units, as `explain()` prints them: any partition
            whose groups can run one after the other. A unit that is in no group runs as written.
        backend: as for `combine`.
        save: as for `combine`, for each node.
        name: what the Function is called, as in `derive`.
        verify: as for `combine`.

    What cannot be recorded or captured runs as written, and `explain()` says why: the whole
    program, a group of it, or the calls that cannot. Under `torch.func`, in forward mode, without
    gradient recording and inside a capture the program itself runs.

    Guarantee: the same outputs and the same gradients, first and second order, as the program as
    written. A Function of PyTorch's that saves an intermediate has a second derivative that PyTorch
    gets wrong; inside a node it is right, as if it were a `pb.Function`.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> F = hybrid(lambda x: x.sin().exp() * 2, x, groups=[(0, 1)], backend="eager")
    >>> F(x).grad_fn.next_functions[0][0].name()
    'SinExpBackward'
    >>> print(F.explain())
    hybrid: 1 node and 1 unit as written, backend "eager"
      one node: 0 sin, 1 exp
      as written: 2 mul
    """
    from pullback.compose.grouped import hybrid_program  # heavy
    from pullback.compose.options import ComposeOptions

    options = ComposeOptions(backend, save, name, verify)
    return hybrid_program(program, examples, groups, options)  # type: ignore[no-any-return]


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
    """A `Function` that computes `program` a few rows at a time, so that its middle is never whole.

    Arguments:
        program: as in `combine`; a loss head, say, from features, weights and labels to a loss.
        examples: arguments to make it ready with; without them that is done at the first call.
        over: the arguments that have the rows, by number or name; a mapping says in which dimension
            of each, otherwise it is the first. Of one argument, the others that go with its rows
            are found.
        chunks: how many; "auto" chooses by the bytes that a row takes.
        backend: what runs a chunk: "eager", "inductor", or "auto", the latter where it can be had.
        name: what the Function is called, as in `combine`.

    Raises `ChunkingError` where large rows depend on each other, and says where. Before it is used,
    the result is compared with the program on a few rows, and compiled code with the program's ops.

    Guarantee: the outputs and gradients of the program, but for the order in which sums over rows
    are added up; sums of half precision are kept in float32. Second derivatives are those of the
    program, run as it is written.

    >>> import torch
    >>> def head(x, weight, labels):
    ...     return torch.nn.functional.cross_entropy(x @ weight.T, labels)
    >>> chunked_head = chunked(head, over=("x", "labels"), chunks=4, backend="eager")
    >>> x, weight = torch.randn(12, 5, requires_grad=True), torch.randn(9, 5, requires_grad=True)
    >>> labels = torch.arange(12) % 9
    >>> bool(torch.allclose(chunked_head(x, weight, labels), head(x, weight, labels)))
    True
    >>> print(chunked_head.explain())
    chunked: 4 chunks of 3 rows of `x` and `labels`, gradients made in forward, backend "eager"
    """
    from pullback.compose.options import ComposeOptions
    from pullback.compose.rows.chunks import chunked_program  # heavy

    options = ComposeOptions(backend, name=name)
    return chunked_program(program, examples, over, chunks, options)  # type: ignore[no-any-return]
