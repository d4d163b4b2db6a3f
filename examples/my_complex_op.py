"""A Function with an inner step, and the backward that mistakes it for the input: sin(x)^2.

The chain rule gives d/dx = 2 sin(x) cos(x), both at x. Saving s = sin(x) is not enough: cos(x) is
not cos(s), and the sign of cos(x) cannot be had from s.
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on


class MyComplexOp(pb.Function):
    """`sin(x) ** 2`, with the input saved.

    With cotangent g the gradient of x is 2 sin(x) cos(x) g.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x) ** 2

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * torch.sin(x) * torch.cos(x) * cotangent


class MyComplexOpAsPublished(pb.Function):
    """WRONG ON PURPOSE: the same operation, with a backward that uses the saved sine as the input.

    Forward saves s = sin(x), and backward returns 2 s cos(s) g where 2 s cos(x) g is meant. Near
    zero the two agree, which hides the mistake; past a quarter turn even the sign is wrong.
    """

    @staticmethod
    def forward(ctx, x):
        sine = torch.sin(x)
        ctx.save_for_backward(sine)
        return sine**2

    @staticmethod
    def backward(ctx, cotangent):
        (sine,) = ctx.saved_tensors
        return 2 * sine * torch.cos(sine) * cotangent


def plain(x: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return torch.sin(x) ** 2


def inputs() -> Inputs:
    """Points over a whole turn."""
    return {"x": torch.linspace(-3, 3, 9, dtype=torch.float64).requires_grad_()}


def main() -> None:
    """Print both backwards beside PyTorch's, and how far each is from it."""
    point = inputs()
    right, wrong = (
        pull(function.apply, point)["gradient of `x`"]
        for function in (MyComplexOp, MyComplexOpAsPublished)
    )
    torchs = pull(plain, point)
    print("MyComplexOp: sin(x)^2\n")
    gradients = {"PyTorch": torchs["gradient of `x`"], "gradient": right, "as published": wrong}
    print(columns_of(point | {"output": torchs["output"]} | gradients))
    print(f"\nMyComplexOp.            {verdict_on(compare(MyComplexOp.apply, plain, point))}")
    wrong_verdict = verdict_on(compare(MyComplexOpAsPublished.apply, plain, point))
    print(f"MyComplexOpAsPublished. {wrong_verdict}")
    print("The published backward uses the saved sine where the input is needed.")


if __name__ == "__main__":
    main()
