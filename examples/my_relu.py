"""A Function that PyTorch can transform: max(x, 0), in the `setup_context` style.

With cotangent g the gradient of x is g where x > 0, and 0 elsewhere; at x = 0 the function has a
corner and the gradient is 0 by convention, as in `torch.relu`.
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on


class MyReLU(pb.Function):
    """`max(x, 0)`, with forward mode and a batching rule.

    Backward masks the cotangent where the output is 0; `jvp` masks the tangent in the same way.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        # The output tells as much as the input, and the next layer keeps it anyway.
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, cotangent):
        (output,) = ctx.saved_tensors
        # Not `cotangent * (output > 0)`: that makes inf * 0 = nan out of an infinite cotangent.
        return cotangent.masked_fill(output <= 0, 0)

    @staticmethod
    def jvp(ctx, tangent):
        (output,) = ctx.saved_tensors
        return tangent.masked_fill(output <= 0, 0)


def plain(x: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return torch.relu(x)


def inputs() -> Inputs:
    """Points on both sides of the corner, and the corner itself."""
    return {"x": torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()}


def main() -> None:
    """Print the values and the gradient by three ways, and how far they are from PyTorch's."""
    point = inputs()
    x = point["x"].detach()
    batched = torch.func.vmap(torch.func.grad(MyReLU.apply))(x)
    _, forward_mode = torch.func.jvp(MyReLU.apply, (x,), (torch.ones_like(x),))
    print("MyReLU: max(x, 0)\n")
    print(columns_of(point | pull(MyReLU.apply, point) | {"vmap": batched, "jvp": forward_mode}))
    print("\nThe gradient is the same in reverse mode, one by one under vmap, and in forward mode.")
    print(verdict_on(compare(MyReLU.apply, plain, point)))


if __name__ == "__main__":
    main()
