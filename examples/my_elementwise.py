"""A Function of two inputs, in both spellings: x * e^(-y).

With cotangent g: the gradient of x is e^(-y) g, that of y is -x e^(-y) g. `MyElementWise` uses the
Python names of the context, `MyElementWiseInCppNames` the documented C++ ones.
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on


class MyElementWise(pb.Function):
    """`x * exp(-y)` in the Python spelling; x and y may broadcast.

    With cotangent g: the gradient of x is exp(-y) g, that of y is -x exp(-y) g.
    """

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.exp(-y)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        of_x = torch.exp(-y) * cotangent
        return of_x, -x * of_x


class MyElementWiseInCppNames(pb.Function):
    """`x * exp(-y)` in the C++ spelling: `get_saved_variables()` and `needs_input_grad(i)`.

    The same gradients; each is computed only if the backward under way asks for it.
    """

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.exp(-y)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.get_saved_variables()
        of_x = torch.exp(-y) * cotangent
        # Called with an index, as in C++, it answers for this very backward:
        # `torch.autograd.grad(output, x)` does not need the gradient of y.
        return of_x, -x * of_x if ctx.needs_input_grad(1) else None


def plain(x: Tensor, y: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return x * torch.exp(-y)


def inputs() -> Inputs:
    """Points on both sides of zero."""
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    y = torch.linspace(-1, 1, 5, dtype=torch.float64)
    return {"x": x.requires_grad_(), "y": y.requires_grad_()}


def main() -> None:
    """Print the values, both gradients, and how far both spellings are from PyTorch."""
    point = inputs()
    print("MyElementWise: x * e^(-y)\n")
    print(columns_of(point | pull(MyElementWise.apply, point)))
    print(f"\nPython names. {verdict_on(compare(MyElementWise.apply, plain, point))}")
    print(f"C++ names.    {verdict_on(compare(MyElementWiseInCppNames.apply, plain, point))}")


if __name__ == "__main__":
    main()
