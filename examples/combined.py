"""Two computations in one Function: x^2 + sin y.

One node in the graph, one forward, one backward: d/dx = 2x and d/dy = cos y, each times the
cotangent. Compare `examples.nested` (a node each) and `examples.hybrid` (both inside a third).
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on


class CombinedFunction(pb.Function):
    """`x**2 + sin(y)` as one node; x and y may broadcast.

    With cotangent g: the gradient of x is 2 x g, that of y is cos(y) g.
    """

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x**2 + torch.sin(y)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return 2 * x * cotangent, torch.cos(y) * cotangent


def plain(x: Tensor, y: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return x**2 + torch.sin(y)


def inputs() -> Inputs:
    """Points on both sides of zero."""
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    y = torch.linspace(0, 3, 5, dtype=torch.float64)
    return {"x": x.requires_grad_(), "y": y.requires_grad_()}


def main() -> None:
    """Print the values, both gradients, and how far they are from PyTorch's."""
    point = inputs()
    output = CombinedFunction.apply(*point.values())
    print("CombinedFunction: x^2 + sin y, one Function\n")
    print(columns_of(point | pull(CombinedFunction.apply, point)))
    print(f"\nNode: {type(output.grad_fn).__name__}, the only one in the graph.")
    print(verdict_on(compare(CombinedFunction.apply, plain, point)))


if __name__ == "__main__":
    main()
