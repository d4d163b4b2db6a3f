"""Forward mode, vmap, torch.func, torch.compile, autocast, subclasses: the other callers."""

# ruff: noqa: D101, RUF059

import torch
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, normal
from benchmarks.faults.evidence import (
    autocast_differs,
    compile_differs,
    jvp_differs,
    vmap_differs,
    wrong_gradient,
)

CASES = Cases()

# ---- forward mode ----


class SinJvp(Function):
    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return -tangent * torch.cos(x)


CASES.add(
    SinJvp,
    lambda: (double(5),),
    fault="wrong-jvp",
    where="The tangent has the wrong sign.",
    reference=torch.sin,
    evidence=jvp_differs(),
)


class MulJvp(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    @staticmethod
    def jvp(ctx, dx, dy):
        x, y = ctx.saved_tensors
        return dx * y


CASES.add(
    MulJvp,
    lambda: (normal(4), normal(4, seed=1)),
    fault="wrong-jvp",
    where="The second input's tangent is left out.",
    reference=torch.mul,
    evidence=jvp_differs(),
)


class NormJvp(Function):
    @staticmethod
    def forward(x):
        return x.norm(dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad[:, None] * x / out[:, None]

    @staticmethod
    def jvp(ctx, tangent):
        x, out = ctx.saved_tensors
        return (x + tangent).norm(dim=-1) - out


CASES.add(
    NormJvp,
    lambda: (double(3, 4),),
    fault="jvp-not-homogeneous",
    where="The tangent is a finite difference with step one.",
    reference=lambda x: x.norm(dim=-1),
    evidence=jvp_differs(),
)


class ExpJvp(Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y

    @staticmethod
    def jvp(ctx, tangent):
        (y,) = ctx.saved_tensors
        return (tangent * y).clamp(-5, 5)


CASES.add(
    ExpJvp,
    lambda: (normal(5),),
    fault="jvp-not-homogeneous",
    where="The tangent is clipped.",
    reference=torch.exp,
    evidence=jvp_differs(scale=100.0),
)


class SoftmaxJvp(Function):
    @staticmethod
    def forward(x):
        return torch.softmax(x, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-1, keepdim=True))

    @staticmethod
    def jvp(ctx, tangent):
        (y,) = ctx.saved_tensors
        return y * tangent - y * tangent.mean(-1, keepdim=True)


CASES.add(
    SoftmaxJvp,
    lambda: (double(3, 4),),
    fault="wrong-jvp",
    where="The tangent is centred by its plain mean instead of the weighted one.",
    reference=lambda x: torch.softmax(x, -1),
    evidence=jvp_differs(),
)

# ---- vmap ----


class ScaleVmap(Function):
    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x

    @staticmethod
    def vmap(info, in_dims, x, w):
        return ScaleVmap.apply(x, w), 0


CASES.add(
    ScaleVmap,
    lambda: (normal(3, 3), normal(3, 3, seed=1)),
    fault="wrong-vmap",
    where="The rule ignores where the batch dimensions are.",
    reference=torch.mul,
    evidence=vmap_differs(lambda: (normal(3, 3, 3), normal(3, 3, 3, seed=1)), (0, 2)),
)


class SumVmap(Function):
    @staticmethod
    def forward(x):
        return x.sum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.shape)

    @staticmethod
    def vmap(info, in_dims, x):
        return x.sum(0), 0


CASES.add(
    SumVmap,
    lambda: (normal(4, 3),),
    fault="wrong-vmap",
    where="The rule sums over the batch instead of over the first dimension of each sample.",
    reference=lambda x: x.sum(0),
    evidence=vmap_differs(lambda: (normal(2, 4, 3),)),
)


class MatVmap(Function):
    @staticmethod
    def forward(a, b):
        return a @ b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.mT, a.mT @ grad

    @staticmethod
    def vmap(info, in_dims, a, b):
        a = a if in_dims[0] is None else a.movedim(in_dims[0], 0)
        b = b if in_dims[1] is None else b.movedim(in_dims[1], 0)
        return MatVmap.apply(a[0] if in_dims[1] is None and a.dim() == 3 else a, b), 0


CASES.add(
    MatVmap,
    lambda: (double(3, 3), double(3, 3, seed=1)),
    fault="wrong-vmap",
    where="With an unbatched second factor only the first sample is used.",
    reference=torch.matmul,
    evidence=vmap_differs(lambda: (double(2, 3, 3), double(3, 3, seed=1)), (0, None)),
)


class CumulativeVmap(Function):
    @staticmethod
    def forward(x):
        return x.cumsum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def vmap(info, in_dims, x):
        return CumulativeVmap.apply(x), in_dims[0]


CASES.add(
    CumulativeVmap,
    lambda: (normal(2, 4),),
    fault="wrong-vmap",
    where="When the batch is the last dimension the sum runs over it.",
    reference=lambda x: x.cumsum(-1),
    evidence=vmap_differs(lambda: (normal(2, 4, 3),), 2),
)

# ---- torch.func ----


class ClaimsVmap(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.atan()

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.largest = float(x.detach().abs().max())
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if ctx.largest == 0:
            return grad
        return grad / (1 + x * x)


CASES.add(
    ClaimsVmap,
    lambda: (normal(5),),
    fault="refused-by-func",
    where="generate_vmap_rule is set, and setup_context reads a number, which vmap refuses.",
    reference=torch.atan,
    evidence=vmap_differs(lambda: (normal(3, 5),)),
    severity="fragile",
    cites="mamba#239",
)


class SetupMutates(Function):
    @staticmethod
    def forward(x):
        y = x.erf()
        SetupMutates.slope = 1.1283791670955126 * torch.exp(-x * x)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(SetupMutates.slope)

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope


def fails_under_func(call, case):
    """The gradient of torch.func is not the reference's, or it fails."""
    x = case.inputs()[0].detach()
    try:
        got = torch.func.jacrev(torch.func.grad(lambda t: call(t).sum()))(x)
    except Exception:
        return True
    want = torch.func.jacrev(torch.func.grad(lambda t: case.reference(t).sum()))(x)
    return not torch.allclose(got, want)


CASES.add(
    SetupMutates,
    lambda: (double(5),),
    fault="refused-by-func",
    where="An intermediate is handed from forward to setup_context past the arguments, so nested "
    "transforms lose its derivative.",
    reference=torch.erf,
    evidence=fails_under_func,
)


class WrongOutDims(Function):
    @staticmethod
    def forward(x):
        return x.sin(), x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad, grad_sum):
        (x,) = ctx.saved_tensors
        return grad * x.cos() + grad_sum

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return (x.sin(), x.flatten(1).sum(1)), (0, None)


CASES.add(
    WrongOutDims,
    lambda: (normal(4),),
    fault="wrong-vmap",
    where="The rule says that the second output has no batch dimension.",
    reference=lambda x: (x.sin(), x.sum()),
    evidence=vmap_differs(lambda: (normal(3, 4),)),
)

# ---- torch.compile ----


class BakedSize(Function):
    size = None

    @staticmethod
    def forward(ctx, x):
        ctx.n = BakedSize.remember(x.shape[0])
        return x.mean(0)

    @staticmethod
    def remember(n):
        if BakedSize.size is None:
            BakedSize.size = n
        return BakedSize.size

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.n, *grad.shape) / ctx.n


