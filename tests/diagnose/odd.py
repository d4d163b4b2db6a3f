"""Functions of odd kinds: each is judged, or the reason is given, and none of them raises.

`ODD` gives the arguments of each, and what is said: the reason, or the pattern of the one fault.
"""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from tests.diagnose.faulty import positive, row


class RaisingForward(Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("mine")

    @staticmethod
    def backward(ctx, g):
        return g


class RaisingBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ZeroDivisionError("mine")


class WithoutBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


class TwoForOne(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g, g


class NumberForTensor(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2.0


class NothingDifferentiable(Function):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        return mask

    @staticmethod
    def backward(ctx, g):
        return None


class AlwaysNone(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return None


class ThreeOutputsOnePlain(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.exp(), 3

    @staticmethod
    def backward(ctx, g_sine, g_exp, _):
        (x,) = ctx.saved_tensors
        return g_sine * x.cos()


class CountedByItem(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = int(x.detach().abs().sum().item())
        return x * (ctx.count + 2)

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.count + 2) / 2


class ChosenByMask(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[x > 0]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gradient = torch.zeros_like(x)
        gradient[x > 0] = 2 * g
        return gradient


class NumpySineWrong(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sin()


class SingleNumpySine(Function):
    """Right, takes single precision only, and hides what it does from autograd."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise TypeError("single precision only")
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class SoftmaxInSingle(Function):
    """Right, but computed in single precision whatever comes in."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x.float() * 20, -1)
        ctx.save_for_backward(y)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        g = g.float()
        return (20 * y * (g - (g * y).sum(-1, keepdim=True))).double()


class PlainArguments(pb.Function):
    @staticmethod
    def forward(ctx, x, mode, options):
        ctx.scale = options["scale"] if mode == "scaled" else 1.0
        return x * ctx.scale

    @staticmethod
    def backward(ctx, g):
        return {"x": g}


class TensorOnContext(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x**2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.x


class ChangedInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ViewOfInput(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return 2 * g.view(ctx.shape)


class RandomInBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


class LogOfAnything(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


class ListOfTensors(Function):
    @staticmethod
    def forward(ctx, tensors):
        return tensors[0] * 2

    @staticmethod
    def backward(ctx, g):
        return None


UNCAPTURED = "it cannot be captured, so no edit was searched: E301 capture: `{}` must do the same"

ODD = {
    RaisingForward: ((row(3),), "it raises on these arguments: ValueError: mine"),
    RaisingBackward: ((row(3),), "its backward raises: ZeroDivisionError: mine"),
    WithoutBackward: ((row(3),), "it has no backward"),
    TwoForOne: (
        (row(3),),
        "its backward raises: RuntimeError: function TwoForOneBackward",
    ),
    NumberForTensor: ((row(3),), "its backward raises: RuntimeError: expected Variable or None"),
    NothingDifferentiable: ((row(3),), "no output has a gradient"),
    AlwaysNone: ((row(3),), "`None` is returned where a gradient flows"),
    ThreeOutputsOnePlain: ((row(3),), "the cotangent `g_exp` is not used"),
    CountedByItem: ((row(3),), UNCAPTURED.format("CountedByItem")),
    ChosenByMask: ((row(6),), UNCAPTURED.format("ChosenByMask")),
    NumpySineWrong: ((row(3),), UNCAPTURED.format("NumpySineWrong")),
    SingleNumpySine: ((row(3).float(),), "it cannot be captured, so other sizes were not tried"),
    SoftmaxInSingle: ((3 * row(4, 6),), ""),
    PlainArguments: ((row(3), "scaled", {"scale": 3.0}), "1/3 times what it should be"),
    TensorOnContext: ((row(3).float(),), "1/2 times what it should be"),
    ChangedInPlace: ((row(3),), "1/2 times what it should be"),
    ViewOfInput: ((row(2, 3),), "2 times what it should be"),
    RandomInBackward: ((row(3),), "its graph, as it was captured, does not give what its backward"),
    LogOfAnything: (
        (torch.cat([-positive(1), torch.zeros(1), positive(2)]),),
        "`g * x` is used where `g / x` is needed",
    ),
    ListOfTensors: (([row(3).requires_grad_()],), "no output has a gradient"),
}
"""The arguments of each Function, and how the reason or the pattern begins."""
