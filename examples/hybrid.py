"""A Function made of Functions: square(x) * sin(y), from the two of `examples.nested`.

Its forward calls them, its backward is its own: one node in the graph. The product rule gives
d/dx = 2x sin y and d/dy = x^2 cos y.
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on
from examples.nested import SineFunction, SquareFunction


class ComplexFunction(pb.Function):
    """`square(x) * sin(y)`, whose forward calls `SquareFunction` and `SineFunction`.

    With cotangent g: the gradient of x is 2 x sin(y) g, that of y is x^2 cos(y) g.
    """

    @staticmethod
    def forward(ctx, x, y):
        # Recording is off inside forward, so the two leave no nodes of their own and their
        # backwards never run. The inputs are saved rather than the two factors: a saved
        # intermediate would have to be differentiated by hand in a second backward.
        ctx.save_for_backward(x, y)
        return SquareFunction.apply(x) * SineFunction.apply(y)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return (
            2 * x * SineFunction.apply(y) * cotangent,
            SquareFunction.apply(x) * torch.cos(y) * cotangent,
        )


def plain(x: Tensor, y: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return x**2 * torch.sin(y)


def inputs() -> Inputs:
    """Points on both sides of zero."""
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    y = torch.linspace(0, 3, 5, dtype=torch.float64)
    return {"x": x.requires_grad_(), "y": y.requires_grad_()}


def main() -> None:
    """Print the values, both gradients, and how far they are from PyTorch's."""
    point = inputs()
    output = ComplexFunction.apply(*point.values())
    print("ComplexFunction: square(x) * sin(y), a Function whose forward uses two others\n")
    print(columns_of(point | pull(ComplexFunction.apply, point)))
    print(f"\nNode: {type(output.grad_fn).__name__}; the inner two leave none.")
    print(verdict_on(compare(ComplexFunction.apply, plain, point)))


if __name__ == "__main__":
    main()
