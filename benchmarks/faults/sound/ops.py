"""Custom operators of `torch.library` with a registered backward."""

import torch
from torch import Tensor

from benchmarks.faults.sound.entry import Sound, cases_of, positive, real, whole

# ---- one input ----


@torch.library.custom_op("sound::swish", mutates_args=())
def swish(x: Tensor) -> Tensor:
    """`x * sigmoid(x)`."""
    return x * torch.sigmoid(x)


@swish.register_fake
def _(x):
    return torch.empty_like(x)


def _swish_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _swish_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


swish.register_autograd(_swish_backward, setup_context=_swish_setup)


@torch.library.custom_op("sound::power", mutates_args=())
def power(x: Tensor, n: int) -> Tensor:
    """`x ** n` with a whole number of at least 1."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return x**n


@power.register_fake
def _(x, n):
    return torch.empty_like(x)


def _power_setup(ctx, inputs, output):
    x, ctx.n = inputs
    ctx.save_for_backward(x)


def _power_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * ctx.n * x ** (ctx.n - 1), None


power.register_autograd(_power_backward, setup_context=_power_setup)


# ---- several inputs and outputs ----


@torch.library.custom_op("sound::scaled_add", mutates_args=())
def scaled_add(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """`a + alpha * b` for tensors of one shape."""
    if a.shape != b.shape:
        raise ValueError(f"a and b must have one shape, got {a.shape} and {b.shape}")
    return a + alpha * b


@scaled_add.register_fake
def _(a, b, alpha):
    return torch.empty_like(a)


def _scaled_add_setup(ctx, inputs, output):
    ctx.alpha = inputs[2]


def _scaled_add_backward(ctx, grad):
    grad_b = ctx.alpha * grad if ctx.needs_input_grad[1] else None
    return grad if ctx.needs_input_grad[0] else None, grad_b, None


scaled_add.register_autograd(_scaled_add_backward, setup_context=_scaled_add_setup)


@torch.library.custom_op("sound::unit", mutates_args=())
def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row over its length, and the length; rows of zeros are not taken."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length, length


@unit.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1 if x.dim() else 0)


def _unit_setup(ctx, inputs, output):
    ctx.save_for_backward(*output)


def _unit_backward(ctx, grad_unit, grad_length):
    direction, length = ctx.saved_tensors
    along = (grad_unit * direction).sum(-1, keepdim=True)
    return (grad_unit - direction * along) / length + grad_length * direction


unit.register_autograd(_unit_backward, setup_context=_unit_setup)


@torch.library.custom_op("sound::pick", mutates_args=())
def pick(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of `x` by number, any of them several times."""
    return x.index_select(0, rows)


@pick.register_fake
def _(x, rows):
    return x.new_empty(rows.shape[0], *x.shape[1:])


def _pick_setup(ctx, inputs, output):
    x, rows = inputs
    ctx.shape = x.shape
    ctx.save_for_backward(rows)


def _pick_backward(ctx, grad):
    (rows,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).index_add(0, rows, grad), None


pick.register_autograd(_pick_backward, setup_context=_pick_setup)


@torch.library.custom_op("sound::affine", mutates_args=())
def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x * weight + bias` over the last dimension; the bias is optional."""
    if x.dim() == 0 or weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must have the size of x's rows, got {x.shape}")
    return x * weight if bias is None else x * weight + bias


@affine.register_fake
def _(x, weight, bias):
    return torch.empty_like(x)


def _affine_setup(ctx, inputs, output):
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _affine_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    grad_x = grad * weight if ctx.needs_input_grad[0] else None
    grad_weight = (grad * x).sum_to_size(weight.shape) if ctx.needs_input_grad[1] else None
    grad_bias = grad.sum_to_size(weight.shape) if ctx.needs_input_grad[2] else None
    return grad_x, grad_weight, grad_bias


affine.register_autograd(_affine_backward, setup_context=_affine_setup)


def _unit(x):
    length = x.norm(dim=-1, keepdim=True)
    return x / length, length


SOUND = {
    "op-swish": Sound(swish, lambda: (real(4, 5),), torch.nn.functional.silu),
    "op-power": Sound(power, lambda: (real(4, 5), 3), torch.pow),
    "op-scaled-add": Sound(
        scaled_add, lambda: (real(4, 5), real(4, 5, seed=1), 0.5), lambda a, b, c: a + c * b
    ),
    "op-unit": Sound(unit, lambda: (real(4, 5),), _unit, convention=False),
    "op-pick": Sound(
        pick, lambda: (real(4, 5), whole(7, high=4)), lambda x, i: x.index_select(0, i)
    ),
    "op-affine": Sound(
        affine, lambda: (real(4, 5), positive(5), real(5, seed=1)), lambda x, w, b: x * w + b
    ),
    "op-affine-without-bias": Sound(
        affine, lambda: (real(4, 5), positive(5), None), lambda x, w, b: x * w
    ),
}

CASES = cases_of(SOUND)
