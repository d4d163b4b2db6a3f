"""Gradients that are wrong at ordinary inputs: value, sign, factor, slot, sum, term, entry."""

# ruff: noqa: D101, RUF059

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import differs, wrong_gradient

CASES = Cases()


def add(target, inputs, **facts):
    """Add a case whose gradients are wrong at its own inputs."""
    CASES.add(target, inputs, visible=True, evidence=wrong_gradient, **facts)


# ---- wrong value ----


class Softsign(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (1 + x.abs())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + x.abs())


add(
    Softsign,
    lambda: (normal(6, 5),),
    fault="wrong-value",
    where="The denominator of the gradient is not squared.",
    reference=F.softsign,
)


class HardSwish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.clamp(x + 3, 0, 6) / 6

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.clamp(x + 3, 0, 6) / 6


add(
    HardSwish,
    lambda: (double(4, 7),),
    fault="missing-term",
    where="The second term of the product rule, x times the gate's slope, is missing.",
    reference=F.hardswish,
)


class GeluTanh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + torch.tanh(inner))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        c = math.sqrt(2 / math.pi)
        t = torch.tanh(c * (x + 0.044715 * x**3))
        slope = c * (1 + 0.044715 * x**2)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)


add(
    GeluTanh,
    lambda: (normal(3, 8),),
    fault="wrong-factor",
    where="The cubic term's derivative lacks its factor of three.",
    reference=lambda x: F.gelu(x, approximate="tanh"),
)


class PinballLoss(Function):
    @staticmethod
    def forward(ctx, prediction, target):
        ctx.save_for_backward(prediction, target)
        error = target - prediction
        return torch.maximum(0.9 * error, -0.1 * error)

    @staticmethod
    def backward(ctx, grad):
        prediction, target = ctx.saved_tensors
        slope = torch.where(target > prediction, 0.9, -0.1).to(grad.dtype)
        return grad * slope, grad * slope


add(
    PinballLoss,
    lambda: (normal(9), normal(9, seed=1)),
    fault="wrong-sign",
    where="The gradient of the prediction has the target's sign.",
    reference=lambda p, t: torch.maximum(0.9 * (t - p), -0.1 * (t - p)),
)


