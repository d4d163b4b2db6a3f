"""The contract with the engine: marks, undefined cotangents, what is returned, what is needed."""

# ruff: noqa: D101

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import (
    accepts,
    differs,
    does_not_require_grad,
    fails,
    needs_grad_but_cannot,
    needs_repair,
    only,
    works_for_nobody,
    wrong_gradient,
)

CASES = Cases()


def frozen(make, *places):
    """Inputs of which some do not require grad."""

    def made():
        inputs = list(make())
        for place in places:
            inputs[place] = inputs[place].detach()
        return tuple(inputs)

    return made


# ---- non-differentiable outputs ----


class NearestNeighbours(Function):
    @staticmethod
    def forward(ctx, points, queries):
        distance = torch.cdist(queries, points)
        near, index = distance.min(-1)
        ctx.save_for_backward(points, queries, index, near)
        return near, index.to(points.dtype)

    @staticmethod
    def backward(ctx, grad, _):
        points, queries, index, near = ctx.saved_tensors
        way = (queries - points[index]) / near[:, None] * grad[:, None]
        return torch.zeros_like(points).index_add(0, index, -way), way


def nearest(points, queries):
    """Distance to the nearest point, and which it is."""
    near, index = torch.cdist(queries, points).min(-1)
    return near, index.to(points.dtype)


CASES.add(
    NearestNeighbours,
    lambda: (normal(6, 3), normal(4, 3, seed=1)),
    fault="non-differentiable-unmarked",
    where="The index output says that it requires grad.",
    reference=nearest,
    evidence=needs_grad_but_cannot(1),
    severity="fragile",
    cites="mmdetection3d#377",
)


class RoundedPair(Function):
    @staticmethod
    def forward(ctx, x):
        whole = x.long()
        return x - whole, whole.to(x.dtype)

    @staticmethod
    def backward(ctx, grad, _):
        return grad


CASES.add(
    RoundedPair,
    lambda: (double(6),),
    fault="non-differentiable-unmarked",
    where="The integer part went through int64, has no gradient and is not marked.",
    reference=lambda x: (x.frac(), x.trunc().detach()),
    evidence=needs_grad_but_cannot(1),
    severity="fragile",
)


class KnnQuery(Function):
    @staticmethod
    def forward(ctx, points, k):
        return torch.cdist(points, points).topk(k, largest=False).indices.to(points.dtype)


CASES.add(
    KnnQuery,
    lambda: (normal(6, 3), 2),
    fault="no-backward",
    where="There is no backward, and the output requires grad.",
    reference=lambda p, k: torch.cdist(p, p).topk(k, largest=False).indices.to(p.dtype),
    evidence=fails(),
    visible=True,
    cites="Pointcept#343",
)


class MarkedOutput(Function):
    @staticmethod
    def forward(ctx, x):
        values, index = x.sort(-1)
        ctx.mark_non_differentiable(values)
        ctx.save_for_backward(index)
        return values

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, index, grad)


CASES.add(
    MarkedOutput,
    lambda: (normal(3, 5),),
    fault="marked-non-differentiable",
    where="The values are marked non-differentiable, and training stops in silence.",
    reference=lambda x: x.sort(-1).values,
    evidence=does_not_require_grad(),
    visible=True,
)


class TopKMarked(Function):
    @staticmethod
    def forward(ctx, x, k):
        values, index = x.topk(k)
        ctx.mark_non_differentiable(index)
        weights = torch.softmax(values, -1)
        ctx.mark_non_differentiable(weights, index)
        ctx.save_for_backward(weights, index)
        ctx.n = x.shape[-1]
        return values, weights, index

    @staticmethod
    def backward(ctx, grad, grad_weights, _index):
        weights, index = ctx.saved_tensors
        inner = (grad_weights * weights).sum(-1, keepdim=True)
        total = grad + weights * (grad_weights - inner)
        return total.new_zeros(*total.shape[:-1], ctx.n).scatter(-1, index, total), None


def top_k(x, k):
    """The largest entries, their softmax, and where they are."""
    values, index = x.topk(k)
    return values, torch.softmax(values, -1), index


CASES.add(
    TopKMarked,
    lambda: (normal(3, 6), 2),
    fault="marked-non-differentiable",
    where="The routing weights are marked beside the indices: their cotangent never comes.",
    reference=top_k,
    evidence=does_not_require_grad(1),
    visible=True,
)