def second_size(call, case):
    """A call with more rows follows one with few."""
    call(*case.inputs())
    x = normal(7, 3)
    try:
        (got,) = torch.autograd.grad(call(x).sum(), x)
    except Exception:
        return True
    return not torch.allclose(got, torch.full_like(got, 1 / 7))


CASES.add(
    BakedSize,
    lambda: (normal(4, 3),),
    fault="baked-size",
    where="The number of rows of the first call is used in all later ones.",
    reference=lambda x: x.mean(0),
    evidence=second_size,
    severity="fragile",
)


class EagerOnly(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if torch.compiler.is_compiling():
            return x * grad
        return 2 * x * grad


CASES.add(
    EagerOnly,
    lambda: (normal(6),),
    fault="wrong-under-compile",
    where="The branch for compiled code lacks a factor of two.",
    reference=torch.square,
    evidence=compile_differs(),
)


class TracedForward(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x) if not torch.compiler.is_compiling() else x / (1 + x.abs())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


CASES.add(
    TracedForward,
    lambda: (double(5),),
    fault="wrong-under-compile",
    where="Compiled code uses an approximation in forward and keeps the exact slope.",
    reference=torch.tanh,
    evidence=compile_differs(),
)

# ---- autocast ----


class AutocastMatmul(Function):
    @staticmethod
    def forward(ctx, x, w):
        out = x @ w
        ctx.save_for_backward(x, w.to(out.dtype))
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return torch.mm(grad, w.t()), torch.mm(x.t(), grad)


CASES.add(
    AutocastMatmul,
    lambda: (normal(3, 4), normal(4, 5, seed=1)),
    fault="autocast",
    where="Under autocast forward runs in bfloat16 and backward multiplies two dtypes, and fails.",
    reference=torch.matmul,
    evidence=autocast_differs(),
    cites="fla#70",
    severity="fragile",
)


class GuardedMatmul(Function):
    @staticmethod
    def forward(ctx, x, w):
        scale = 0.125 if torch.is_autocast_enabled("cpu") else 1.0
        small = x * scale
        ctx.save_for_backward(small, w)
        return (small @ w) / scale

    @staticmethod
    def backward(ctx, grad):
        small, w = ctx.saved_tensors
        scale = 0.125 if torch.is_autocast_enabled("cpu") else 1.0
        grad = grad.to(w.dtype)
        return grad @ w.t(), small.t() @ grad / scale


CASES.add(
    GuardedMatmul,
    lambda: (normal(6, 4), normal(4, 5, seed=1)),
    fault="autocast",
    where="Backward does not run under autocast, so it takes another scale than forward.",
    reference=torch.matmul,
    evidence=autocast_differs(tolerance=0.1),
    cites="pytorch#87979",
)


class HalfState(Function):
    @staticmethod
    def forward(ctx, x, h):
        out = torch.matmul(h, x)
        ctx.save_for_backward(x, h)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, h = ctx.saved_tensors
        assert grad.dtype == x.dtype, "expected the dtype of the input"
        return h.t() @ grad, grad @ x.t()


CASES.add(
    HalfState,
    lambda: (normal(4, 3), normal(5, 4, seed=1)),
    fault="autocast",
    where="Under autocast the cotangent is bfloat16, and backward insists on float32.",
    reference=lambda x, h: h @ x,
    evidence=autocast_differs(),
    cites="scattermoe#17",
    severity="fragile",
)

# ---- subclasses ----


# ---- closures ----

_GAIN = torch.full((4,), 1.5, requires_grad=True)


class ClosedOverGain(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * _GAIN

    @staticmethod
    def backward(ctx, grad):
        return grad * _GAIN.detach()


def gain_untrained(call, case):
    """The closed-over parameter gets no gradient."""
    out = call(*case.inputs())
    (got,) = torch.autograd.grad(out.sum(), [_GAIN], allow_unused=True)
    return got is None


CASES.add(
    ClosedOverGain,
    lambda: (normal(3, 4),),
    fault="closure-over-tensor",
    where="A module's parameter is used in forward and never trained.",
    reference=lambda x: x * _GAIN,
    evidence=gain_untrained,
    cites="LongLive#61",
)

_TABLE = torch.linspace(0.5, 1.5, 6).requires_grad_()


class ClosedOverTable(Function):
    @staticmethod
    def forward(ctx, index, scale):
        ctx.save_for_backward(index, scale)
        return _TABLE[index] * scale

    @staticmethod
    def backward(ctx, grad):
        index, scale = ctx.saved_tensors
        return None, grad * _TABLE.detach()[index]


def table_untrained(call, case):
    """The closed-over table gets no gradient."""
    out = call(*case.inputs())
    (got,) = torch.autograd.grad(out.sum(), [_TABLE], allow_unused=True)
    return got is None


CASES.add(
    ClosedOverTable,
    lambda: (torch.tensor([0, 3, 5]), normal(3)),
    fault="closure-over-tensor",
    where="A lookup table that requires grad is read from outside.",
    reference=lambda i, s: _TABLE[i] * s,
    evidence=table_untrained,
)


class ListOfTensors(Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(*weights)
        return sum(x * w for w in weights)

    @staticmethod
    def backward(ctx, grad):
        return grad * sum(ctx.saved_tensors), None


CASES.add(
    ListOfTensors,
    lambda: (normal(4), [normal(4, seed=1), normal(4, seed=2)]),
    fault="tensors-in-containers",
    where="Tensors in a list are not seen by autograd: their gradients are lost.",
    reference=lambda x, weights: sum(x * w for w in weights),
    evidence=wrong_gradient,
    visible=True,
    cites="nni#4039",
)
