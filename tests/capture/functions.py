"""Functions with one peculiarity each, on either base class.

Their backwards are deliberately not the derivatives of their forwards: each has a factor of its
own, so that a derived backward in the place of the written one shows.
"""

from types import SimpleNamespace

import torch
from torch.autograd.function import once_differentiable


@torch.library.custom_op("pullback_capture::cosine", mutates_args=())
def cosine(x: torch.Tensor) -> torch.Tensor:
    """An op that PyTorch cannot look into."""
    return torch.from_numpy(x.detach().numpy().copy()).cos()


@cosine.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("pullback_capture::blind", mutates_args=())
def blind(x: torch.Tensor) -> torch.Tensor:
    """An op without a fake kernel."""
    return x.cos()


@torch.library.custom_op("pullback_capture::fill", mutates_args=("x",))
def fill(x: torch.Tensor) -> None:
    """An op that changes its argument."""
    x.fill_(1.0)


@fill.register_fake
def _(x):
    return None


def family(base):
    """The Functions, as subclasses of `base`."""

    class SavedInput(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * 3

    class SavedMiddle(base):
        @staticmethod
        def forward(ctx, x):
            middle = x.exp()
            ctx.save_for_backward(middle)
            return middle.square()

        @staticmethod
        def backward(ctx, g):
            (middle,) = ctx.saved_tensors
            return g * middle * 5

    class SavedOutput(base):
        @staticmethod
        def forward(ctx, x):
            y = x.tanh()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * (1 - y * y) * 2

    class Plain(base):
        @staticmethod
        def forward(ctx, x, factor, mode):
            ctx.factor, ctx.mode = factor, mode
            return x * factor if mode == "mul" else x + factor

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor * 7 if ctx.mode == "mul" else g, None, None

    class Largest(base):
        @staticmethod
        def forward(ctx, x):
            value, index = x.max(-1)
            ctx.mark_non_differentiable(index)
            ctx.save_for_backward(index)
            ctx.shape = x.shape
            return value, index

        @staticmethod
        def backward(ctx, g, _):
            (index,) = ctx.saved_tensors
            zeros = torch.zeros(ctx.shape, dtype=g.dtype)
            return zeros.scatter(-1, index[..., None], g[..., None] * 11)

    class Unfilled(base):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, ga, gb):
            if ga is None and gb is None:
                return None
            if gb is None:
                return ga * 13
            return gb * 17 if ga is None else ga * 2 + gb * 3

    class Needed(base):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            need_a, need_b = ctx.needs_input_grad
            return g * b * 3 if need_a else None, g * a * 5 if need_b else None

    class Changing(base):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 19

    class Flat(base):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x.view(-1)

        @staticmethod
        def backward(ctx, g):
            return g.view(ctx.shape) * 3

    class Noise(base):
        @staticmethod
        def forward(ctx, x, p):
            mask = (torch.rand_like(x) > p).to(x.dtype) / (1 - p)
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx, g):
            (mask,) = ctx.saved_tensors
            return g * mask, None

    class Optional(base):
        @staticmethod
        def forward(ctx, x, bias):
            ctx.has_bias = bias is not None
            return x + bias if bias is not None else x * 1

        @staticmethod
        def backward(ctx, g):
            return g * 2, g.sum(0) * 3 if ctx.has_bias else None

    class HalfGone(base):
        @staticmethod
        def forward(ctx, a, b):
            return a * 2 + b

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    class Apart(base):
        @staticmethod
        def forward(x, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            _, ctx.factor = inputs

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor * 9, None

    class Again(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin().exp()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                y = leaf.sin().exp()
            return torch.autograd.grad(y, leaf, g * 2)[0]

    class Once(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * 2

    class Through(base):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g.clone()

    class Attribute(base):
        @staticmethod
        def forward(ctx, x):
            ctx.y = x.exp()
            return ctx.y * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.y * 4

    class Opaque(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return cosine(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return -g * x.sin() * 2

    class Nested(base):
        @staticmethod
        def forward(ctx, x):
            y = SavedInput.apply(x)
            ctx.save_for_backward(x, y)
            return y * x

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * (y + SavedMiddle.apply(x))

    class Linear(base):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.save_for_backward(x, w)
            return x @ w.t() + b

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w, g.t() @ x, g.sum(0)

    return SimpleNamespace(**{k: v for k, v in locals().items() if k != "base"})
