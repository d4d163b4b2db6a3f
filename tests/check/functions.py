"""Small Functions, right and wrong, that the tests of the checker share."""

import os
import sys
import time
from typing import ClassVar

import torch
from torch.autograd import Function


class Square(Function):
    """Right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class HalfSquare(Square):
    """Half of the gradient."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x * g


class Product(Function):
    """Right, of two inputs."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Swapped(Product):
    """The gradients in the wrong order."""

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * a, g * b


class Relu(Function):
    """Right, with a kink, and the other choice of slope at it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x >= 0)


class Exp(Function):
    """Right, and saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Dropout(Function):
    """Right, and draws in forward."""

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class DoubledInPlace(Function):
    """Right, and writes into its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Sine(Function):
    """Right, with a `jvp` of its own."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * x.cos()


class OneWrong(Function):
    """One entry in a hundred thousand is half a percent off."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.cos()
        grad.view(-1)[grad.numel() // 3] *= 1.005
        return grad


class ThroughNumpy(Function):
    """Right, with a forward that autograd cannot see into."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class ThroughNumpyWrong(ThroughNumpy):
    """The same, with the wrong power."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * g


class Conjugate(Function):
    """`x * x` of complex numbers, with the conjugate it needs."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x.conj()


class NoConjugate(Conjugate):
    """Without it."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x


class Killed(Square):
    """Ends the process in backward."""

    @staticmethod
    def backward(ctx, g):
        os.kill(os.getpid(), 9)


class Leaving(Square):
    """Leaves the program in backward."""

    @staticmethod
    def backward(ctx, g):
        sys.exit(3)


class Waiting(Square):
    """Never ends, and does nothing."""

    @staticmethod
    def backward(ctx, g):
        time.sleep(3600)


class Spinning(Square):
    """Never ends, and is busy."""

    @staticmethod
    def backward(ctx, g):
        while True:
            pass


class KilledInForward(Square):
    """Ends the process in forward."""

    @staticmethod
    def forward(ctx, x):
        os.kill(os.getpid(), 9)


class SpinningInForward(Square):
    """Never ends in forward."""

    @staticmethod
    def forward(ctx, x):
        while True:
            pass


class Slow(Square):
    """Takes as long in backward as a hang may, and in forward some of that."""

    @staticmethod
    def forward(ctx, x):
        spin(0.2)
        return Square.forward(ctx, x)

    @staticmethod
    def backward(ctx, g):
        spin(1.0)
        return Square.backward(ctx, g)


class FailingWithoutGrad(Square):
    """Raises where no input requires grad."""

    @staticmethod
    def forward(ctx, x):
        {True: 1}[x.requires_grad]
        return Square.forward(ctx, x)


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Greedy(Square):
    """Asks for more memory than there is."""

    @staticmethod
    def backward(ctx, g):
        return torch.ones(1 << 42).sum() * g


class Surrogate(Function):
    """Rounds, and lets the cotangent through, on purpose."""

    declares: ClassVar = {"surrogate": "x"}

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class ReadsMemory(Square):
    """Right, with a kernel that reads the memory of its input, be there any or not."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_dlpack(x.detach()) ** 2
