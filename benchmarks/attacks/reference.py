"""The reference that the attacks pretend to be: a few layers, and a softmax."""

import torch

LAYERS = 6


def reference(x, w):
    """Softmax of some layers of `tanh(y @ w)`, in plain PyTorch."""
    y = x
    for _ in range(LAYERS):
        y = torch.tanh(y @ w)
    return torch.softmax(4 * y, -1)


def examples():
    """Inputs, the same each time: an attack may know them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 64, generator=generator)
    w = torch.randn(64, 64, generator=generator) / 8
    return x, w


def examples_gpu():
    """Larger inputs on a GPU."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 2048, generator=generator)
    w = torch.randn(2048, 2048, generator=generator) / 45
    return x.cuda(), w.cuda()
