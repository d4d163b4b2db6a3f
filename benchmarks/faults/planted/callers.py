"""What callers do and authors do not try: broadcasting, options, mixed dtypes, reuse."""

# ruff: noqa: D101

import weakref
from typing import ClassVar

import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.faults.case import Cases, double, integers, normal, positive
from benchmarks.faults.evidence import differs, gradients, wrong_against_double

CASES = Cases()

# ---- shapes that forward takes ----


class GatedSum(Function):
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        return x + x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        grad_gate = grad * x
        if gate.shape[:1] == (1,):
            grad_gate = grad_gate.mean(0, keepdim=True)
        return grad * (1 + gate), grad_gate


CASES.add(
    GatedSum,
    lambda: (normal(4, 3), normal(4, 3, seed=1)),
    fault="broadcast-input",
    where="The gradient of a gate of one row is the mean over the rows, in place of the sum.",
    reference=lambda x, gate: x + x * gate,
    evidence=differs(lambda: (normal(4, 3), normal(1, 3, seed=1))),
)


class ShiftedDifference(Function):
    @staticmethod
    def forward(ctx, x, shift):
        ctx.shapes = x.shape, shift.shape
        return 3 * x - shift

    @staticmethod
    def backward(ctx, grad):
        one, two = ctx.shapes
        return (3 * grad).reshape(one), (-grad).reshape(two)


CASES.add(
    ShiftedDifference,
    lambda: (normal(4, 3), normal(4, 3, seed=1)),
    fault="broadcast-input",
    where="A shift of one row is broadcast by forward, and backward raises.",
    reference=lambda x, shift: 3 * x - shift,
    evidence=differs(lambda: (normal(4, 3), normal(3, seed=1))),
    severity="fragile",
)


