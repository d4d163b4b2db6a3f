"""Two Functions, used one after the other: the sine of a square, sin(x^2).

Each keeps its own backward and autograd chains them: d/dx sin(x^2) = cos(x^2) * 2x. This is the
easiest form to test and to reuse; it costs one node, and one saved tensor, per Function.
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on


class SquareFunction(pb.Function):
    """`x**2`.

    With cotangent g the gradient of x is 2 x g.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


class SineFunction(pb.Function):
    """`sin(x)`.

    With cotangent g the gradient of x is cos(x) g.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return torch.cos(x) * cotangent


def nested(x: Tensor) -> Tensor:
    """`sin(x**2)` as two nodes: the output of the first Function is the input of the second."""
    return SineFunction.apply(SquareFunction.apply(x))


def plain(x: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return torch.sin(x**2)


def inputs() -> Inputs:
    """Points on both sides of zero."""
    return {"x": torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()}


def main() -> None:
    """Print the values, the gradient, and how far they are from PyTorch's."""
    point = inputs()
    output = nested(*point.values())
    second = output.grad_fn
    first = second.next_functions[0][0]
    print("SquareFunction, then SineFunction: sin(x^2)\n")
    print(columns_of(point | pull(nested, point)))
    print(f"\nNodes, from the output: {type(second).__name__}, {type(first).__name__}.")
    print(verdict_on(compare(nested, plain, point)))


if __name__ == "__main__":
    main()
