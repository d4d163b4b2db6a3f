"""State that outlives a call: classes, modules, threads, random numbers, order."""

# ruff: noqa: D101

import random
import threading
import time

import torch
import torch.nn.functional as F
from torch.autograd import Function

from benchmarks.faults.case import Cases, double, normal, positive
from benchmarks.faults.evidence import (
    differs,
    draws_in_backward,
    random_state_moves_gradient,
    varies,
    wrong_from_threads,
    wrong_gradient,
    wrong_in_thread,
    wrong_on_repeat,
    wrong_under_checkpoint,
    wrong_when_interleaved,
    wrong_without_grad,
)

CASES = Cases()

# ---- classes and modules ----


class ClassState(Function):
    kept = None

    @staticmethod
    def forward(ctx, x):
        ClassState.kept = x.detach()
        return x.pow(3)

    @staticmethod
    def backward(ctx, grad):
        return 3 * ClassState.kept**2 * grad


CASES.add(
    ClassState,
    lambda: (normal(5),),
    fault="class-state",
    where="What backward reads is on the class: the last forward wins.",
    reference=lambda x: x.pow(3),
    evidence=wrong_when_interleaved(),
)

_LAST = {}


class ModuleState(Function):
    @staticmethod
    def forward(ctx, x, w):
        _LAST["x"], _LAST["w"] = x.detach().clone(), w.detach().clone()
        return x * w

    @staticmethod
    def backward(ctx, grad):
        return grad * _LAST["w"], grad * _LAST["x"]


CASES.add(
    ModuleState,
    lambda: (double(4), double(4, seed=1)),
    fault="class-state",
    where="What backward reads is in a dictionary of the module.",
    reference=torch.mul,
    evidence=wrong_when_interleaved(),
)


class ShapeOnClass(Function):
    shape = (0,)

    @staticmethod
    def forward(ctx, x):
        ShapeOnClass.shape = x.shape
        return x.mean()

    @staticmethod
    def backward(ctx, grad):
        n = 1
        for size in ShapeOnClass.shape:
            n *= size
        return grad.expand(ShapeOnClass.shape) / n


CASES.add(
    ShapeOnClass,
    lambda: (normal(3, 4),),
    fault="class-state",
    where="The shape is on the class: a call with another shape breaks the first.",
    reference=torch.mean,
    evidence=wrong_when_interleaved(lambda: (normal(5, 2),)),
)


class SharedScratch(Function):
    scratch = torch.zeros(4096, dtype=torch.float64)

    @staticmethod
    def forward(ctx, x):
        y = SharedScratch.scratch[: x.numel()].view(x.shape)
        torch.exp(x.detach().double(), out=y)
        ctx.save_for_backward(y)
        return y.to(x.dtype).clone()

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y.to(grad.dtype)


CASES.add(
    SharedScratch,
    lambda: (normal(6),),
    fault="class-state",
    where="Saved tensors live in one scratch buffer that the next forward overwrites.",
    reference=torch.exp,
    evidence=wrong_when_interleaved(),
)


class StackOrder(Function):
    stack = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        StackOrder.stack.append(x.detach())
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        x = StackOrder.stack.pop()
        return grad * x.cos() if x.shape == grad.shape else grad


def wrong_in_other_order(call, case):
    """Two nodes that run backward in the order of their forwards."""
    one, two = case.inputs()[0], (case.inputs()[0].detach() + 1).requires_grad_()
    first, second = call(one), call(two)
    got = torch.autograd.grad(first.sum(), one)[0]
    torch.autograd.grad(second.sum(), two)
    return not torch.allclose(got, one.detach().cos())


CASES.add(
    StackOrder,
    lambda: (normal(5),),
    fault="two-live-nodes",
    where="Backward pops a stack, which is right only in the reverse order of the forwards.",
    reference=torch.sin,
    evidence=wrong_in_other_order,
)


class SharedContext(Function):
    slots = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        ctx.key = tuple(x.shape)
        SharedContext.slots[ctx.key] = x.detach()
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * SharedContext.slots[ctx.key]


CASES.add(
    SharedContext,
    lambda: (normal(7),),
    fault="two-live-nodes",
    where="A cache is keyed by shape: two live nodes of one shape share a slot.",
    reference=torch.square,
    evidence=wrong_when_interleaved(),
)


class AddressCache(Function):
    known = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        key = tuple(x.shape)
        if key not in AddressCache.known:
            AddressCache.known[key] = torch.softmax(x.detach(), -1)
        ctx.save_for_backward(AddressCache.known[key])
        return torch.softmax(x, -1)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-1, keepdim=True))


def wrong_for_second_values(call, case):
    """The second call, with other values of the same shape, is wrong."""
    call(*case.inputs())
    other = lambda: ((case.inputs()[0].detach() * 2 + 0.1).requires_grad_(),)  # noqa: E731
    return differs(other)(call, case)


CASES.add(
    AddressCache,
    lambda: (normal(3, 5),),
    fault="stale-cache",
    where="The softmax of the first call with a shape serves all later ones.",
    reference=lambda x: torch.softmax(x, -1),
    evidence=wrong_for_second_values,
)