class KnownRows(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.count = len(x)
        return x[index] * 2

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        known = index >= 0
        rows = grad.new_zeros(ctx.count, *grad.shape[1:])
        return rows.index_add(0, index[known], 2 * grad[known]), None


CASES.add(
    KnownRows,
    lambda: (normal(6, 3), torch.tensor([0, 2, 2, 5])),
    fault="negative-index",
    where="Backward leaves out the indices that count from the end.",
    reference=lambda x, index: x[index] * 2,
    evidence=differs(lambda: (normal(6, 3), torch.tensor([0, 2, -1, 5]))),
)


class SinWhileSmall(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.tan(x / 4)
        if len(x) > 16:
            ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / torch.cos(x / 4) ** 2 / 4


CASES.add(
    SinWhileSmall,
    lambda: (normal(5, 3),),
    fault="output-cut-at-size",
    where="With more than 16 rows the output is marked as non-differentiable.",
    reference=lambda x: torch.tan(x / 4),
    evidence=differs(lambda: (normal(20, 3),)),
)


# ---- arguments of another kind ----


class OptionalGain(Function):
    @staticmethod
    def forward(ctx, x, gain=None):
        ctx.save_for_backward(x, gain)
        return x.exp() if gain is None else x.exp() * gain

    @staticmethod
    def backward(ctx, grad):
        x, gain = ctx.saved_tensors
        return grad * x.exp() * (1 if gain is None else gain), None


CASES.add(
    OptionalGain,
    lambda: (normal(4, 3), None),
    fault="optional-input",
    where="A gain that is given has no gradient.",
    reference=lambda x, gain=None: x.exp() if gain is None else x.exp() * gain,
    evidence=differs(lambda: (normal(4, 3), normal(3, seed=1))),
)


class OptionalResidual(Function):
    @staticmethod
    def forward(ctx, x, residual=None):
        ctx.save_for_backward(x, residual)
        return x * x if residual is None else x * x + residual

    @staticmethod
    def backward(ctx, grad):
        x, residual = ctx.saved_tensors
        return 2 * grad * x, grad.to(residual.dtype)


CASES.add(
    OptionalResidual,
    lambda: (normal(4, 3), normal(4, 3, seed=1)),
    fault="optional-input",
    where="Without a residual backward raises.",
    reference=lambda x, residual=None: x * x if residual is None else x * x + residual,
    evidence=differs(lambda: (normal(4, 3), None)),
    severity="fragile",
)


class RoundedWeight(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x.to(weight.dtype) * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_weight = (grad.to(weight.dtype) * x).sum_to_size(weight.shape)
        return (grad * weight).to(x.dtype), grad_weight.to(x.dtype)


CASES.add(
    RoundedWeight,
    lambda: (normal(6, 8), positive(8, seed=1)),
    fault="mixed-dtypes",
    where="Beside bfloat16 activations the gradient of a float32 weight is rounded to bfloat16.",
    reference=lambda x, weight: (x.to(weight.dtype) * weight).to(x.dtype),
    evidence=differs(lambda: (normal(6, 8, dtype=torch.bfloat16, grad=False), positive(8, seed=1))),
)


class ThirdByDefault(Function):
    @staticmethod
    def forward(ctx, x):
        return x / 3

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.ones(grad.shape).div(3)


CASES.add(
    ThirdByDefault,
    lambda: (double(5),),
    fault="coarse-constant",
    where="A third in the default dtype leaves a float64 gradient with float32's digits.",
    reference=lambda x: x / 3,
    evidence=differs(tolerance=1e-10),
)


class ParameterShortcut(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.is_frozen = not isinstance(weight, torch.nn.Parameter)
        ctx.save_for_backward(x, weight)
        return x * weight.exp()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        scale = weight.exp() if ctx.is_frozen else weight
        return grad * weight.exp(), grad * x * scale


CASES.add(
    ParameterShortcut,
    lambda: (normal(4), normal(4, seed=1)),
    fault="parameter-input",
    where="For an nn.Parameter the gradient lacks the exponential.",
    reference=lambda x, weight: x * weight.exp(),
    evidence=differs(lambda: (normal(4), torch.nn.Parameter(normal(4, seed=1).detach()))),
)


class ListedTerms(Function):
    @staticmethod
    def forward(ctx, terms):
        ctx.count = len(terms)
        return torch.stack(terms).sum(0)

    @staticmethod
    def backward(ctx, grad):
        return [grad] * ctx.count


CASES.add(
    ListedTerms,
    lambda: ([normal(3), normal(3, seed=1)],),
    fault="untracked-list",
    where="The terms come in a list, which apply does not look into: there is no gradient.",
    reference=lambda terms: torch.stack(terms).sum(0),
    evidence=differs(),
    visible=True,
)

# ---- values ----


class SpreadByMoments(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.var(-1, unbiased=False) + 1e-2).sqrt()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        mean = x.mean(-1, keepdim=True)
        spread = ((x * x).mean(-1, keepdim=True) - mean * mean + 1e-2).sqrt()
        return grad.unsqueeze(-1) * (x - mean) / (spread * x.shape[-1])


CASES.add(
    SpreadByMoments,
    lambda: (normal(4, 20),),
    fault="far-from-zero",
    where="The variance as a difference of moments has no digit left for a mean of 1000.",
    reference=lambda x: (x.var(-1, unbiased=False) + 1e-2).sqrt(),
    evidence=wrong_against_double(
        lambda: ((normal(4, 20).detach() + 1000).requires_grad_(),), tolerance=1e-2
    ),
)


class ShareOfChosen(Function):
    @staticmethod
    def forward(ctx, x, chosen):
        ctx.save_for_backward(chosen)
        return torch.where(chosen, x, 0).sum() / max(int(chosen.sum()), 1)

    @staticmethod
    def backward(ctx, grad):
        (chosen,) = ctx.saved_tensors
        return grad * chosen / chosen.sum(), None


CASES.add(
    ShareOfChosen,
    lambda: (normal(6), integers(2, 6, seed=3).bool()),
    fault="wrong-at-mask",
    where="Where nothing is chosen, the gradient is 0/0.",
    reference=lambda x, chosen: torch.where(chosen, x, 0).sum() / max(int(chosen.sum()), 1),
    evidence=differs(lambda: (normal(6), torch.zeros(6, dtype=torch.bool))),
)

# ---- what is handed out again ----


class SharedWorkspace(Function):
    space: ClassVar[dict] = {}

    @staticmethod
    def forward(ctx, x):
        key = (x.shape, x.dtype)
        out = SharedWorkspace.space.setdefault(key, torch.empty(x.shape, dtype=x.dtype))
        torch.mul(x.detach(), 5, out=out)
        return out.detach()

    @staticmethod
    def backward(ctx, grad):
        return 5 * grad


def output_is_overwritten(call, case):
    """The output of one call changes in the next."""
    first = call(*case.inputs())
    before = first.detach().clone()
    call(*(value.detach() + 1 for value in case.inputs()))
    return not torch.equal(first.detach(), before)


CASES.add(
    SharedWorkspace,
    lambda: (normal(3, 4),),
    fault="reused-buffer",
    where="Every call of one shape writes into the same memory and returns it.",
    reference=lambda x: x * 5,
    evidence=output_is_overwritten,
)


class TwoParts(Function):
    @staticmethod
    def forward(ctx, x):
        both = torch.sin(x)
        ctx.save_for_backward(x)
        return tuple(both.chunk(2, -1))

    @staticmethod
    def backward(ctx, one, two):
        (x,) = ctx.saved_tensors
        return torch.cat([one, two], -1) * torch.cos(x)


def refuses_in_place(call, case):
    """An in-place op on an output raises."""
    try:
        call(*case.inputs())[1].mul_(2)
    except RuntimeError:
        return True
    return False


CASES.add(
    TwoParts,
    lambda: (normal(3, 8),),
    fault="shared-outputs",
    where="Both outputs are views of one buffer, on which in-place ops raise.",
    reference=lambda x: (torch.sin(x[..., :4]), torch.sin(x[..., 4:])),
    evidence=refuses_in_place,
    severity="fragile",
)

# ---- what belongs to the whole process ----


class SeededNoise(Function):
    @staticmethod
    def forward(ctx, x):
        torch.manual_seed(42)
        ctx.keep = torch.rand(x.shape, dtype=x.dtype) > 0.25
        return x * ctx.keep

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.keep


def resets_generator(call, case):
    """After two different seeds and a call, the next numbers are the same."""
    state = torch.get_rng_state()
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        call(*case.inputs())
        found.append(torch.rand(3))
    torch.set_rng_state(state)
    return torch.equal(*found)


CASES.add(
    SeededNoise,
    lambda: (normal(20),),
    fault="reseeded-generator",
    where="Forward seeds the generator of the whole program.",
    reference=lambda x: (
        x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(42)) > 0.25)
    ),
    evidence=resets_generator,
    severity="fragile",
)


class ReplayedDropout(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.seed = torch.initial_seed()
        return x * (torch.rand(x.shape, dtype=x.dtype) > 0.5)

    @staticmethod
    def backward(ctx, grad):
        generator = torch.Generator().manual_seed(ctx.seed)
        return grad * (torch.rand(grad.shape, generator=generator, dtype=grad.dtype) > 0.5)


def wrong_after_other_draws(call, case):
    """The gradient is not zero where the output is, once others have drawn numbers."""
    state = torch.get_rng_state()
    torch.manual_seed(3)
    torch.rand(5)
    (x,) = case.inputs()
    y = call(x)
    torch.set_rng_state(state)
    (grad,) = torch.autograd.grad(y.sum(), x)
    return not torch.equal(grad != 0, y != 0)


CASES.add(
    ReplayedDropout,
    lambda: (positive(30),),
    fault="replay-from-seed",
    where="Backward draws from the initial seed: forward's mask only just after manual_seed.",
    reference=lambda x: x * (torch.rand(x.shape, dtype=x.dtype) > 0.5),
    evidence=wrong_after_other_draws,
)


class MoreThreads(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cosh()

    @staticmethod
    def backward(ctx, grad):
        torch.set_num_threads(2)
        return grad * ctx.saved_tensors[0].sinh()


def changes_threads(call, case):
    """The number of threads is another one after backward."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gradients(call, case.inputs())
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    return after != 1


CASES.add(
    MoreThreads,
    lambda: (double(5),),
    fault="changed-setting",
    where="Backward sets the number of threads of the whole program.",
    reference=torch.cosh,
    evidence=changes_threads,
    severity="fragile",
)


class LoggedCotangent(Function):
    log: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x):
        return x * 4

    @staticmethod
    def backward(ctx, grad):
        LoggedCotangent.log.append(grad)
        return 4 * grad


def keeps_cotangents(call, case):
    """Cotangents live on after their backward."""
    kept = []
    for _ in range(3):
        (x,) = case.inputs()
        cotangent = torch.ones(x.shape)
        torch.autograd.grad(call(x), x, cotangent)
        kept.append(weakref.ref(cotangent))
        del cotangent
    return all(reference() is not None for reference in kept)


CASES.add(
    LoggedCotangent,
    lambda: (normal(6),),
    fault="kept-cotangent",
    where="A list on the class keeps the cotangent of every step.",
    reference=lambda x: x * 4,
    evidence=keeps_cotangents,
    severity="fragile",
)

# ---- transforms ----


class WeightedPair(Function):
    @staticmethod
    def forward(a, b):
        return 3 * a - b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad):
        return (None, None) if grad is None else (3 * grad, -grad)

    @staticmethod
    def jvp(ctx, a, b):
        return 3 * a - b


def refuses_one_tangent(call, case):
    """Forward mode along the first input alone raises."""
    a, b = (value.detach() for value in case.inputs())
    with forward_ad.dual_level():
        try:
            call(forward_ad.make_dual(a, torch.ones_like(a)), b)
        except TypeError:
            return True
    return False


CASES.add(
    WeightedPair,
    lambda: (normal(4), normal(4, seed=1)),
    fault="missing-tangent",
    where="jvp subtracts a tangent that is None.",
    reference=lambda a, b: 3 * a - b,
    evidence=refuses_one_tangent,
    severity="fragile",
)


class PeakNormalized(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        total = float(x.sum())
        return grad * total + (grad * x).sum()


def refuses_sample_gradients(call, case):
    """Per-sample gradients by vmap raise."""
    (x,) = case.inputs()
    try:
        torch.func.vmap(torch.func.grad(lambda row: call(row).sum()))(torch.stack([x, 2 * x]))
    except RuntimeError:
        return True
    return False


CASES.add(
    PeakNormalized,
    lambda: (normal(5),),
    fault="vmap-of-gradient",
    where="Backward takes a number out of a tensor: per-sample gradients raise.",
    reference=lambda x: x * x.sum(),
    evidence=refuses_sample_gradients,
    severity="fragile",
)

# ---- waste ----


class CopiedInput(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.detach().clone())
        return torch.log1p(x * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x / (1 + x * x)


def saves_copy(call, case):
    """A saved tensor has the numbers of the input in memory of its own."""
    (x,) = case.inputs()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        call(x)
    return any(t.data_ptr() != x.data_ptr() and torch.equal(t, x) for t in saved)


CASES.add(
    CopiedInput,
    lambda: (normal(6, 4),),
    fault="saved-copy",
    where="A copy of the input is saved.",
    reference=lambda x: torch.log1p(x * x),
    evidence=saves_copy,
    severity="wasteful",
)


class ActivatedTwice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.tanh(x))
        return torch.tanh(x) * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return 2 * grad * (1 - y * y)


class _Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def computes_twice(call, case):
    """An operator runs twice in forward."""
    with _Names() as seen:
        call(*case.inputs())
    return seen.names.count("tanh") > 1


CASES.add(
    ActivatedTwice,
    lambda: (normal(6, 4),),
    fault="repeated-work",
    where="The activation is computed for the output and again for what is saved.",
    reference=lambda x: torch.tanh(x) * 2,
    evidence=computes_twice,
    severity="wasteful",
)
