"""Right wherever one looks first: guards of one side, odd dtypes, numbers, parts and containers."""

# ruff: noqa: D101

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.faults.case import Cases, integers, normal, positive
from benchmarks.faults.evidence import (
    autocast_differs,
    close,
    differs,
    fails,
    gradients,
    needs_grad_but_cannot,
    needs_repair,
    refuses_edit,
    saves_more_than,
    tensors,
)

CASES = Cases()


# ---- guards ----


class Diagonal(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.hypot(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        scale = grad / (a * a + b * b + 1e-18).sqrt()
        return scale * a, scale * b


CASES.add(
    Diagonal,
    lambda: (normal(6), normal(6, seed=1)),
    fault="other-guard",
    where="A guard inside of the root, in backward alone, takes the gradient of short vectors.",
    reference=torch.hypot,
    evidence=differs(lambda: tuple((1e-12 * t.detach()).double().requires_grad_() for t in pair())),
)


def pair() -> tuple[Tensor, Tensor]:
    """Two inputs of one shape."""
    return positive(6), positive(6, seed=1)


class Shares(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.abs().sum(-1, keepdim=True).clamp(min=1e-7)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        total = x.abs().sum(-1, keepdim=True)
        return grad / total - x.sign() * (grad * x).sum(-1, keepdim=True) / total**2


CASES.add(
    Shares,
    lambda: (normal(3, 5),),
    fault="wrong-at-zero",
    where="Forward guards the division by a sum of zero, backward does not.",
    reference=lambda x: x / x.abs().sum(-1, keepdim=True).clamp(min=1e-7),
    evidence=differs(lambda: (torch.zeros(3, 5, requires_grad=True),)),
)


# ---- shapes and arguments ----


class Softclip(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.asinh(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        rows = x.reshape(len(x), -1)
        return (grad.reshape(rows.shape) / (1 + rows * rows).sqrt()).reshape(x.shape)


CASES.add(
    Softclip,
    lambda: (normal(3, 5),),
    fault="wrong-rank",
    where="A number has no length, and backward asks for it.",
    severity="fragile",
    reference=torch.asinh,
    evidence=fails(lambda: (torch.tensor(0.5, requires_grad=True),)),
)


class GainOrColumn(Function):
    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain.exp()

    @staticmethod
    def backward(ctx, grad):
        x, gain = ctx.saved_tensors
        whole = grad * x * gain.exp()
        if gain.dim() == x.dim():
            return grad * gain.exp(), whole[..., :1] if gain.shape[-1] == 1 else whole
        return grad * gain.exp(), whole.sum(0)


CASES.add(
    GainOrColumn,
    lambda: (normal(4, 3), normal(3, seed=1)),
    fault="broadcast-input",
    where="A gain per row gets the gradient of the first column alone.",
    reference=lambda x, gain: x * gain.exp(),
    evidence=differs(lambda: (normal(4, 3), normal(4, 1, seed=1))),
)


class Hinge(Function):
    @staticmethod
    def forward(ctx, score, margin):
        ctx.save_for_backward(score)
        return F.relu(1 - score + margin * score * score).sum()

    @staticmethod
    def backward(ctx, grad):
        (score,) = ctx.saved_tensors
        return -grad * (score < 1).to(grad.dtype), None


CASES.add(
    Hinge,
    lambda: (normal(8), 0.0),
    fault="wrong-at-argument",
    where="The margin, which is zero by default, has no part in the gradient.",
    reference=lambda score, margin: F.relu(1 - score + margin * score * score).sum(),
    evidence=differs(lambda: (normal(8), 0.25)),
)


# ---- outputs, containers, generators ----


class DropFirst(Function):
    @staticmethod
    def forward(ctx, x):
        return x[..., 1:]

    @staticmethod
    def backward(ctx, grad):
        return F.pad(grad, (1, 0))


CASES.add(
    DropFirst,
    lambda: (normal(4, 5),),
    fault="view-output",
    where="The output is a view of a part of the input, which cannot be changed in place.",
    cites="unsloth#3452",
    severity="fragile",
    reference=lambda x: x[..., 1:].clone(),
    evidence=refuses_edit,
)


class ClipWithRate(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1), (x.abs() > 1).to(x.dtype).mean()

    @staticmethod
    def backward(ctx, grad, rate):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


CASES.add(
    ClipWithRate,
    lambda: (normal(4, 5),),
    fault="non-differentiable-unmarked",
    where="The rate of clipped entries requires grad, and has none.",
    severity="fragile",
    reference=lambda x: (x.clamp(-1, 1), (x.abs() > 1).to(x.dtype).mean()),
    evidence=needs_grad_but_cannot(1),
)


class Styled(Function):
    @staticmethod
    def forward(ctx, x, style):
        ctx.save_for_backward(style["scale"])
        return x * style["scale"] + style["shift"]

    @staticmethod
    def backward(ctx, grad):
        (scale,) = ctx.saved_tensors
        return grad * scale, None


def _style() -> dict[str, Tensor]:
    return {"scale": normal(3, seed=1), "shift": normal(3, seed=2)}


def _cuts_style(call, case):
    x, style = case.inputs()
    (got,) = torch.autograd.grad(call(x, style).sum(), [style["scale"]], allow_unused=True)
    return got is None


CASES.add(
    Styled,
    lambda: (normal(4, 3), _style()),
    fault="tensors-in-containers",
    where="Scale and shift come in a dict, and get no gradient.",
    reference=lambda x, style: x * style["scale"] + style["shift"],
    evidence=_cuts_style,
    visible=True,
)


class NoiseAgain(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.get_rng_state()
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx, grad):
        torch.set_rng_state(ctx.state)
        return grad * torch.rand_like(grad)


def _rewinds(call, case):
    (x,) = case.inputs()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        outputs = tensors(call(x))
        first = torch.rand(4)
        outputs[0].sum().backward()
        return bool(torch.equal(first, torch.rand(4)))


CASES.add(
    NoiseAgain,
    lambda: (normal(4, 5),),
    fault="replay-from-seed",
    where="Backward goes back to forward's random numbers and leaves the generator there.",
    severity="fragile",
    reference=lambda x: x * torch.rand_like(x),
    evidence=_rewinds,
)


# ---- memory and work ----


class Pick(Function):
    @staticmethod
    def forward(ctx, x, index):
        hot = F.one_hot(index, x.shape[-1]).to(x.dtype)
        ctx.save_for_backward(hot)
        return (x * hot).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (hot,) = ctx.saved_tensors
        return grad[..., None] * hot, None


CASES.add(
    Pick,
    lambda: (normal(6, 50), integers(50, 6)),
    fault="saves-too-much",
    where="Rows of zeros with a one are saved in the place of the index.",
    severity="wasteful",
    reference=lambda x, index: x.gather(-1, index[..., None])[..., 0],
    evidence=saves_more_than(200),
)


# ---- dtypes ----


class CubeInHalf(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if x.dtype == torch.float16:
            x = x.bfloat16().half()  # for its range
        return 3 * grad * x * x


def _half_is_coarse(call, case):
    (x,) = case.inputs()
    x = (x.detach().abs() + 1).half().requires_grad_()
    (got,) = gradients(call, (x,))
    (want,) = gradients(case.reference, (x.detach().double().requires_grad_(),))
    return not close(got.double(), want, 3e-3)


CASES.add(
    CubeInHalf,
    lambda: (normal(4, 6),),
    fault="rounded-to-half",
    where="Inputs in float16 are rounded to bfloat16 before they are squared.",
    cites="Liger#1253",
    reference=lambda x: x**3,
    evidence=_half_is_coarse,
)


class Tenth(Function):
    @staticmethod
    def forward(ctx, x):
        return x / 10

    @staticmethod
    def backward(ctx, grad):
        return grad / torch.ones(grad.shape[-1:]).mul(10)


CASES.add(
    Tenth,
    lambda: (normal(4, 5),),
    fault="dtype-of-gradient",
    where="A vector in the default dtype makes gradients in bfloat16 float32.",
    severity="fragile",
    reference=lambda x: x / 10,
    evidence=needs_repair(lambda: (normal(4, 5, dtype=torch.bfloat16),)),
)


class Projected(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.mT, x.mT @ grad


CASES.add(
    Projected,
    lambda: (normal(4, 5), normal(5, 3, seed=1)),
    fault="mixed-dtypes",
    where="Forward casts the weight to the dtype of the input, backward does not.",
    severity="fragile",
    reference=lambda x, weight: x @ weight.to(x.dtype),
    evidence=fails(lambda: (normal(4, 5), normal(5, 3, seed=1, dtype=torch.bfloat16))),
)


class ScaledUnderAutocast(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        ctx.dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).sum(0).to(ctx.dtype).to(scale.dtype)


CASES.add(
    ScaledUnderAutocast,
    lambda: (normal(8, 5), normal(5, seed=1)),
    fault="autocast",
    where="Under autocast the gradient of the scale is rounded, and nothing else is.",
    reference=lambda x, scale: x * scale,
    evidence=autocast_differs(4e-4),
)