# ---- undefined cotangents ----


class SinCosLazy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() - grad_cos * x.sin()


CASES.add(
    SinCosLazy,
    lambda: (normal(4),),
    fault="undefined-cotangent",
    where="When one output is unused its cotangent is None, and backward fails.",
    reference=lambda x: (x.sin(), x.cos()),
    evidence=only(0),
    cites="pytorch#173123",
    severity="fragile",
)


class MeanStdLazy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.mean(-1), x.var(-1, unbiased=False)

    @staticmethod
    def backward(ctx, grad_mean, grad_var):
        (x,) = ctx.saved_tensors
        if grad_mean is None or grad_var is None:
            return None
        n = x.shape[-1]
        centred = x - x.mean(-1, keepdim=True)
        return (grad_mean[:, None] + 2 * grad_var[:, None] * centred) / n


CASES.add(
    MeanStdLazy,
    lambda: (double(3, 5),),
    fault="undefined-cotangent",
    where="When one output is unused the other's gradient is dropped too.",
    reference=lambda x: (x.mean(-1), x.var(-1, unbiased=False)),
    evidence=only(1),
)


class StateAndOutput(Function):
    @staticmethod
    def forward(ctx, x, state):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, state)
        new = torch.tanh(x + state)
        return new * x, new

    @staticmethod
    def backward(ctx, grad, grad_state):
        x, state = ctx.saved_tensors
        new = torch.tanh(x + state)
        total = grad * x
        if grad_state is not None:
            total = total + grad_state
        d = total * (1 - new * new)
        return d + grad * new, d


def state_and_output(x, state):
    """One step of a small recurrent cell."""
    new = torch.tanh(x + state)
    return new * x, new


CASES.add(
    StateAndOutput,
    lambda: (normal(5), normal(5, seed=1)),
    fault="undefined-cotangent",
    where="Only the state's cotangent may be None: when the output is unused backward fails.",
    reference=state_and_output,
    evidence=only(1),
    cites="Liger#1068",
    severity="fragile",
)


