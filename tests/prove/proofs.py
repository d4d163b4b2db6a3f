"""Hand-written gradients to prove, right and wrong ones, and what to judge a proof by.

`SOUND` are right, `ALMOST` right but on a set without volume, `PLANTED` wrong. Each has a forward,
a backward that takes the inputs and the cotangent, and examples.
"""

import math

import torch
from torch.nn import functional as F

import pullback as pb
from pullback.function.plain import plain_program


def function(forward, backward):
    """A Function that saves its inputs, and computes its gradients by `backward(*inputs, g)`."""

    class Planted(pb.Function):
        @staticmethod
        def forward(ctx, x, y=None, z=None):
            tensors = [t for t in (x, y, z) if t is not None]
            ctx.save_for_backward(*tensors)
            return forward(*tensors)

        @staticmethod
        def backward(ctx, *cotangents):
            gradients = backward(*ctx.saved_tensors, *cotangents)
            row = gradients if isinstance(gradients, tuple) else (gradients,)
            return row + (None,) * (3 - len(row))

    return Planted


def drawn(*shapes, positive=False, seed=0):
    """Tensors in double precision that need a gradient."""
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randn(s, dtype=torch.float64, generator=rng) for s in shapes]
    return tuple((r.abs() + 0.5 if positive else r).requires_grad_() for r in rows)


