"""Models with faults that only a look at the whole shows."""

import torch
from torch import nn


class Swish(torch.autograd.Function):
    """Right, and keeps more than it needs."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s, s * (1 - s))
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s, slope = ctx.saved_tensors
        return g * (s + x * slope)


class Stretched(torch.autograd.Function):
    """Its gradient is half as large again as that of its forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 1.5 * g * x.exp()


class Act(nn.Module):
    def forward(self, x):
        return Swish.apply(x)


class Block(nn.Module):
    def __init__(self, width, act=None):
        super().__init__()
        self.lin, self.act = nn.Linear(width, width), act or Act()

    def forward(self, x):
        return x + self.act(self.lin(x))


class Net(nn.Module):
    """Blocks, as many as asked for."""

    def __init__(self, depth=3, act=None):
        super().__init__()
        self.layers = nn.ModuleList(Block(4, act) for _ in range(depth))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Calling(nn.Module):
    """A linear layer, and a function of what comes out of it."""

    def __init__(self, function):
        super().__init__()
        self.function, self.lin = function, nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x):
        return self.function(self, self.lin(x))


def batch(*shape):
    return torch.randn(*(shape or (5, 4)), generator=torch.Generator().manual_seed(3))