class AuxiliaryLoss(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * 2, x.square().sum()

    @staticmethod
    def backward(ctx, grad, grad_loss):
        (x,) = ctx.saved_tensors
        out = grad * 2 if grad is not None else torch.zeros_like(x)
        if grad_loss is None:
            grad_loss = torch.ones((), dtype=x.dtype)
        return out + 2 * x * grad_loss


CASES.add(
    AuxiliaryLoss,
    lambda: (normal(6),),
    fault="undefined-cotangent",
    where="An unused loss counts with a cotangent of one.",
    reference=lambda x: (x * 2, x.square().sum()),
    evidence=only(0),
)

# ---- number, shape and dtype of gradients ----


class ForgottenNone(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return F.elu(x, alpha)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x > 0, 1.0, ctx.alpha * x.exp())


CASES.add(
    ForgottenNone,
    lambda: (normal(5), 1.5),
    fault="number-of-gradients",
    where="Two inputs, one gradient.",
    reference=F.elu,
    evidence=wrong_gradient,
    visible=True,
    cites="neural_renderer#54",
)


class OneTooMany(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad, grad


CASES.add(
    OneTooMany,
    lambda: (double(4),),
    fault="number-of-gradients",
    where="One input, two gradients.",
    reference=torch.square,
    evidence=wrong_gradient,
    visible=True,
)


class WrongOrderOfNone(Function):
    @staticmethod
    def forward(ctx, index, table):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_add(0, index, grad), None


CASES.add(
    WrongOrderOfNone,
    lambda: (torch.tensor([0, 2, 2]), normal(4, 3)),
    fault="number-of-gradients",
    where="The gradient stands in the index' place and the table gets None.",
    reference=lambda i, t: t[i],
    evidence=wrong_gradient,
    visible=True,
)


class TransposedGradient(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w, x.t() @ grad


CASES.add(
    TransposedGradient,
    lambda: (normal(5, 3), normal(3, 3, seed=1)),
    fault="shape-of-gradient",
    where="The weight's gradient is transposed, which only a square weight hides.",
    reference=lambda x, w: x @ w.t(),
    evidence=wrong_gradient,
    visible=True,
)


class FlatGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.flatten(1).square().sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x.flatten(1) * grad[:, None]


CASES.add(
    FlatGradient,
    lambda: (normal(2, 6),),
    fault="shape-of-gradient",
    where="For an image the gradient comes back flat, and the engine refuses it.",
    reference=lambda x: x.flatten(1).square().sum(-1),
    evidence=differs(lambda: (normal(2, 3, 4),)),
    severity="fragile",
)


class UnreducedBias(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


CASES.add(
    UnreducedBias,
    lambda: (normal(5, 4), normal(4, seed=1)),
    fault="repaired-by-engine",
    where="The bias' gradient is not reduced: the engine sums it.",
    reference=torch.add,
    evidence=needs_repair(),
    severity="wasteful",
    cites="Primus-Turbo#329",
)


class FloatGradient(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return (grad * y * (1 - y)).float()


CASES.add(
    FloatGradient,
    lambda: (normal(6),),
    fault="dtype-of-gradient",
    where="The gradient is float32 for any input; the engine casts it back without its digits.",
    reference=torch.sigmoid,
    evidence=needs_repair(lambda: (double(6),)),
)


class DepthwiseCast(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.conv1d(x, w[:, None], groups=len(w))

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g = grad.to(torch.bfloat16)
        k = w.shape[1]
        padded = F.pad(g, (k - 1, k - 1))
        dx = F.conv1d(padded, w.flip(-1)[:, None].to(g.dtype), groups=len(w))
        windows = x.unfold(-1, k, 1)
        return dx, torch.einsum("bcn,bcnk->ck", grad, windows)


CASES.add(
    DepthwiseCast,
    lambda: (normal(2, 3, 8), normal(3, 3, seed=1)),
    fault="dtype-of-gradient",
    where="The input's gradient is bfloat16 for a float32 input.",
    reference=lambda x, w: F.conv1d(x, w[:, None], groups=len(w)),
    evidence=needs_repair(),
    visible=True,
    cites="rf-detr#1076",
)


class RealOfComplex(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.fft.fft(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.fft.ifft(grad) * grad.shape[-1]


CASES.add(
    RealOfComplex,
    lambda: (double(8),),
    fault="dtype-of-gradient",
    where="The gradient of a real input is complex, and the engine refuses it.",
    reference=torch.fft.fft,
    evidence=wrong_gradient,
    visible=True,
)


class ScalarKeepsRank(Function):
    @staticmethod
    def forward(ctx, x, temperature):
        ctx.save_for_backward(x, temperature)
        return x / temperature

    @staticmethod
    def backward(ctx, grad):
        x, t = ctx.saved_tensors
        return grad / t, -grad * x / (t * t)


CASES.add(
    ScalarKeepsRank,
    lambda: (normal(4, 4), torch.tensor(2.0).requires_grad_()),
    fault="repaired-by-engine",
    where="The temperature's gradient has the input's shape: the engine sums it.",
    reference=torch.div,
    evidence=needs_repair(),
    severity="wasteful",
)

# ---- needs_input_grad ----


class LinearAll(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


CASES.add(
    LinearAll,
    lambda: (normal(6, 4), normal(5, 4, seed=1)),
    fault="needs-ignored",
    where="A frozen weight's gradient is computed all the same.",
    reference=F.linear,
    evidence=works_for_nobody(1),
    severity="wasteful",
    cites="apex#1517",
)


class ConvAll(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = torch.nn.grad.conv2d_input(x.shape, weight, grad, padding=1)
        dw = torch.nn.grad.conv2d_weight(x, weight.shape, grad, padding=1)
        return dx, dw


CASES.add(
    ConvAll,
    lambda: (normal(2, 3, 6, 6), normal(4, 3, 3, 3, seed=1)),
    fault="needs-ignored",
    where="Both convolutions run, whoever asks.",
    reference=lambda x, w: F.conv2d(x, w, padding=1),
    evidence=works_for_nobody(1),
    severity="wasteful",
    cites="Liger#1068",
)


class LossHead(Function):
    @staticmethod
    def forward(ctx, x, weight, labels):
        logits = x @ weight.t()
        d = torch.softmax(logits, -1) - F.one_hot(labels, len(weight))
        d = d / len(labels)
        ctx.save_for_backward(d @ weight, d.t() @ x)
        return F.cross_entropy(logits, labels)

    @staticmethod
    def backward(ctx, grad):
        dx, dweight = ctx.saved_tensors
        return grad * dx, grad * dweight, None


CASES.add(
    LossHead,
    lambda: (normal(6, 4), normal(5, 4, seed=1), integers(5, 6)),
    fault="needs-ignored",
    where="Forward computes and keeps the gradient of a frozen head.",
    reference=lambda x, w, y: F.cross_entropy(x @ w.t(), y),
    evidence=works_for_nobody(1),
    severity="wasteful",
    cites="Liger#1441",
)


class NeedsShifted(Function):
    @staticmethod
    def forward(ctx, index, x, w):
        ctx.save_for_backward(index, x, w)
        return x[index] * w

    @staticmethod
    def backward(ctx, grad):
        index, x, w = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[1]:
            dx = torch.zeros_like(x).index_add(0, index, grad * w)
        if ctx.needs_input_grad[1]:
            dw = (grad * x[index]).sum(0)
        return None, dx, dw


CASES.add(
    NeedsShifted,
    lambda: (torch.tensor([0, 2, 1]), normal(3, 4), normal(4, seed=1)),
    fault="needs-misread",
    where="The weight's gradient depends on whether the input needs one.",
    reference=lambda i, x, w: x[i] * w,
    evidence=differs(frozen(lambda: (torch.tensor([0, 2, 1]), normal(3, 4), normal(4, seed=1)), 1)),
)


class FrozenCrash(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.buffer = torch.zeros_like(weight) if weight.requires_grad else None
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dw = ctx.buffer + (grad * x).sum(0)
        return grad * weight, dw


CASES.add(
    FrozenCrash,
    lambda: (normal(3, 4), normal(4, seed=1)),
    fault="needs-misread",
    where="With a frozen weight the buffer is None, and backward fails.",
    reference=torch.mul,
    evidence=fails(frozen(lambda: (normal(3, 4), normal(4, seed=1)), 1)),
    cites="ms-swift#9790",
    severity="fragile",
)


class NeedsInForward(Function):
    @staticmethod
    def forward(ctx, x, y):
        if x.requires_grad and y.requires_grad:
            ctx.save_for_backward(x, y)
        elif x.requires_grad:
            ctx.save_for_backward(y)
        else:
            ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        if len(ctx.saved_tensors) == 2:
            x, y = ctx.saved_tensors
            return grad * y, grad * x
        (kept,) = ctx.saved_tensors
        return grad * kept, None


CASES.add(
    NeedsInForward,
    lambda: (normal(5), normal(5, seed=1)),
    fault="needs-misread",
    where="When only the second input needs a gradient it gets None.",
    reference=torch.mul,
    evidence=differs(frozen(lambda: (normal(5), normal(5, seed=1)), 0)),
)


class MinimalSave(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, w)
        return torch.addcmul(b, x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x if ctx.needs_input_grad[1] else None, grad


CASES.add(
    MinimalSave,
    lambda: (normal(4), normal(4, seed=1), normal(4, seed=2)),
    fault="needs-misread",
    where="Whether x is saved hangs on the bias: with a frozen bias backward fails.",
    reference=lambda x, w, b: torch.addcmul(b, x, w),
    evidence=fails(frozen(lambda: (normal(4), normal(4, seed=1), normal(4, seed=2)), 2)),
    severity="fragile",
)


class NothingRequired(Function):
    @staticmethod
    def forward(ctx, x, weight):
        out = x @ weight
        if x.requires_grad or weight.requires_grad:
            grad_buffer = torch.zeros_like(weight)
        ctx.buffer = grad_buffer
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), ctx.buffer + x.t() @ grad


CASES.add(
    NothingRequired,
    lambda: (normal(3, 4), normal(4, 2, seed=1)),
    fault="no-gradient-required",
    where="When no input requires grad forward fails on an unset buffer.",
    reference=torch.matmul,
    evidence=fails(lambda: (normal(3, 4, grad=False), normal(4, 2, grad=False))),
    cites="Liger#930",
    severity="fragile",
)


class RequiresFirst(Function):
    @staticmethod
    def forward(ctx, x, target):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(x.requires_grad)
            loss = F.smooth_l1_loss(leaf, target.detach())
        ctx.save_for_backward(torch.autograd.grad(loss, leaf)[0])
        return loss.detach()

    @staticmethod
    def backward(ctx, grad):
        (d,) = ctx.saved_tensors
        return grad * d, None


CASES.add(
    RequiresFirst,
    lambda: (normal(5), normal(5, seed=1, grad=False)),
    fault="no-gradient-required",
    where="Forward differentiates at once, which fails when nothing requires grad.",
    reference=F.smooth_l1_loss,
    evidence=fails(lambda: (normal(5, grad=False), normal(5, seed=1, grad=False))),
    severity="fragile",
)

# ---- one tensor in two slots ----


class CrossProduct(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.same = a is b
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        if ctx.same:
            return grad * b, None
        return grad * b, grad * a


def twin():
    """One tensor in both slots."""
    x = normal(5)
    return x, x


CASES.add(
    CrossProduct,
    lambda: (normal(5), normal(5, seed=1)),
    fault="same-tensor-twice",
    where="When one tensor fills both slots half of its gradient is lost.",
    reference=torch.mul,
    evidence=differs(twin),
    cites="pytorch#181146",
)


class GramCache(Function):
    @staticmethod
    def forward(ctx, a, b):
        kept = {id(a): a, id(b): b}
        ctx.count = len(kept)
        ctx.save_for_backward(*kept.values())
        return (a * b).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        a, b = saved[0], saved[-1]
        g = grad[..., None]
        return g * b / (1 if ctx.count == 2 else 2), g * a / (1 if ctx.count == 2 else 2)


CASES.add(
    GramCache,
    lambda: (normal(3, 4), normal(3, 4, seed=1)),
    fault="same-tensor-twice",
    where="With the same tensor twice each gradient is halved, as if autograd did not add them.",
    reference=lambda a, b: (a * b).sum(-1),
    evidence=differs(lambda: (lambda x: (x, x))(normal(3, 4))),
)

# ---- bad input ----


class ZipTruncates(Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights)
        out = torch.zeros_like(x[0])
        for row, weight in zip(x, weights, strict=False):
            out = out + row * weight
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weights = ctx.saved_tensors
        n = min(len(x), len(weights))
        dx = torch.zeros_like(x)
        dx[:n] = weights[:n, None] * grad
        dw = torch.zeros_like(weights)
        dw[:n] = (x[:n] * grad).sum(-1)
        return dx, dw


CASES.add(
    ZipTruncates,
    lambda: (normal(4, 3), normal(4, seed=1)),
    fault="bad-input-accepted",
    where="Weights of another length than the rows are cut off without a word.",
    reference=lambda x, w: torch.einsum("nd,n->d", x, w),
    evidence=accepts(lambda: (normal(4, 3), normal(3, seed=1))),
    severity="fragile",
)


class ReinterpretReshape(Function):
    @staticmethod
    def forward(ctx, x, y):
        y = y.reshape(x.shape)
        ctx.save_for_backward(x, y)
        return (x * y).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad[:, None] * y, (grad[:, None] * x).reshape(x.shape)


CASES.add(
    ReinterpretReshape,
    lambda: (normal(3, 4), normal(3, 4, seed=1)),
    fault="bad-input-accepted",
    where="A second input of transposed shape is reinterpreted, and fails only in backward.",
    reference=lambda x, y: torch.einsum("nd,nd->n", x, y),
    evidence=lambda call, case: _forward_accepts(call, (normal(3, 4), normal(4, 3, seed=1))),
    severity="fragile",
)


class WrapsLabels(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        labels = labels % logits.shape[-1]
        p = torch.log_softmax(logits, -1)
        ctx.save_for_backward(p, labels)
        return -p.gather(1, labels[:, None])[:, 0]

    @staticmethod
    def backward(ctx, grad):
        p, labels = ctx.saved_tensors
        return grad[:, None] * (p.exp() - F.one_hot(labels, p.shape[-1])), None


CASES.add(
    WrapsLabels,
    lambda: (normal(4, 3), integers(3, 4)),
    fault="bad-input-accepted",
    where="Labels out of range are wrapped around instead of refused.",
    reference=lambda x, y: F.cross_entropy(x, y, reduction="none"),
    evidence=accepts(lambda: (normal(4, 3), torch.tensor([0, 1, 2, 5]))),
    severity="fragile",
)


def _forward_accepts(call, inputs):
    try:
        call(*inputs)
    except Exception:
        return False
    return True


class PositiveOnly(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=1e-3).log()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / x.clamp(min=1e-3)


CASES.add(
    PositiveOnly,
    lambda: (positive(5),),
    fault="wrong-when-small",
    where="Below the clamp the gradient is a thousand instead of zero.",
    reference=lambda x: x.clamp(min=1e-3).log(),
    evidence=differs(lambda: (torch.tensor([-1.0, 1e-5, 2.0]).requires_grad_(),)),
)
