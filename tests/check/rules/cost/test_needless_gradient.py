"""Sound functions pass `needless-gradient`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.cost.needless_gradient import check
from tests.check.functions import Product
from tests.check.subjects import normal, rule_tests


class Careful(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        return g @ w.t() if first else None, x.t() @ g if second else None


class Careless(Careful):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class InForward(Careful):
    """Computes in forward what backward may never be asked for."""

    @staticmethod
    def forward(ctx, x, w):
        y = x @ w
        d = 2 * y
        ctx.save_for_backward(d @ w.t(), x.t() @ d)
        return (y * y).sum()

    @staticmethod
    def backward(ctx, g):
        dx, dw = ctx.saved_tensors
        return g * dx, g * dw


class Recomputed(Function):
    """The weight is a constant to it, and the product is made twice to save memory."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).tanh()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g * (1 - (x @ w).tanh() ** 2)) @ w.t(), None


class FixedPoint(Function):
    """One product more for the gradient of `w`, next to very many that are needed anyway."""

    @staticmethod
    def forward(ctx, x, w):
        z = torch.zeros_like(x)
        for _ in range(30):
            z = torch.tanh(z @ w / 20 + x)
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        u = g
        for _ in range(30):
            u = g + (u * (1 - z * z)) @ w.t() / 20
        u = u * (1 - z * z)
        return u, z.t() @ u / 20


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return (q @ k.mT).softmax(-1) @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        p = (q @ k.mT).softmax(-1)
        dp = g @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ g


class Quadratic(Function):
    """The gradient of `a` is no product, and is made where it is asked for."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x @ a @ x

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        dx = g * (a @ x + a.t() @ x) if first else None
        return dx, g * torch.outer(x, x) if second else None


def made_op(name, backward):
    """The product of two matrices as an op in Python, with that backward."""

    @torch.library.custom_op(f"needless::{name}", mutates_args=())
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    product.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    return product


def constant():
    return normal(4, 5, seed=1).detach()


SOUND = {
    "constant to the function": (Recomputed, lambda: (normal(3, 4), constant())),
    "careful of a constant": (Careful, lambda: (normal(3, 4), constant())),
    "careful op": (
        made_op("careful", Careful.backward),
        lambda: (normal(3, 4), normal(4, 5, seed=1)),
    ),
    "quadratic": (Quadratic, lambda: (normal(5), normal(5, 5, seed=1))),
    "fixed point": (FixedPoint, lambda: (normal(3, 4), normal(4, 4, seed=1))),
    "attention": (
        Attention,
        lambda: (normal(2, 4, 6), normal(2, 5, 6, seed=1), normal(2, 5, 3, seed=2)),
    ),
    "careful": (Careful, lambda: (normal(3, 4), normal(4, 5, seed=1))),
    "pointwise": (Product, lambda: (normal(4), normal(4, seed=1))),
}
PLANTED = {
    "constant of the example": (Careless, lambda: (normal(3, 4), constant()), "with `w` frozen"),
    "careless op": (
        made_op("careless", Careless.backward),
        lambda: (normal(3, 4), normal(4, 5, seed=1)),
        "with `w` frozen",
    ),
    "careless": (Careless, lambda: (normal(3, 4), normal(4, 5, seed=1)), "with `w` frozen"),
    "in forward": (InForward, lambda: (normal(3, 4), normal(4, 5, seed=1)), "with `x` frozen"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
