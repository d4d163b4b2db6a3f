"""A Function that changes its input in place: x becomes n x, for an integer n.

The output is the input tensor itself, so `mark_dirty` must say that it changed; with cotangent g
the gradient of the old x is n g. Both spellings of the context, side by side:

    C++                             here, as in C++               here, as in Python
    ctx->saved_data["n"] = n        ctx.saved_data["n"] = n       ctx.n = n
    ctx->get_saved_variables()      ctx.get_saved_variables()     ctx.saved_tensors
    ctx->needs_input_grad(0)        ctx.needs_input_grad(0)       ctx.needs_input_grad[0]
    ctx->mark_dirty({x})            ctx.mark_dirty(x)             ctx.mark_dirty(x)
    static is_traceable = true      is_traceable = True           is_traceable = True
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, verdict_on

FACTOR = 3


class MyFunction(pb.Function):
    """`x *= n` in place, with the integer n in `saved_data`, as a C++ Function keeps it.

    With cotangent g the gradient of the old x is n g; the integer has none.
    """

    is_traceable = True

    @staticmethod
    def forward(ctx, x, n):
        ctx.saved_data["n"] = n
        ctx.mark_dirty(x)
        x.mul_(n)
        return x

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_data["n"], None


class MyFunctionInPythonNames(pb.Function):
    """`x *= n` in place, with the integer n as an attribute of the context.

    With cotangent g the gradient of the old x is n g; the integer has none.
    """

    is_traceable = True

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        ctx.mark_dirty(x)
        x.mul_(n)
        return x

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.n, None


def in_place(x: Tensor) -> Tensor:
    """`FACTOR * x` by `MyFunction`, on a copy: a leaf that requires grad may not be changed."""
    return MyFunction.apply(x.clone(), FACTOR)


def plain(x: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return x.clone().mul_(FACTOR)


def inputs() -> Inputs:
    """Points on both sides of zero."""
    return {"x": torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()}


def main() -> None:
    """Print what the call does to the tensor, and how far the gradient is from PyTorch's."""
    point = inputs()
    x = point["x"].detach().clone()
    old, version = x.clone(), x._version
    changed = MyFunction.apply(x, FACTOR)
    print(f"MyFunction: x *= {FACTOR}, in place\n")
    print(columns_of({"old x": old, "x now": x}))
    print(f"\nThe output is the input tensor itself: {changed is x}.")
    print(f"Its version went from {version} to {x._version}, so earlier saves are refused.")
    print(verdict_on(compare(in_place, plain, point)))


if __name__ == "__main__":
    main()