class Sub(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a - b

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


add(
    Sub,
    lambda: (normal(4, 3), normal(4, 3, seed=1)),
    fault="wrong-sign",
    where="The gradient of the subtrahend is not negated.",
    reference=torch.sub,
)


class SigmoidFromOutput(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y)


add(
    SigmoidFromOutput,
    lambda: (double(5, 5),),
    fault="wrong-value",
    where="The formula for the output is applied to the saved input.",
    reference=torch.sigmoid,
)


class MseMean(Function):
    @staticmethod
    def forward(ctx, prediction, target):
        ctx.save_for_backward(prediction, target)
        return ((prediction - target) ** 2).mean()

    @staticmethod
    def backward(ctx, grad):
        prediction, target = ctx.saved_tensors
        slope = 2 * (prediction - target)
        return grad * slope, -grad * slope


add(
    MseMean,
    lambda: (normal(4, 6), normal(4, 6, seed=1)),
    fault="wrong-factor",
    where="The mean's division by the number of entries is missing in both gradients.",
    reference=F.mse_loss,
)


class HuberHalf(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        small = x.abs() < 1
        return torch.where(small, 0.5 * x * x, x.abs() - 0.5)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        small = x.abs() < 1
        return grad * torch.where(small, 2 * x, x.sign())


add(
    HuberHalf,
    lambda: (normal(30),),
    fault="wrong-factor",
    where="Inside the quadratic zone the gradient is twice too large.",
    reference=lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
)


class EnergyScale(Function):
    @staticmethod
    def forward(ctx, x, temperature):
        ctx.temperature = temperature
        y = torch.exp(-x / temperature)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return -grad * y * ctx.temperature, None


add(
    EnergyScale,
    lambda: (double(8), 2.5),
    fault="wrong-factor",
    where="The gradient is multiplied by the temperature where it should be divided.",
    reference=lambda x, t: torch.exp(-x / t),
)

# ---- swapped ----


class Div(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad / b
        grad_b = -grad * a / (b * b)
        return grad_b, grad_a


add(
    Div,
    lambda: (normal(4, 4), positive(4, 4, seed=1)),
    fault="swapped-gradients",
    where="The gradients of numerator and denominator are returned in each other's place.",
    reference=torch.div,
)


class Atan2(Function):
    @staticmethod
    def forward(ctx, y, x):
        ctx.save_for_backward(x, y)
        return torch.atan2(y, x)

    @staticmethod
    def backward(ctx, grad):
        y, x = ctx.saved_tensors
        d = x * x + y * y
        return grad * x / d, -grad * y / d


add(
    Atan2,
    lambda: (positive(6), positive(6, seed=1)),
    fault="swapped-gradients",
    where="Saved as (x, y) and unpacked as (y, x).",
    reference=torch.atan2,
)


class GatedBmm(Function):
    @staticmethod
    def forward(ctx, query, key):
        ctx.save_for_backward(query, key)
        return query @ key.transpose(-1, -2)

    @staticmethod
    def backward(ctx, grad):
        query, key = ctx.saved_tensors
        return grad.transpose(-1, -2) @ key, grad @ query


add(
    GatedBmm,
    lambda: (normal(2, 5, 3), normal(2, 5, 3, seed=1)),
    fault="wrong-value",
    where="The cotangent is transposed for the query's gradient instead of for the key's.",
    reference=lambda q, k: q @ k.transpose(-1, -2),
)


class Polar(Function):
    @staticmethod
    def forward(ctx, radius, angle):
        ctx.save_for_backward(radius, angle)
        return radius * torch.cos(angle), radius * torch.sin(angle)

    @staticmethod
    def backward(ctx, grad_x, grad_y):
        radius, angle = ctx.saved_tensors
        c, s = torch.cos(angle), torch.sin(angle)
        return grad_x * s + grad_y * c, radius * (grad_y * c - grad_x * s)


add(
    Polar,
    lambda: (positive(7), normal(7, seed=2)),
    fault="swapped-gradients",
    where="The radius' gradient pairs each cotangent with the other output's slope.",
    reference=lambda r, a: (r * torch.cos(a), r * torch.sin(a)),
)

# ---- reductions ----


class BiasAdd(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.mean(0)


add(
    BiasAdd,
    lambda: (normal(6, 4), normal(4, seed=1)),
    fault="mean-instead-of-sum",
    where="The bias' gradient is the mean over the batch instead of the sum.",
    reference=torch.add,
)


class ChannelScale(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale.view(1, -1, 1, 1), (grad * x).mean((0, 2, 3))


add(
    ChannelScale,
    lambda: (normal(2, 3, 4, 4), normal(3, seed=1)),
    fault="mean-instead-of-sum",
    where="The scale's gradient is averaged over batch and pixels.",
    reference=lambda x, s: x * s.view(1, -1, 1, 1),
)


class RowBias(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.sum(1)


add(
    RowBias,
    lambda: (double(5, 5), double(5, seed=1)),
    fault="wrong-dimension",
    where="The bias runs along columns and its gradient is summed over them.",
    reference=torch.add,
)


class LayerNormAffine(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        inv = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        normed = (x - mean) * inv
        ctx.save_for_backward(normed, inv, weight)
        return normed * weight + bias

    @staticmethod
    def backward(ctx, grad):
        normed, inv, weight = ctx.saved_tensors
        g = grad * weight
        dx = inv * (g - g.mean(0, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True))
        return dx, (grad * normed).sum(0), grad.sum(0)


add(
    LayerNormAffine,
    lambda: (normal(6, 6), positive(6, seed=1), normal(6, seed=2)),
    fault="wrong-dimension",
    where="One of the two means of the input's gradient is taken over the batch.",
    reference=lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
)


class SoftmaxGlobal(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum())


add(
    SoftmaxGlobal,
    lambda: (normal(4, 6),),
    fault="wrong-dimension",
    where="The inner product is summed over the whole tensor instead of over each row.",
    reference=lambda x: torch.softmax(x, -1),
)


class CrossEntropySum(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        p = torch.softmax(logits, -1)
        ctx.save_for_backward(p, labels)
        return -torch.log(p.gather(1, labels[:, None])).sum()

    @staticmethod
    def backward(ctx, grad):
        p, labels = ctx.saved_tensors
        d = p.clone()
        d[torch.arange(len(labels)), labels] -= 1
        return grad * d / len(labels), None


add(
    CrossEntropySum,
    lambda: (normal(6, 5), integers(5, 6)),
    fault="mean-instead-of-sum",
    where="Forward sums the losses, backward divides by the batch.",
    reference=lambda x, y: F.cross_entropy(x, y, reduction="sum"),
)


class ScalarScale(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        return x * alpha

    @staticmethod
    def backward(ctx, grad):
        x, alpha = ctx.saved_tensors
        return grad * alpha, (grad * x).sum(-1).mean().reshape(alpha.shape)


add(
    ScalarScale,
    lambda: (normal(4, 6), positive(1, seed=1)),
    fault="missing-reduction",
    where="The scale's gradient is summed over the last dimension only, then averaged.",
    reference=torch.mul,
)


class PRelu(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad):
        x, slope = ctx.saved_tensors
        dx = torch.where(x > 0, grad, slope * grad)
        dslope = torch.where(x > 0, 0, grad * x)
        return dx, dslope[0]


add(
    PRelu,
    lambda: (normal(5, 4), positive(4, seed=1)),
    fault="missing-reduction",
    where="Only the first row of the batch reaches the slope's gradient.",
    reference=lambda x, s: torch.where(x > 0, x, s * x),
    cites="CoLT5-attention#8",
)


class EmbeddingSum(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        out = grad.new_zeros(ctx.rows, grad.shape[-1])
        out[index] = grad
        return out, None


CASES.add(
    EmbeddingSum,
    lambda: (normal(6, 3), torch.tensor([4, 0, 2])),
    fault="repeated-index",
    where="Rows used more than once keep only the last gradient.",
    reference=lambda table, index: F.embedding(index, table),
    evidence=differs(lambda: (normal(6, 3), torch.tensor([4, 0, 4, 2]))),
    cites="cudnn-frontend#385",
)


class GatherColumns(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(1, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).scatter(1, index, grad), None


CASES.add(
    GatherColumns,
    lambda: (double(3, 5), torch.tensor([[0, 3], [1, 2], [4, 0]])),
    fault="repeated-index",
    where="scatter overwrites where scatter_add should sum.",
    reference=lambda x, i: x.gather(1, i),
    evidence=differs(lambda: (double(3, 5), torch.tensor([[0, 0], [1, 2], [4, 4]]))),
)


class IndexPut(Function):
    @staticmethod
    def forward(ctx, values, index, size):
        ctx.save_for_backward(index)
        out = values.new_zeros(size)
        return out.index_add(0, index, values)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        count = torch.bincount(index, minlength=grad.shape[0]).clamp(min=1)
        return (grad / count)[index], None, None


CASES.add(
    IndexPut,
    lambda: (normal(4), torch.tensor([2, 0, 5, 3]), 6),
    fault="repeated-index",
    where="The gradient of a repeated slot is split among its contributors.",
    reference=lambda v, i, n: v.new_zeros(n).index_add(0, i, v),
    evidence=differs(lambda: (normal(4), torch.tensor([2, 2, 5, 3]), 6)),
)

# ---- one wrong entry ----


class CumulativeSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, grad):
        out = grad.flip(-1).cumsum(-1).flip(-1)
        out[..., -1] = 0
        return out


add(
    CumulativeSum,
    lambda: (normal(3, 9),),
    fault="one-wrong-entry",
    where="The last entry of each row gets no gradient.",
    reference=lambda x: x.cumsum(-1),
)


class Laplacian(Function):
    @staticmethod
    def forward(ctx, u):
        out = torch.zeros_like(u)
        out[1:-1] = u[2:] - 2 * u[1:-1] + u[:-2]
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.zeros_like(grad)
        out[1:-1] = grad[2:] - 2 * grad[1:-1] + grad[:-2]
        return out


def laplacian(u):
    """Second difference with zero ends."""
    return F.pad(u[2:] - 2 * u[1:-1] + u[:-2], (1, 1))


add(
    Laplacian,
    lambda: (double(12),),
    fault="one-wrong-entry",
    where="The operator is treated as its own transpose, which fails next to the ends.",
    reference=laplacian,
)


class LongSquare(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = 2 * x * grad
        out.view(-1)[1023] *= -1
        return out


add(
    LongSquare,
    lambda: (normal(2000),),
    fault="one-wrong-entry",
    where="One entry of two thousand has the wrong sign.",
    reference=torch.square,
)


class TiledExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        out = grad * y
        flat = out.view(-1)
        flat[127:128] = flat[127:128] * 1.01
        return out


add(
    TiledExp,
    lambda: (normal(200),),
    fault="one-wrong-entry",
    where="One entry of two hundred is one percent too large.",
    reference=torch.exp,
)

# ---- off by one ----


class ShiftRight(Function):
    @staticmethod
    def forward(ctx, x):
        return F.pad(x, (1, 0))[..., :-1]

    @staticmethod
    def backward(ctx, grad):
        return F.pad(grad, (1, 0))[..., :-1]


add(
    ShiftRight,
    lambda: (normal(2, 7),),
    fault="off-by-one",
    where="The gradient is shifted the same way as the values instead of back.",
    reference=lambda x: F.pad(x, (1, 0))[..., :-1],
)


class CausalConv(Function):
    @staticmethod
    def forward(ctx, x, taps):
        ctx.save_for_backward(x, taps)
        k = taps.shape[0]
        padded = F.pad(x, (k - 1, 0))
        return sum(taps[i] * padded[:, i : i + x.shape[1]] for i in range(k))

    @staticmethod
    def backward(ctx, grad):
        x, taps = ctx.saved_tensors
        k, n = taps.shape[0], x.shape[1]
        padded = F.pad(grad, (0, k - 1))
        dx = sum(taps[k - 1 - i] * padded[:, i : i + n] for i in range(k))
        history = F.pad(x, (k, 0))
        dtaps = torch.stack([(grad * history[:, i : i + n]).sum() for i in range(k)])
        return dx, dtaps


def causal_conv(x, taps):
    """Convolution with the past only."""
    k = taps.shape[0]
    return F.conv1d(F.pad(x, (k - 1, 0))[:, None], taps[None, None])[:, 0]


add(
    CausalConv,
    lambda: (normal(2, 10), normal(3, seed=1)),
    fault="off-by-one",
    where="The taps' gradient reads the history one step too early.",
    reference=causal_conv,
)


class Diff(Function):
    @staticmethod
    def forward(ctx, x):
        return x[1:] - x[:-1]

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_zeros(grad.shape[0] + 1)
        out[:-1] += grad
        out[1:] -= grad
        return out


add(
    Diff,
    lambda: (double(9),),
    fault="wrong-sign",
    where="Both halves of the adjoint of the difference have the other's sign.",
    reference=torch.diff,
)

# ---- silently cut ----


class RmsNormDetached(Function):
    @staticmethod
    def forward(ctx, x, weight):
        inv = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, inv)
        return x * inv * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, inv = ctx.saved_tensors
        return grad * weight * inv, (grad * x * inv).sum(0)


add(
    RmsNormDetached,
    lambda: (normal(4, 8), positive(8, seed=1)),
    fault="silently-cut",
    where="The path from the input through the norm is missing.",
    reference=lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
)


class NormalisedLinearAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        state = k.transpose(-1, -2) @ v
        total = k.sum(-2, keepdim=True)
        norm = (q * total).sum(-1, keepdim=True)
        out = q @ state / norm
        ctx.save_for_backward(q, k, v, out, norm, total)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, norm, total = ctx.saved_tensors
        g = grad / norm
        dnorm = -(g * out).sum(-1, keepdim=True)
        dq = g @ (v.transpose(-1, -2) @ k) + dnorm * total
        dstate = q.transpose(-1, -2) @ g
        return dq, v @ dstate.transpose(-1, -2), k @ dstate


add(
    NormalisedLinearAttention,
    lambda: (positive(2, 5, 3), positive(2, 5, 3, seed=1), normal(2, 5, 4, seed=2)),
    fault="silently-cut",
    where="The keys' gradient lacks the path through the normaliser.",
    reference=lambda q, k, v: (
        q @ (k.transpose(-1, -2) @ v) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
    ),
    cites="fla#875",
)


class RotaryBare(Function):
    @staticmethod
    def forward(ctx, q, k, angle):
        c, s = torch.cos(angle), torch.sin(angle)
        ctx.save_for_backward(c, s)

        def turn(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * c - b * s, a * s + b * c], -1)

        return turn(q), turn(k)

    @staticmethod
    def backward(ctx, grad_q, grad_k):
        c, s = ctx.saved_tensors
        a, b = grad_q.chunk(2, -1)
        return torch.cat([a * c + b * s, b * c - a * s], -1), None, None


def rotary(q, k, angle):
    """Rotate pairs of features by an angle."""
    c, s = torch.cos(angle), torch.sin(angle)

    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, a * s + b * c], -1)

    return turn(q), turn(k)


add(
    RotaryBare,
    lambda: (normal(2, 6), normal(2, 6, seed=1), normal(2, 3, seed=2, grad=False)),
    fault="silently-cut",
    where="The keys get no gradient at all.",
    reference=rotary,
    cites="LongLive#61",
)


class DropPathTarget(Function):
    @staticmethod
    def forward(ctx, student, teacher):
        ctx.save_for_backward(student, teacher)
        return ((student - teacher) ** 2).sum()

    @staticmethod
    def backward(ctx, grad):
        student, teacher = ctx.saved_tensors
        return 2 * grad * (student - teacher), None


add(
    DropPathTarget,
    lambda: (normal(3, 4), normal(3, 4, seed=1)),
    fault="silently-cut",
    where="The second input requires grad, and its gradient is None.",
    reference=lambda s, t: ((s - t) ** 2).sum(),
)


def raw_scale(x, weight):
    """Call a kernel that knows nothing of autograd."""
    out = torch.empty_like(x)
    torch.mul(x.detach(), weight.detach(), out=out)
    return out + 0 * x


add(
    raw_scale,
    lambda: (normal(4, 5), normal(5, seed=1)),
    fault="silently-cut",
    where="The kernel runs outside autograd: the gradients are zero or absent.",
    reference=torch.mul,
    cites="LongLive#61",
)

# ---- terms of residuals and normalisations ----


class PreNorm(Function):
    @staticmethod
    def forward(ctx, x, residual):
        total = x + residual
        inv = (total.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        normed = total * inv
        ctx.save_for_backward(normed, inv)
        return normed, total

    @staticmethod
    def backward(ctx, grad, grad_total):
        normed, inv = ctx.saved_tensors
        g = grad + grad_total
        d = inv * (g - normed * (g * normed).mean(-1, keepdim=True))
        return d, d


def pre_norm(x, residual):
    """Add, then divide by the root mean square; both are returned."""
    total = x + residual
    return total * (total.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt(), total


add(
    PreNorm,
    lambda: (normal(3, 6), normal(3, 6, seed=1)),
    fault="wrong-value",
    where="The residual's cotangent is added before the norm's derivative instead of after.",
    reference=pre_norm,
    cites="quack#53",
)


class BatchNormTrain(Function):
    @staticmethod
    def forward(ctx, x):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        inv = (var + 1e-5).rsqrt()
        normed = (x - mean) * inv
        ctx.save_for_backward(normed, inv)
        return normed

    @staticmethod
    def backward(ctx, grad):
        normed, inv = ctx.saved_tensors
        return inv * (grad - grad.mean(0))


add(
    BatchNormTrain,
    lambda: (normal(8, 3),),
    fault="missing-term",
    where="The term through the variance is missing.",
    reference=lambda x: F.batch_norm(x, None, None, training=True),
)


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.logsumexp(x, -1)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.unsqueeze(-1) * torch.exp(x - x.max(-1, keepdim=True).values)


add(
    LogSumExp,
    lambda: (normal(4, 5),),
    fault="wrong-value",
    where="The weights are normalised by the maximum instead of by the sum.",
    reference=lambda x: torch.logsumexp(x, -1),
)


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, p = ctx.saved_tensors
        dv = p.transpose(-1, -2) @ grad
        dp = grad @ v.transpose(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.transpose(-1, -2) @ q, dv


add(
    Attention,
    lambda: (normal(2, 4, 6), normal(2, 5, 6, seed=1), normal(2, 5, 3, seed=2)),
    fault="wrong-factor",
    where="The keys' gradient lacks the softmax scale.",
    reference=lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
)


class SwiGluRows(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        dgate = torch.zeros_like(gate)
        dup = grad * gate * s
        rows = grad * up * s * (1 + gate * (1 - s))
        for row in rows:
            dgate[0] = row
        return dgate, dup


add(
    SwiGluRows,
    lambda: (normal(4, 6), normal(4, 6, seed=1)),
    fault="off-by-one",
    where="The row pointer never advances: every row of the gate's gradient lands in row 0.",
    reference=lambda g, u: F.silu(g) * u,
    cites="Triton-distributed#185",
)


class CausalMask(Function):
    @staticmethod
    def forward(ctx, scores):
        mask = torch.ones_like(scores, dtype=torch.bool).tril()
        y = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        grad = grad.tril(-1)
        return y * (grad - (grad * y).sum(-1, keepdim=True))


add(
    CausalMask,
    lambda: (normal(5, 5),),
    fault="off-by-one",
    where="The mask of backward leaves out the diagonal.",
    reference=lambda s: torch.softmax(
        s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), float("-inf")), -1
    ),
)


class FusedLinearLoss(Function):
    @staticmethod
    def forward(ctx, x, weight, labels):
        logits = x @ weight.t()
        p = torch.softmax(logits, -1)
        d = p.clone()
        d[torch.arange(len(labels)), labels] -= 1
        ctx.save_for_backward(d @ weight, d.t() @ x)
        return F.cross_entropy(logits, labels, reduction="none")

    @staticmethod
    def backward(ctx, grad):
        dx, dweight = ctx.saved_tensors
        return dx * grad[0], dweight * grad[0], None


add(
    FusedLinearLoss,
    lambda: (normal(6, 4), normal(5, 4, seed=1), integers(5, 6)),
    fault="first-entry-only",
    where="Every gradient is multiplied by the first entry of the cotangent.",
    reference=lambda x, w, y: F.cross_entropy(x @ w.t(), y, reduction="none"),
    cites="Liger#1298",
)


class DeformBias(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = torch.nn.grad.conv2d_input(x.shape, weight, grad, padding=1)
        dw = torch.nn.grad.conv2d_weight(x, weight.shape, grad, padding=1)
        return dx, dw, grad.sum((2, 3)).mean(0)


add(
    DeformBias,
    lambda: (normal(3, 2, 5, 5), normal(4, 2, 3, 3, seed=1), normal(4, seed=2)),
    fault="mean-instead-of-sum",
    where="The bias' gradient is averaged over the batch.",
    reference=lambda x, w, b: F.conv2d(x, w, b, padding=1),
    cites="mmcv#563",
)


class Conv1dFlip(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv1d(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = F.conv1d(F.pad(grad, (2, 2)), weight.transpose(0, 1))
        dw = torch.nn.grad.conv1d_weight(x, weight.shape, grad)
        return dx, dw


add(
    Conv1dFlip,
    lambda: (normal(2, 3, 9), normal(4, 3, 3, seed=1)),
    fault="wrong-value",
    where="The kernel is not flipped for the input's gradient.",
    reference=F.conv1d,
)


class LeapfrogStep(Function):
    @staticmethod
    def forward(ctx, position, momentum, step):
        ctx.save_for_backward(position)
        ctx.step = step
        half = momentum - 0.5 * step * torch.sin(position)
        moved = position + step * half
        ctx.moved = moved.detach()
        return moved, half - 0.5 * step * torch.sin(moved)

    @staticmethod
    def backward(ctx, grad_position, grad_momentum):
        (position,) = ctx.saved_tensors
        h = ctx.step
        g = grad_position - 0.5 * h * torch.cos(ctx.moved) * grad_momentum
        dhalf = grad_momentum + h * g
        return g, dhalf, None


def leapfrog(position, momentum, step):
    """One step of a pendulum."""
    half = momentum - 0.5 * step * torch.sin(position)
    moved = position + step * half
    return moved, half - 0.5 * step * torch.sin(moved)


add(
    LeapfrogStep,
    lambda: (double(5), double(5, seed=1), 0.1),
    fault="missing-term",
    where="The position's gradient lacks the path through the half step.",
    reference=leapfrog,
)


class LinearScan(Function):
    @staticmethod
    def forward(ctx, a, b):
        h = torch.zeros_like(b[0])
        states = []
        for t in range(len(b)):
            h = a[t] * h + b[t]
            states.append(h)
        out = torch.stack(states)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        a, out = ctx.saved_tensors
        carry = torch.zeros_like(grad[0])
        da, db = torch.zeros_like(a), torch.zeros_like(grad)
        for t in reversed(range(len(grad))):
            carry = carry + grad[t]
            db[t] = carry
            da[t] = carry * out[t]
            carry = carry * a[t]
        return da, db


def linear_scan(a, b):
    """First-order recurrence."""
    h, states = torch.zeros_like(b[0]), []
    for t in range(len(b)):
        h = a[t] * h + b[t]
        states.append(h)
    return torch.stack(states)


add(
    LinearScan,
    lambda: (positive(6, 3), normal(6, 3, seed=1)),
    fault="off-by-one",
    where="The decay's gradient uses the state after the step instead of the one before.",
    reference=linear_scan,
    cites="mamba#537",
)


class CosineSimilarity(Function):
    @staticmethod
    def forward(ctx, a, b):
        na, nb = a.norm(dim=-1), b.norm(dim=-1)
        out = (a * b).sum(-1) / (na * nb)
        ctx.save_for_backward(a, b, na, nb, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        a, b, na, nb, out = ctx.saved_tensors
        g = grad[:, None]
        da = g * (b / (na * nb)[:, None] - out[:, None] * a / (na**2)[:, None])
        db = g * (a / (na * nb)[:, None] - out[:, None] * b / (na**2)[:, None])
        return da, db


add(
    CosineSimilarity,
    lambda: (normal(4, 5), normal(4, 5, seed=1)),
    fault="wrong-value",
    where="The second input's gradient divides by the first input's norm.",
    reference=lambda a, b: (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)),
)


class TinyBias(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y + 5e-4)


add(
    TinyBias,
    lambda: (double(20),),
    fault="small-error",
    where="The slope is too large by 0.0005 everywhere.",
    reference=torch.tanh,
)


class CubeApproximate(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2.999 * x * x


add(
    CubeApproximate,
    lambda: (double(10),),
    fault="small-error",
    where="The factor is 2.999 instead of 3.",
    reference=lambda x: x**3,
)
