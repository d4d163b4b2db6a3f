"""Inputs, cotangents, saved tensors and `.grad` fields that are changed without a word."""

# ruff: noqa: D101

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import (
    aliases_input,
    aliases_output,
    differs,
    either,
    marked_dirty_but_fresh,
    mutates_cotangents,
    mutates_inputs,
    mutates_outputs,
    refuses_edit,
    touches_grad_field,
    wrong_after_edit,
    wrong_twice,
)

CASES = Cases()

# ---- inputs ----


class CrossEntropyInPlace(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        loss = F.cross_entropy(logits, labels)
        p = torch.softmax(logits.detach(), -1)
        p[torch.arange(len(labels)), labels] -= 1
        logits.data.copy_(p / len(labels))
        ctx.save_for_backward(logits)
        return loss

    @staticmethod
    def backward(ctx, grad):
        (d,) = ctx.saved_tensors
        return grad * d, None


CASES.add(
    CrossEntropyInPlace,
    lambda: (normal(5, 4), integers(4, 5)),
    fault="mutates-input",
    where="Forward stores the gradient into the logits, past the version counter.",
    reference=F.cross_entropy,
    evidence=mutates_inputs(),
    cites="Liger#272",
)


class NormaliseInput(Function):
    @staticmethod
    def forward(ctx, x):
        raw = x.detach().numpy()
        raw -= raw.mean(-1, keepdims=True)
        y = torch.from_numpy(raw).exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        g = grad * y
        return g - g.mean(-1, keepdim=True)


CASES.add(
    NormaliseInput,
    lambda: (normal(3, 5),),
    fault="mutates-input",
    where="Forward subtracts the mean from the caller's tensor through numpy.",
    reference=lambda x: (x - x.mean(-1, keepdim=True)).exp(),
    evidence=mutates_inputs(),
)


class SwigluInPlace(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        dgate = grad * up * s * (1 + gate * (1 - s))
        dup = grad * gate * s
        gate.data.copy_(dgate)
        up.data.copy_(dup)
        return gate.detach(), up.detach()


CASES.add(
    SwigluInPlace,
    lambda: (normal(3, 4), normal(3, 4, seed=1)),
    fault="mutates-saved",
    where="Backward writes the gradients into the saved inputs and returns them.",
    reference=lambda g, u: F.silu(g) * u,
    evidence=mutates_inputs(),
    cites="Liger#254",
)


class LogitsReuse(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        p = torch.softmax(logits, -1)
        ctx.save_for_backward(p, labels)
        return F.cross_entropy(logits, labels, reduction="none")

    @staticmethod
    def backward(ctx, grad):
        p, labels = ctx.saved_tensors
        p[torch.arange(len(labels)), labels] -= 1
        p *= grad[:, None]
        return p, None


CASES.add(
    LogitsReuse,
    lambda: (normal(5, 3), integers(3, 5)),
    fault="mutates-saved",
    where="Backward overwrites what it saved, so a second one is wrong or fails.",
    reference=lambda x, y: F.cross_entropy(x, y, reduction="none"),
    evidence=wrong_twice,
    cites="unsloth#5002",
)


class DecayState(Function):
    @staticmethod
    def forward(ctx, x, decay):
        kept = torch.exp(-decay * x)
        ctx.kept, ctx.decay = kept, decay
        return kept.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.kept.mul_(grad)
        return -ctx.kept * ctx.decay, None


CASES.add(
    DecayState,
    lambda: (double(6), 0.5),
    fault="mutates-saved",
    where="Each backward multiplies the kept tensor once more.",
    reference=lambda x, d: torch.exp(-d * x),
    evidence=wrong_twice,
)


class ReluOutput(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        mask = y.detach()
        mask.data.copy_((y > 0).to(y.dtype))
        return grad * mask


CASES.add(
    ReluOutput,
    lambda: (normal(4, 5),),
    fault="mutates-output",
    where="Backward turns the output into a mask in its own memory.",
    reference=F.relu,
    evidence=mutates_outputs,
)


class SoftmaxOutput(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        dot = (grad * y).sum(-1, keepdim=True)
        raw = y.detach().numpy()
        raw *= (grad - dot).numpy()
        return torch.from_numpy(raw)


CASES.add(
    SoftmaxOutput,
    lambda: (normal(4, 3),),
    fault="mutates-output",
    where="The output's memory becomes the gradient.",
    reference=lambda x: torch.softmax(x, -1),
    evidence=mutates_outputs,
)

# ---- cotangents ----


class ScaledSoftmax(Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = torch.softmax(x * scale, -1)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        dot = (grad * y).sum(-1, keepdim=True)
        return grad.sub_(dot).mul_(y).mul_(ctx.scale), None


CASES.add(
    ScaledSoftmax,
    lambda: (normal(3, 5), 0.5),
    fault="mutates-cotangent",
    where="Backward works in the cotangent's memory.",
    reference=lambda x, s: torch.softmax(x * s, -1),
    evidence=mutates_cotangents(),
    cites="apex#1430",
)


class MaskCotangent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        grad[~mask] = 0
        return grad


CASES.add(
    MaskCotangent,
    lambda: (double(3, 4),),
    fault="mutates-cotangent",
    where="The mask is applied to the cotangent itself.",
    reference=F.relu,
    evidence=mutates_cotangents(),
)


class TwoOutputsInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        grad_sin.data.mul_(x.cos())
        return grad_sin - grad_cos * x.sin()


CASES.add(
    TwoOutputsInPlace,
    lambda: (normal(6),),
    fault="mutates-cotangent",
    where="The first cotangent is multiplied in place, past the version counter.",
    reference=lambda x: (x.sin(), x.cos()),
    evidence=mutates_cotangents(),
    cites="apex#1587",
)


class BiasAccumulate(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, grad):
        dbias = grad[0]
        for row in grad[1:]:
            dbias += row
        return grad.clone(), dbias


CASES.add(
    BiasAccumulate,
    lambda: (normal(4, 3), normal(3, seed=1)),
    fault="mutates-cotangent",
    where="Rows are summed into the first row of the cotangent, and the input's gradient sees it.",
    reference=torch.add,
    evidence=mutates_cotangents(),
    visible=True,
)

# ---- .grad ----


class OffloadedHead(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.log_softmax(x @ weight.t(), -1)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = F.log_softmax(x @ weight.t(), -1)
        torch.autograd.backward(out, grad)
        return x.grad, weight.grad


CASES.add(
    OffloadedHead,
    lambda: (normal(3, 4), normal(5, 4, seed=1)),
    fault="touches-grad-field",
    where="An inner backward fills the weight's grad field, which is also returned.",
    reference=lambda x, w: F.log_softmax(x @ w.t(), -1),
    evidence=touches_grad_field,
    cites="unsloth-zoo#892",
)


class MainGrad(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        dw = x.t() @ grad
        if ctx.weight.grad is not None:
            ctx.weight.grad = None
        return grad @ ctx.weight.detach().t(), dw


CASES.add(
    MainGrad,
    lambda: (normal(3, 4), normal(4, 2, seed=1)),
    fault="touches-grad-field",
    where="Backward clears the weight's grad field, so earlier micro-batches are lost.",
    reference=torch.matmul,
    evidence=touches_grad_field,
)


class GradStash(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dw = (grad * x).sum(0)
        if weight.grad is None:
            weight.grad = dw
        else:
            weight.grad.add_(dw)
        return grad * weight.detach(), None


CASES.add(
    GradStash,
    lambda: (normal(3, 4), normal(4, seed=1)),
    fault="touches-grad-field",
    where="The weight's gradient is added to its field by hand: torch.autograd.grad gets none.",
    reference=torch.mul,
    evidence=differs(),
    visible=True,
)

# ---- dirty ----


class BufferUpdate(Function):
    @staticmethod
    def forward(ctx, x, running):
        running.mul_(0.9).add_(0.1 * x.mean(0))
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - x.tanh() ** 2), None


CASES.add(
    BufferUpdate,
    lambda: (normal(4, 3), torch.zeros(3)),
    fault="dirty-unmarked",
    where="The running mean is updated in place and not marked dirty.",
    reference=lambda x, r: x.tanh(),
    evidence=mutates_inputs(),
    severity="fragile",
)


class AddInPlace(Function):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


CASES.add(
    AddInPlace,
    lambda: (normal(5, grad=False), normal(5, seed=1)),
    fault="dirty-unmarked",
    where="The first input is changed and returned without mark_dirty.",
    reference=lambda x, y: x + y,
    evidence=mutates_inputs(),
)


class OverMarked(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y, x

    @staticmethod
    def backward(ctx, grad, grad_x):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y) + grad_x


CASES.add(
    OverMarked,
    lambda: (normal(4),),
    fault="dirty-over-marked",
    where="An input that is not changed is marked dirty, which fails for a leaf.",
    reference=lambda x: (x.sigmoid(), x.clone()),
    evidence=marked_dirty_but_fresh,
    visible=True,
    severity="fragile",
)


class DirtyBuffer(Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.mark_dirty(buffer)
        ctx.save_for_backward(x)
        return x.square(), buffer

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return 2 * x * grad, None


CASES.add(
    DirtyBuffer,
    lambda: (normal(4), torch.ones(4)),
    fault="dirty-over-marked",
    where="The buffer is only read, and its version moves all the same.",
    reference=lambda x, b: (x.square(), b.clone()),
    evidence=marked_dirty_but_fresh,
    severity="fragile",
)

# ---- aliases and views ----


class MaybeDropout(Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.p = p
        if p == 0:
            return x.detach()
        return x * (1 - p)

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.p), None


CASES.add(
    MaybeDropout,
    lambda: (normal(6), 0.0),
    fault="output-aliases-input",
    where="The output is the input's memory: an in-place edit of one changes the other.",
    reference=lambda x, p: x * (1 - p),
    evidence=aliases_input,
    severity="fragile",
)


class FusedLossView(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        losses = torch.zeros(2, dtype=logits.dtype)
        losses[0] = F.cross_entropy(logits, labels)
        ctx.save_for_backward(logits, labels)
        return losses[0], losses[1]

    @staticmethod
    def backward(ctx, grad, _):
        logits, labels = ctx.saved_tensors
        d = torch.softmax(logits, -1) - F.one_hot(labels, logits.shape[-1])
        return grad * d / len(labels), None


CASES.add(
    FusedLossView,
    lambda: (normal(4, 3), integers(3, 4)),
    fault="outputs-share-memory",
    where="Both outputs are entries of one tensor, so editing them in place fails.",
    reference=lambda x, y: (F.cross_entropy(x, y), F.cross_entropy(x, y) * 0),
    evidence=either(aliases_output, refuses_edit),
    severity="fragile",
    cites="unsloth#3452",
)


class RunningTotal(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = len(x)
        return x.cumsum(0)[-1]

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.count).clone()


CASES.add(
    RunningTotal,
    lambda: (normal(7),),
    fault="view-output",
    where="The total is a view into all partial sums: it cannot be edited, and they stay alive.",
    reference=lambda x: x.sum(),
    evidence=refuses_edit,
    severity="fragile",
)


class PenaltyOfTwo(Function):
    @staticmethod
    def forward(ctx, x, wanted):
        ctx.save_for_backward(x)
        ctx.wanted = wanted
        both = torch.stack([x.abs().sum(), x.square().sum()])
        return both[wanted]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (2 * x if ctx.wanted else x.sign()), None


CASES.add(
    PenaltyOfTwo,
    lambda: (double(3, 4), 1),
    fault="view-output",
    where="The penalty is an entry of a pair, so that adding to it in place fails.",
    reference=lambda x, wanted: x.square().sum() if wanted else x.abs().sum(),
    evidence=refuses_edit,
    severity="fragile",
    cites="unsloth#3452",
)


class HiddenAndSnapshot(Function):
    @staticmethod
    def forward(ctx, x, weight):
        hidden = torch.tanh(x @ weight)
        ctx.save_for_backward(x, weight, hidden)
        snapshot = hidden.data
        ctx.mark_non_differentiable(snapshot)
        return hidden, snapshot

    @staticmethod
    def backward(ctx, grad, _):
        x, weight, hidden = ctx.saved_tensors
        d = grad * (1 - hidden * hidden)
        return d @ weight.t(), x.t() @ d


CASES.add(
    HiddenAndSnapshot,
    lambda: (normal(3, 4), normal(4, 6, seed=1)),
    fault="outputs-share-memory",
    where="The snapshot for the log is the hidden state's own memory, past the version counter.",
    reference=lambda x, w: (torch.tanh(x @ w), torch.tanh(x @ w).detach().clone()),
    evidence=aliases_output,
    severity="fragile",
)


class SameTwice(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y, y.detach()

    @staticmethod
    def backward(ctx, grad, other):
        (y,) = ctx.saved_tensors
        return y * (grad + other)


CASES.add(
    SameTwice,
    lambda: (normal(4),),
    fault="outputs-share-memory",
    where="Two outputs are one piece of memory.",
    reference=lambda x: (x.exp(), x.exp()),
    evidence=aliases_output,
    severity="fragile",
)


class OutputAsGradient(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y.detach() if bool((grad == 1).all()) else grad * y


CASES.add(
    OutputAsGradient,
    lambda: (normal(3, 3),),
    fault="gradients-share-memory",
    where="For a cotangent of ones the output itself is returned: clipping it clips the output.",
    reference=torch.exp,
    evidence=lambda call, case: _returns_output(call, case),
    severity="fragile",
)


class GradientIsSaved(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if grad == 1:
            return w, x
        return grad * w, grad * x


CASES.add(
    GradientIsSaved,
    lambda: (normal(4), normal(4, seed=1)),
    fault="gradients-share-memory",
    where="For a cotangent of one the saved inputs themselves are returned.",
    reference=lambda x, w: (x * w).sum(),
    evidence=lambda call, case: _returns_input(call, case),
    severity="fragile",
)


def _returns_output(call, case):
    (x,) = case.inputs()
    out = call(x)
    (found,) = torch.autograd.grad(out, x, torch.ones_like(out))
    return found.data_ptr() == out.data_ptr()


def _returns_input(call, case):
    inputs = case.inputs()
    found = torch.autograd.grad(call(*inputs), inputs)
    places = {item.data_ptr() for item in inputs}
    return any(item.data_ptr() in places for item in found)


# ---- tensors kept past the version check ----


class ScaleOnCtx(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        ctx.x = x
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, (grad * ctx.x).sum(0)


def edit_second(inputs, outputs):
    """Change the second input in place, as an optimiser step does."""
    inputs[1].mul_(10)


def edit_first(inputs, outputs):
    """Change the first input in place."""
    inputs[0].mul_(10)


CASES.add(
    ScaleOnCtx,
    lambda: (normal(3, 4), positive(4, seed=1)),
    fault="stale-after-edit",
    where="The inputs sit on ctx, so an in-place edit before backward is not noticed.",
    reference=torch.mul,
    evidence=wrong_after_edit(edit_second),
)


class SavesDetached(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return x.pow(3)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


CASES.add(
    SavesDetached,
    lambda: (double(5),),
    fault="stale-after-edit",
    where="x.data is saved, whose version does not move with x.",
    reference=lambda x: x.pow(3),
    evidence=wrong_after_edit(edit_first),
)


class OutputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y


def edit_output(inputs, outputs):
    """Change the output in place."""
    outputs[0].detach().mul_(3)


CASES.add(
    OutputOnCtx,
    lambda: (normal(5),),
    fault="stale-after-edit",
    where="An alias of the output sits on ctx: scaling the output in place scales the gradient.",
    reference=torch.exp,
    evidence=wrong_after_edit(edit_output),
)