def pulled(program, inputs, cotangents):
    """The gradients that a program gives."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = program(*[x.clone() for x in leaves])
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, leaves, cotangents, materialize_grads=True)


def both(cls, inputs, seed=0):
    """The hand-written and the derived gradients at a point."""
    with torch.no_grad():
        output = plain_program(cls)(*inputs)
    rng = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(output.shape, dtype=torch.float64, generator=rng)
    return [pulled(program, inputs, cotangent) for program in (cls.apply, plain_program(cls))]


def is_right(cls, inputs):
    """Whether the hand-written gradients are right, as far as numbers can tell."""
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        moved = [x + torch.rand(x.shape, dtype=x.dtype, generator=rng) / 4 for x in inputs]
        hand, derived = both(cls, moved, seed)
        if not all(torch.allclose(h, d) for h, d in zip(hand, derived, strict=True)):
            return False
    return True


def assert_witness_holds(cls, witness, names):
    """Run both programs on the numbers of a witness."""
    inputs = [torch.tensor(witness.inputs[name], dtype=torch.float64) for name in names]
    cotangents = [torch.tensor(c, dtype=torch.float64) for c in witness.cotangents]
    place = names.index(witness.input)
    hand, derived = (pulled(p, inputs, cotangents) for p in (cls.apply, plain_program(cls)))
    got, expected = (g[place][witness.index].item() for g in (hand, derived))

    assert expected == witness.expected
    assert got == witness.got or (math.isnan(got) and math.isnan(witness.got))
    assert math.isnan(got) or abs(got - expected) > 1e-6 * max(abs(got), abs(expected))


# ---- gradients written by hand ----


def softmax_backward(x, g):
    y = torch.softmax(x, -1)
    return y * (g - (g * y).sum(-1, keepdim=True))


def stable_softmax(x):
    raised = (x - x.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def normalised(x, eps=1e-5):
    away = x - x.mean(-1, keepdim=True)
    scale = ((away**2).mean(-1, keepdim=True) + eps) ** -0.5
    return away * scale, scale


def layer_norm_backward(x, g):
    normal, scale = normalised(x)
    along = (g * normal).mean(-1, keepdim=True)
    return scale * (g - g.mean(-1, keepdim=True) - normal * along)


def scaled_norm_backward(x, weight, bias, g):
    return layer_norm_backward(x, g * weight), (g * normalised(x)[0]).sum(0), g.sum(0)


def rms(x, eps=1e-6):
    return torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def rms_backward(x, weight, g):
    r = rms(x)
    along = (g * weight * x).mean(-1, keepdim=True)
    return r * (g * weight - x * r * r * along), (g * x * r).sum(0)


def gelu_backward(x, g):
    normal = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return g * (normal + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def tanh_gelu_backward(x, g):
    k, c = math.sqrt(2 / math.pi), 0.044715
    curve = torch.tanh(k * (x + c * x**3))
    return g * (0.5 * (1 + curve) + 0.5 * x * (1 - curve**2) * k * (1 + 3 * c * x**2))


def mish_backward(x, g):
    curve = torch.tanh(F.softplus(x))
    return g * (curve + x * torch.sigmoid(x) * (1 - curve * curve))


def elu_backward(x, g):
    y = F.elu(x)
    return torch.where(y > 0, g, g * (y + 1))


def silu_backward(x, g):
    s = torch.sigmoid(x)
    return g * (s + x * s * (1 - s))


def swiglu_backward(x, y, g):
    return silu_backward(x, g * y), g * F.silu(x)


def std_backward(x, g):
    away = x - x.mean(-1, keepdim=True)
    return g.unsqueeze(-1) * away / (x.shape[-1] - 1) / x.std(-1, keepdim=True)


def norm_backward(x, g):
    return g.unsqueeze(-1) * x / x.norm(dim=-1, keepdim=True)


ONE, TWO = drawn((3,)), drawn((3,), (3,))
POSITIVE, POSITIVES = drawn((3,), positive=True), drawn((3,), (3,), positive=True)
ROWS = drawn((4, 7))

SOUND = {
    "tanh": (torch.tanh, lambda x, g: g / torch.cosh(x) ** 2, ONE),
    "sigmoid": (torch.sigmoid, lambda x, g: g / (2 + torch.exp(x) + torch.exp(-x)), ONE),
    "double angle": (lambda x: torch.sin(x) ** 2, lambda x, g: g * torch.sin(2 * x), ONE),
    "tangent": (torch.tan, lambda x, g: g * (1 + torch.tan(x) ** 2), ONE),
    "silu": (F.silu, silu_backward, ONE),
    "gelu": (F.gelu, gelu_backward, ONE),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), tanh_gelu_backward, ONE),
    "mish": (F.mish, mish_backward, ONE),
    "softplus": (F.softplus, lambda x, g: g * torch.sigmoid(x), ONE),
    "elu by its output": (F.elu, elu_backward, ONE),
    "swiglu": (lambda x, y: F.silu(x) * y, swiglu_backward, TWO),
    "logarithm": (lambda x: x * torch.log(x), lambda x, g: g * (1 + torch.log(x)), POSITIVE),
    "power": (
        torch.pow,
        lambda x, y, g: (g * y * x ** (y - 1), g * x**y * torch.log(x)),
        POSITIVES,
    ),
    "quotient": (torch.div, lambda x, y, g: (g / y, -g * x / y**2), POSITIVES),
    "hypotenuse": (
        torch.hypot,
        lambda x, y, g: (g * x / torch.hypot(x, y), g * y / torch.hypot(x, y)),
        TWO,
    ),
    "broadcast product": (
        lambda x, y: x * y,
        lambda x, y, g: (g * y, (g * x).sum(0)),
        drawn((4, 5), (5,)),
    ),
    "mean of squares": (
        lambda x: (x * x).mean(),
        lambda x, g: g * 2 * x / x.numel(),
        drawn((4, 3)),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), softmax_backward, ROWS),
    "log-softmax": (
        lambda x: torch.log_softmax(x, -1),
        lambda x, g: g - torch.softmax(x, -1) * g.sum(-1, keepdim=True),
        ROWS,
    ),
    "log-sum-exp": (
        lambda x: torch.logsumexp(x, -1),
        lambda x, g: g.unsqueeze(-1) * torch.softmax(x, -1),
        ROWS,
    ),
    "layer norm": (lambda x: normalised(x)[0], layer_norm_backward, ROWS),
    "scaled layer norm": (
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        scaled_norm_backward,
        drawn((4, 7), (7,), (7,)),
    ),
    "rms norm": (lambda x, w: x * rms(x) * w, rms_backward, drawn((4, 7), (7,))),
    "running sum": (
        lambda x: x.cumsum(-1),
        lambda x, g: g.flip(-1).cumsum(-1).flip(-1),
        drawn((2, 3)),
    ),
}

# Right but on a set without volume, or but for a pole: proved, and said so.
ALMOST = {
    "relu that is half at zero": (
        torch.relu,
        lambda x, g: torch.where(x > 0, g, torch.where(x < 0, 0 * g, g / 2)),
        ONE,
        "not shown where x = 0",
    ),
    "clamp without its ends": (
        lambda x: x.clamp(-1, 2),
        lambda x, g: g * ((x > -1) & (x < 2)),
        ONE,
        "not shown where x = 2",
    ),
    "maximum that prefers one": (
        torch.maximum,
        lambda x, y, g: (g * (x > y), g * (x <= y)),
        TWO,
        "not shown where x = y",
    ),
    "square with a pole": (
        lambda x: x * x,
        lambda x, g: 2 * (x * x) / x * g,
        ONE,
        "the hand-written gradient is defined only where x != 0",
    ),
    "square root that is zero below": (
        lambda x: torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)),
        lambda x, g: torch.where(x > 0, g / (2 * torch.sqrt(x)), torch.zeros_like(x)),
        POSITIVE,
        "the derived gradient is not defined where x < 0",
    ),
}

PLANTED = {
    "wrong factor": (torch.square, lambda x, g: x * g, ONE),
    "factor a thousandth off": (torch.square, lambda x, g: 2.002 * x * g, ONE),
    "wrong sign": (torch.cos, lambda x, g: torch.sin(x) * g, ONE),
    "missing summand": (lambda x: x * torch.sin(x), lambda x, g: g * torch.sin(x), ONE),
    "forgotten chain rule": (lambda x: torch.exp(3 * x), lambda x, g: g * torch.exp(3 * x), ONE),
    "wrong variable": (
        lambda x, y: x * torch.exp(y),
        lambda x, y, g: (g * torch.exp(x), g * x * torch.exp(y)),
        TWO,
    ),
    "gradients swapped": (torch.mul, lambda x, y, g: (g * x, g * y), TWO),
    "output used as the input": (torch.tanh, lambda x, g: g * (1 - x * x), ONE),
    "one row instead of the sum": (
        lambda x, y: x * y,
        lambda x, y, g: (g * y, (g * x)[0]),
        drawn((4, 5), (5,)),
    ),
    "mean instead of the sum": (
        lambda x, y: x * y,
        lambda x, y, g: (g * y, (g * x).mean(0)),
        drawn((4, 5), (5,)),
    ),
    "size of the wrong dimension": (
        lambda x: x.mean(-1),
        lambda x, g: g.unsqueeze(-1).expand_as(x) / x.shape[0],
        drawn((4, 3)),
    ),
    "size of the examples": (
        lambda x: x.mean(),
        lambda x, g: g.expand_as(x) / 12,
        drawn((4, 3)),
    ),
    "wrong below zero only": (
        lambda x: F.leaky_relu(x, 0.1),
        lambda x, g: torch.where(x > 0, g, 0.2 * g),
        ONE,
    ),
    "wrong far out only": (
        lambda x: torch.where(x > 1234.5, 3 * x, x),
        lambda x, g: torch.where(x > 1234.5, 2 * g, g),
        ONE,
    ),
    "wrong between two corners": (
        lambda x: x.clamp(6.0, 6.125),
        lambda x, g: torch.zeros_like(g),
        ONE,
    ),
    "softmax without the sum": (
        lambda x: torch.softmax(x, -1),
        lambda x, g: g * torch.softmax(x, -1) * (1 - torch.softmax(x, -1)),
        ROWS,
    ),
    "layer norm without the mean": (
        lambda x: normalised(x)[0],
        lambda x, g: normalised(x)[1] * (g - normalised(x)[0] * (g * normalised(x)[0]).mean()),
        ROWS,
    ),
    "clamped cotangent": (lambda x: 2 * x, lambda x, g: 2 * g.clamp(-1, 1), ONE),
    "undefined below zero": (torch.square, lambda x, g: 2 * torch.sqrt(x) ** 2 * g, ONE),
    "no gradient": (torch.mul, lambda x, y, g: (g * y, None), TWO),
}