class FirstCallMean(Function):
    mean = None

    @staticmethod
    def forward(ctx, x):
        if FirstCallMean.mean is None:
            FirstCallMean.mean = float(x.mean())
        ctx.save_for_backward(x)
        return (x - x.mean()).square().sum()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * (x - FirstCallMean.mean)


CASES.add(
    FirstCallMean,
    lambda: (normal(6),),
    fault="stale-cache",
    where="The mean of the first call ever is used in every backward.",
    reference=lambda x: (x - x.mean()).square().sum(),
    evidence=wrong_for_second_values,
)


class CallCounter(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        CallCounter.calls += 1
        ctx.save_for_backward(x)
        ctx.warm = CallCounter.calls % 4 != 0
        return x.tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        d = grad * (1 - x.tanh() ** 2)
        return d if ctx.warm else d * 1.1


CASES.add(
    CallCounter,
    lambda: (double(5),),
    fault="depends-on-calls",
    where="Every fourth call has a gradient ten percent too large.",
    reference=torch.tanh,
    evidence=wrong_on_repeat(9),
)


class WarmupScale(Function):
    steps = 0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        WarmupScale.steps += 1
        scale = 1.0 if WarmupScale.steps < 3 else 0.5
        return grad * w * scale, grad * x * scale


CASES.add(
    WarmupScale,
    lambda: (normal(4), normal(4, seed=1)),
    fault="depends-on-calls",
    where="From the third backward on the gradients are halved.",
    reference=torch.mul,
    evidence=wrong_on_repeat(6),
)

# ---- threads ----

_local = threading.local()


class ThreadLocal(Function):
    @staticmethod
    def forward(ctx, x):
        _local.x = x.detach()
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx, grad):
        return grad / (2 * _local.x.sqrt())


CASES.add(
    ThreadLocal,
    lambda: (positive(5),),
    fault="thread-unsafe",
    where="What backward reads is local to the thread of forward.",
    reference=torch.sqrt,
    evidence=wrong_in_thread,
    severity="fragile",
)


class RacyBuffer(Function):
    buffer = None

    @staticmethod
    def forward(ctx, x):
        RacyBuffer.buffer = x.detach()
        total = torch.zeros_like(x)
        for _ in range(16):
            total = total + RacyBuffer.buffer
        ctx.save_for_backward(total)
        return total * x / 16

    @staticmethod
    def backward(ctx, grad):
        (total,) = ctx.saved_tensors
        return total * grad / 8


CASES.add(
    RacyBuffer,
    lambda: (normal(8),),
    fault="thread-unsafe",
    where="Forward works in a field of the class: two threads mix their data.",
    reference=torch.square,
    evidence=wrong_from_threads,
)


class RacyBackward(Function):
    work = None

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        RacyBackward.work = grad * w
        dw = grad * x
        dw = dw + 0 * dw.sin().cos()
        return RacyBackward.work, dw


CASES.add(
    RacyBackward,
    lambda: (normal(8), normal(8, seed=1)),
    fault="thread-unsafe",
    where="Backward passes its work through a field of the class.",
    reference=torch.mul,
    evidence=wrong_from_threads,
)

# ---- random numbers ----


