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
    """A `Function` that computes `program`, with a derived backward.

    Arguments:
        program: takes tensors and plain values, also inside lists, tuples and dicts, and returns
            such. It leaves its inputs as they are. Of a Function class it is the forward.
        examples: arguments to capture it with; calls of other kinds are captured when they come.
        save: what forward keeps for backward: "auto", "factors", "inputs", "everything", or how
            many bytes.
        name: what the Function is called: "gate" gives the class `Gate`, the node `GateBackward`
            and the op `gate`. By default after the program.

    Returns a subclass of `Function` that is called like the program, with `source()`, the text of a
    module that needs only torch, and `frontier(*args)`, what other amounts of saved bytes would
    cost. Guarantee: `apply` gives what `program` gives, and every derivative that autograd gives
    through it.

    >>> import torch
    >>> D = derive(lambda x: x.sin() ** 2, torch.zeros(3, requires_grad=True))
    >>> x = torch.tensor([0.5], requires_grad=True)
    >>> D(x).backward()
    >>> bool(torch.allclose(x.grad, (2 * x).sin()))
    True
    """
    from pullback.derive.backward import derive_function as make  # heavy

    return make(program, *examples, save=save, name=name)  # type: ignore[no-any-return]


def jvp_of(
    target: Callable[..., R],
) -> Callable[[Sequence[object], Sequence[object]], tuple[R, R]]:
    """A function that pushes tangents forward: `(primals, tangents) -> (outputs, tangents)`.

    `target` is a Function class or any callable on tensors. Its own forward-mode rules are used
    where it has them; otherwise the rule is derived from its backward, by transposing it twice.
    Guarantee: `outputs` is what `target(*primals)` gives, and the tangents are linear in those
    given.

    A tangent is a tensor like its primal, or None for a primal that does not move.

    >>> import torch
    >>> output, tangent = jvp_of(torch.sin)((torch.zeros(2),), (torch.ones(2),))
    >>> tangent.tolist()
    [1.0, 1.0]
    """
    from pullback.derive.jvp import jvp_of as make  # heavy

    return make(target)


def vmap_of(
    target: Callable[..., R], *, in_dims: int | Sequence[int | None] = 0, out_dims: int = 0
) -> Callable[..., R]:
    """`target` over a batch: each tensor argument has one more dimension, and so have the outputs.

    `target` is a Function class or any callable on tensors. Its own batching rules are used where
    it has them; otherwise the samples are run one after the other and stacked. Guarantee: equal to
    a loop over the samples, derivatives included.

    Arguments:
        in_dims: where the batch dimension of each argument is; None for one that all samples share.
            A number holds for every tensor argument.
        out_dims: where the batch dimension of each output goes.

    >>> import torch
    >>> vmap_of(torch.dot, in_dims=(0, None))(torch.ones(3, 2), torch.ones(2)).tolist()
    [2.0, 2.0, 2.0]
    """
    from pullback.derive.batch import vmap_of as make  # heavy

    return make(target, in_dims=in_dims, out_dims=out_dims)
