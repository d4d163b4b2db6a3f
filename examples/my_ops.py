"""Functions as a project has them, one of them wrong: what the commands of the docs are for.

`pullback check examples/my_ops.py` finds that the backward of `Swish` adds where it must subtract.
Run as a program, it trains with them for a few steps, for `pullback record` to watch.
"""

import torch
from torch import Tensor


class Square(torch.autograd.Function):
    """`scale * x^2`."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: float = 1.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * ctx.scale * x * cotangent, None

    @staticmethod
    def examples():
        return torch.linspace(-2, 2, 8), 1.5


class Swish(torch.autograd.Function):
    """`x * sigmoid(x)`, with a slip in its backward: it should be `1 - s`."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, cotangent):
        x, s = ctx.saved_tensors
        return cotangent * (s + x * s * (1 + s))


class Gate(torch.autograd.Function):
    """`x * sigmoid(w)`."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * torch.sigmoid(w)

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        s = torch.sigmoid(w)
        return cotangent * s, cotangent * x * s * (1 - s)


def act(x: Tensor) -> Tensor:
    """A plain function, to be derived and emitted."""
    s = torch.sigmoid(x)
    r = torch.rsqrt(1 + torch.exp(x))
    return s * r


def train(steps: int = 3) -> list[float]:
    """The losses of a few steps of a tiny network."""
    torch.manual_seed(0)
    x, w = torch.randn(16, 4), torch.randn(4, 4, requires_grad=True)
    gate = torch.zeros(16, 4, requires_grad=True)
    optimizer = torch.optim.SGD([w, gate], lr=0.02)
    losses = []
    for _ in range(steps):
        loss = Square.apply(Gate.apply(Swish.apply(x @ w), gate)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train, and print the losses: nothing tells that a gradient is wrong."""
    print("losses:", ", ".join(f"{loss:.4f}" for loss in train()))


if __name__ == "__main__":
    main()