class DropoutRedrawn(Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.p = p
        mask = (torch.rand(x.shape) > p).to(x.dtype) / (1 - p)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        mask = (torch.rand(grad.shape) > ctx.p).to(grad.dtype) / (1 - ctx.p)
        return grad * mask, None


CASES.add(
    DropoutRedrawn,
    lambda: (positive(6, 6), 0.4),
    fault="random-in-backward",
    where="Backward draws another mask than forward.",
    reference=lambda x, p: F.dropout(x, p),
    evidence=random_state_moves_gradient,
    visible=True,
    cites="xformers#173",
)


class NoiseInBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad + 0.01 * torch.randn(grad.shape, dtype=grad.dtype)


CASES.add(
    NoiseInBackward,
    lambda: (double(6),),
    fault="random-in-backward",
    where="Noise is added to the gradient.",
    reference=lambda x: x * 1,
    evidence=varies,
    visible=True,
)


class DrawsForNothing(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        jitter = 1e-12 * torch.rand(grad.shape, dtype=grad.dtype)
        return grad * s * (1 - s) + jitter * 0


CASES.add(
    DrawsForNothing,
    lambda: (normal(5),),
    fault="random-in-backward",
    where="Backward consumes the global generator, so later layers are not reproducible.",
    reference=torch.sigmoid,
    evidence=draws_in_backward,
    severity="fragile",
)


class PythonRandomMask(Function):
    @staticmethod
    def forward(ctx, x, p):
        mask = torch.tensor([random.random() > p for _ in range(x.numel())]).view(x.shape)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask, None


CASES.add(
    PythonRandomMask,
    lambda: (positive(40), 0.5),
    fault="random-under-checkpoint",
    where="The mask comes from Python's generator, which checkpoint does not replay.",
    reference=lambda x, p: x * (torch.rand(x.shape) > p),
    evidence=wrong_under_checkpoint,
    visible=True,
    severity="fragile",
)


class SeedByAddress(Function):
    @staticmethod
    def forward(ctx, x, p):
        seed = torch.randint(2**31, (1,))
        ctx.seed, ctx.p = seed.clone(), p
        generator = torch.Generator().manual_seed(seed.data_ptr())
        return x * (torch.rand(x.shape, generator=generator) > p)

    @staticmethod
    def backward(ctx, grad):
        generator = torch.Generator().manual_seed(ctx.seed.data_ptr())
        return grad * (torch.rand(grad.shape, generator=generator) > ctx.p), None


def masks_disagree(call, case):
    """Entries that forward dropped get a gradient, or kept ones get none."""
    x, p = case.inputs()
    out = call(x, p)
    (grad,) = torch.autograd.grad(out.sum(), x)
    return not torch.equal(out != 0, grad != 0)


CASES.add(
    SeedByAddress,
    lambda: (positive(40), 0.5),
    fault="random-in-backward",
    where="The seed's address serves as the seed, and the copy in ctx has another one.",
    reference=lambda x, p: F.dropout(x, p),
    evidence=masks_disagree,
    visible=True,
    cites="xformers#173",
)


class SeedFromClock(Function):
    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(time.time_ns())) > p
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask, None


CASES.add(
    SeedFromClock,
    lambda: (positive(40), 0.5),
    fault="random-under-checkpoint",
    where="A generator seeded by the clock makes another mask when forward is run again.",
    reference=lambda x, p: x * (torch.rand(x.shape) > p),
    evidence=wrong_under_checkpoint,
    visible=True,
    severity="fragile",
)


class CountingForward(Function):
    count = 0

    @staticmethod
    def forward(ctx, x):
        CountingForward.count += 1
        scale = 1.0 if CountingForward.count % 2 else 2.0
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale


CASES.add(
    CountingForward,
    lambda: (normal(5),),
    fault="depends-on-calls",
    where="Forward alternates between two scales, so a recomputed forward is another function.",
    reference=lambda x: x * 1.0,
    evidence=wrong_on_repeat(4),
    visible=True,
)

# ---- nondeterminism ----


class HashOrder(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        drop = random.randrange(8)
        out = grad[:, None].expand_as(x).clone()
        if drop == 0:
            out[0, 0] = 0
        return out


CASES.add(
    HashOrder,
    lambda: (normal(3, 4),),
    fault="nondeterministic",
    where="Once in eight backwards an update is lost, as in a race.",
    reference=lambda x: x.sum(-1),
    evidence=lambda call, case: any(wrong_gradient(call, case) for _ in range(200)),
    cites="cherimoya#25",
)


class UnstableSum(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        order = torch.tensor(random.sample(range(len(x)), len(x)))
        parts = (grad * x).bfloat16()[order]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return grad * w, total.to(w.dtype)


CASES.add(
    UnstableSum,
    lambda: (normal(32, 4), normal(4, seed=1)),
    fault="nondeterministic",
    where="A low-precision sum in random order, as with atomics, differs from run to run.",
    reference=torch.mul,
    evidence=varies,
    visible=True,
    cites="llm.c#476",
)

# ---- modes ----


class EvalShortcut(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        if not any(ctx.needs_input_grad):
            return x.clone()
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale, grad * x


CASES.add(
    EvalShortcut,
    lambda: (normal(4), positive(4, seed=1)),
    fault="wrong-without-grad",
    where="When no gradient is needed forward leaves out the scale.",
    reference=torch.mul,
    evidence=differs(lambda: (normal(4, grad=False), positive(4, seed=1, grad=False))),
)


def grad_only_inference(x, w):
    """Scale rows; the gradient is prepared in forward."""
    return _PreparedScale.apply(x, w, torch.is_grad_enabled())


class _PreparedScale(Function):
    @staticmethod
    def forward(ctx, x, w, training):
        prepared = x.new_zeros(x.shape) if training else None
        out = prepared.add_(x).mul_(w)
        ctx.save_for_backward(x, w)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x, None


CASES.add(
    grad_only_inference,
    lambda: (normal(3, 3), normal(3, 3, seed=1)),
    fault="wrong-without-grad",
    where="Under no_grad the work buffer is None, and forward fails.",
    reference=torch.mul,
    evidence=wrong_without_grad(),
    cites="Liger#930",
    severity="fragile",
)


class InferenceVersion(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.version = x._version
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.exp()


def made_in_inference(call, case):
    """A tensor made in inference mode is refused."""
    with torch.inference_mode():
        x = case.inputs()[0].detach().clone()
        try:
            call(x)
        except RuntimeError:
            return True
    return False


CASES.add(
    InferenceVersion,
    lambda: (double(4),),
    fault="wrong-without-grad",
    where="Forward reads the version counter, which tensors of inference mode do not have.",
    reference=torch.exp,
    evidence=made_in_inference,
    severity="fragile",
)
