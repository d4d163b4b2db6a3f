"""An activation with two factors, and the backward that forgets one: s(x) * (1 + e^x)^(-1/2).

With s the sigmoid and r = (1 + e^x)^(-1/2) the product rule gives f' = s' r + s r', where
s' = s (1 - s) and r' = -1/2 e^x (1 + e^x)^(-3/2) = -1/2 s r. So f' = f (1 - 3/2 s).
"""

import torch
from torch import Tensor
from torch.nn import functional

import pullback as pb
from examples.compare import Inputs, columns_of, compare, pull, verdict_on


class MyActivation(pb.Function):
    """`sigmoid(x) * (1 + exp(x)) ** -0.5`, with the whole product rule in backward.

    With output f, s = sigmoid(x) and cotangent g the gradient of x is f (1 - 3/2 s) g.
    """

    @staticmethod
    def forward(ctx, x):
        # log(sigmoid(-x)) is -log(1 + e^x): the same factor, without an e^x that overflows.
        output = torch.sigmoid(x) * torch.exp(functional.logsigmoid(-x) / 2)
        ctx.save_for_backward(x, output)
        return output

    @staticmethod
    def backward(ctx, cotangent):
        x, output = ctx.saved_tensors
        return output * (1 - 1.5 * torch.sigmoid(x)) * cotangent


class MyActivationAsPublished(pb.Function):
    """WRONG ON PURPOSE: the same activation, with a backward that forgets the second factor.

    It returns s (1 - s) (1 + e^x)^(-1/2) g, as if (1 + e^x)^(-1/2) were a constant. What is
    missing is s times the derivative of that factor, -1/2 s e^x (1 + e^x)^(-3/2) g: the
    gradient is too large everywhere, and has the wrong sign where x > ln 2.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sigmoid(x) * (1 + torch.exp(x)) ** -0.5

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return cotangent * sigmoid * (1 - sigmoid) * (1 + torch.exp(x)) ** -0.5


def plain(x: Tensor) -> Tensor:
    """The same in PyTorch's own operations."""
    return torch.sigmoid(x) * (1 + torch.exp(x)) ** -0.5


def inputs() -> Inputs:
    """Points on both sides of the maximum, which is at ln 2."""
    return {"x": torch.linspace(-4, 4, 9, dtype=torch.float64).requires_grad_()}


def main() -> None:
    """Print both backwards beside PyTorch's, and how far each is from it."""
    point = inputs()
    right, wrong = (
        pull(function.apply, point)["gradient of `x`"]
        for function in (MyActivation, MyActivationAsPublished)
    )
    torchs = pull(plain, point)
    print("MyActivation: sigmoid(x) * (1 + e^x)^(-1/2)\n")
    gradients = {"PyTorch": torchs["gradient of `x`"], "gradient": right, "as published": wrong}
    print(columns_of(point | {"output": torchs["output"]} | gradients))
    print(f"\nMyActivation.            {verdict_on(compare(MyActivation.apply, plain, point))}")
    wrong_verdict = verdict_on(compare(MyActivationAsPublished.apply, plain, point))
    print(f"MyActivationAsPublished. {wrong_verdict}")
    print("The published backward forgets the derivative of the second factor.")


if __name__ == "__main__":
    main()
