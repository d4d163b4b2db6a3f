"""Programs to plan, and a meter that tells planted numbers instead of measuring."""

import math

import torch

import pullback as pb
from pullback.plan.evidence import PlanEvidence, Sized
from pullback.plan.fingerprint import arguments_signature
from pullback.plan.measurements import AS_WRITTEN, Measurement, PlanCandidate


class Square(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


class Sine(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class Growth(pb.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * cotangent


def chain(x):
    return Growth.apply(Sine.apply(Square.apply(x)))


def square_sine(x, y):
    return Square.apply(x) * Sine.apply(y)


def decides(x):
    return x.sin() if x.sum() > 0 else -x


def doubles_in_place(x):
    y = Square.apply(x)
    y.mul_(2)
    return Sine.apply(y)


def leaf(size=8):
    return torch.linspace(0.1, 1, size).requires_grad_()


def nodes_behind(output):
    """The names of the autograd nodes that an output came from, without those of the leaves."""
    met, edge, names = set(), [output.grad_fn], []
    while edge:
        node = edge.pop()
        if node is None or node in met:
            continue
        met.add(node)
        name = node.name().removeprefix("struct ").rpartition("::")[2]
        if name != "AccumulateGrad":
            names.append(name.removesuffix("Backward").rstrip("0").removesuffix("Backward"))
        edge += [further for further, _ in node.next_functions]
    return sorted(names)


class FakeMeter:
    """Numbers by the names of the nodes that a call makes.

    A node costs a second, or what `seconds` says for its name at the size of the first argument;
    it keeps no byte, or what `saved` says; the error of a call is the largest that `errors` says.
    Every measurement takes `step` seconds of a clock that nothing else moves.
    """

    def __init__(self, seconds=None, saved=None, errors=None, step=0.0):
        self.device = torch.device("cpu")
        self.tables = (seconds or {}, saved or {}, errors or {})
        self.step = step
        self.clock = 0.0
        self.timed = []

    def now(self):
        return self.clock

    def _nodes(self, task):
        output = task.forward()
        return nodes_behind(output[0] if isinstance(output, tuple) else output)

    def time(self, task):
        self.clock += self.step
        names = self._nodes(task)
        self.timed.append(tuple(names))
        if names == ["View"]:
            return 0.5  # what it costs to ask for a gradient at all
        size = task.args[0].numel()
        costs = [self.tables[0].get(name, 1.0) for name in names]
        return 0.5 + sum(cost(size) if callable(cost) else cost for cost in costs)

    def saved(self, task, spared):
        return sum(self.tables[1].get(name, 0) for name in self._nodes(task))

    def peak(self, task):
        return 7

    def error(self, task, exact):
        return max((self.tables[2].get(name, 0.0) for name in self._nodes(task)), default=0.0)


# ---- a plan that was made up ----


def made_up(**facts):
    """What a plan of `chain` would know: combined up to some size, a hybrid above it."""
    combined = PlanCandidate("combined", (), "eager", "everything")
    hybrid = PlanCandidate("hybrid", ((0, 1),), "eager", "auto")
    hasty = PlanCandidate("combined", (), "eager", "auto")

    def rows(of_combined, of_hybrid, size):
        kept = 8 * size
        return (
            Measurement(AS_WRITTEN, "Square Sine Growth", 3, 1e-4, 1.0, 1.0, 1.0, kept, kept, 1e-7),
            Measurement(
                combined,
                "[Square Sine Growth]",
                1,
                1e-4 * of_combined,
                *(of_combined * n for n in (1, 0.9, 1.1)),
                kept,
                3 * kept,
                1.2e-7,
            ),
            Measurement(
                hybrid,
                "[Square Sine] Growth",
                2,
                1e-4 * of_hybrid,
                *(of_hybrid * n for n in (1, 0.9, 1.1)),
                4 * size,
                kept,
                1.3e-7,
            ),
            Measurement(
                hasty,
                "[Square Sine Growth]",
                1,
                4e-5,
                *(0.4, 0.4, 0.4),
                0,
                None,
                math.inf,
                is_inexact=True,
            ),
        )

    known = {
        "program": "chain",
        "objective": "time",
        "sized": (
            Sized(100, "(float32[100])", rows(0.5, 1.0, 100), combined),
            Sized(10_000, "(float32[10000])", rows(1.6, 0.8, 10_000), hybrid),
        ),
        "place": 0,
        "argument": "x",
        "notes": ("all 6 consecutive groups",),
        "refused": {"combined (native, save auto)": "no compiler"},
        "made_with": {"torch": "2.13.0", "device": "x86_64", "threads": 1, "seconds": 3.5},
        "fingerprint": "0" * 64,
        "signature": arguments_signature((leaf(),)),
    }
    return PlanEvidence(**(known | facts))
