"""Sound functions pass `wrong-at-argument`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, normal, rule_tests, variadic

check = check_of("wrong-at-argument")


def mean(x, mask):
    """The mean over the kept entries."""
    return (x * mask).sum(-1) / mask.sum(-1)


def args():
    """Rows, and a mask that keeps everything."""
    return normal(3, 4), torch.ones(3, 4, dtype=torch.float64)


class Softmax(torch.autograd.Function):
    """Right along the last dimension, which is its default, and along no other."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        y = x.softmax(dim)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)), None


class ScaledAlong(torch.autograd.Function):
    """A number for each index along a dimension."""

    @staticmethod
    def forward(ctx, x, w, dim=0):
        w = w.view([-1 if d == dim else 1 for d in range(x.dim())])
        ctx.save_for_backward(x, w)
        ctx.dim = dim
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        others = [d for d in range(x.dim()) if d != ctx.dim]
        return g * w, (g * x).sum(others), None


class ScaledAlongRows(ScaledAlong):
    """Sums over the columns, whatever the dimension: only a square hides that from PyTorch."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(1), None


class Scaled(torch.autograd.Function):
    """Right for one of the two words that its forward knows."""

    @staticmethod
    def forward(ctx, x, norm="backward"):
        if norm not in ("backward", "ortho"):
            raise ValueError(norm)
        return x if norm == "backward" else 2 * x

    @staticmethod
    def backward(ctx, g):
        return g, None


class Powered(torch.autograd.Function):
    """Right for every power, also those that the example leaves to the default."""

    @staticmethod
    def forward(ctx, x, power=2, mode="plain"):
        ctx.save_for_backward(x)
        ctx.factor, ctx.power = (2.0 if mode == "doubled" else 1.0), power
        return ctx.factor * x**power

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.factor * ctx.power * x ** (ctx.power - 1), None, None


class Bounded(torch.autograd.Function):
    """A clamp whose bounds may be left out."""

    @staticmethod
    def forward(ctx, x, low=None, high=None):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x if low is None and high is None else x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        kept = torch.ones_like(x, dtype=torch.bool)
        if ctx.low is not None:
            kept &= x >= ctx.low
        if ctx.high is not None:
            kept &= x <= ctx.high
        return g * kept, None, None


class TruthBounded(Bounded):
    """A bound of zero counts as none."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        low, high = ctx.low or -torch.inf, ctx.high or torch.inf
        return g * ((x >= low) & (x <= high)), None, None


class BothBounded(Bounded):
    """With one bound left out, the other is forgotten."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.low is None or ctx.high is None:
            return g, None, None
        return g * ((x >= ctx.low) & (x <= ctx.high)), None, None


class FirstOfGroup(torch.autograd.Function):
    """The largest of each group, entry by entry; a group without members is 0."""

    @staticmethod
    def forward(ctx, x, group, count):
        out = x.new_full((count,), -torch.inf)
        best = torch.full((count,), len(x))
        for i in range(len(x)):
            j = int(group[i])
            if x[i] > out[j]:
                out[j], best[j] = x[i], i
        ctx.save_for_backward(best)
        ctx.length = len(x)
        return out.masked_fill(best == len(x), 0.0)

    @staticmethod
    def backward(ctx, g):
        (best,) = ctx.saved_tensors
        return g.new_zeros(ctx.length + 1).index_add(0, best, g)[:-1], None, None


class LastOfGroup(FirstOfGroup):
    """The gradient of a group without members goes to the last entry."""

    @staticmethod
    def backward(ctx, g):
        (best,) = ctx.saved_tensors
        return g.new_zeros(ctx.length).index_add(0, best.clamp(max=ctx.length - 1), g), None, None


def groups():
    return normal(8), torch.tensor([0, 1, 0, 2, 2, 1, 0, 1]), 3


class Leaky(torch.autograd.Function):
    """A slope that forward rounds to single precision."""

    @staticmethod
    def forward(ctx, x, slope):
        factor = torch.where(x > 0, 1.0, slope).to(x.dtype)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        return g * factor, None


class LeakyByOutput(Leaky):
    """The sign is read off the output, and is another one for a negative slope."""

    @staticmethod
    def forward(ctx, x, slope):
        out = x * torch.where(x > 0, 1.0, slope).to(x.dtype)
        ctx.save_for_backward(out)
        ctx.slope = slope
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, g, g * ctx.slope), None


class Path(torch.autograd.Function):
    """The soft cost of the cheapest path through a table, cell by cell."""

    @staticmethod
    def forward(ctx, cost, gamma):
        rows, columns = cost.shape
        total = cost.new_full((rows + 1, columns + 1), 1e9)
        total[0, 0] = 0
        for i in range(rows):
            for j in range(columns):
                before = torch.stack([total[i, j], total[i, j + 1], total[i + 1, j]])
                total[i + 1, j + 1] = cost[i, j] - gamma * (-before / gamma).logsumexp(0)
        ctx.save_for_backward(cost, total)
        ctx.gamma = gamma
        return total[rows, columns].clone()

    @staticmethod
    def pulled(ctx, g, gamma):
        cost, total = ctx.saved_tensors
        rows, columns = cost.shape
        flow = torch.zeros_like(total)
        flow[rows, columns] = 1
        for i in range(rows, 0, -1):
            for j in range(columns, 0, -1):
                before = torch.stack([total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]])
                share = flow[i, j] * (-before / gamma).softmax(0)
                flow[i - 1, j - 1] += share[0]
                flow[i - 1, j] += share[1]
                flow[i, j - 1] += share[2]
        return g * flow[1:, 1:]

    @staticmethod
    def backward(ctx, g):
        return Path.pulled(ctx, g, ctx.gamma), None


class PathOfOne(Path):
    """The width of the minimum is left out in backward."""

    @staticmethod
    def backward(ctx, g):
        return Path.pulled(ctx, g, 1.0), None


class Wanted(torch.autograd.Function):
    """A sine whose caller says whether there will be a backward."""

    @staticmethod
    def forward(ctx, x, training):
        ctx.save_for_backward(x.cos() if training else None)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return None if slope is None else g * slope, None


class Sharp(torch.autograd.Function):
    """The largest entry as a one, with the gradient of a softmax at some temperature."""

    @staticmethod
    def forward(ctx, x, temperature):
        ctx.save_for_backward(x)
        ctx.temperature = temperature
        return torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = (x / ctx.temperature).softmax(-1)
        return y * (g - (g * y).sum(-1, keepdim=True)) / ctx.temperature, None

    declares = {"surrogate": "x"}  # noqa: RUF012


SOUND = {
    "along a dimension": (ScaledAlong, lambda: (normal(3, 4), normal(3, seed=1))),
    "temperature": (Sharp, lambda: (normal(3, 4), 0.5)),
    "no gradient wanted": (Wanted, lambda: (normal(4), True)),
    "cell by cell": (Path, lambda: (normal(6, 6), 1.0)),
    "bounds": (Bounded, lambda: (normal(6), -0.5, 0.5)),
    "groups, entry by entry": (FirstOfGroup, groups),
    "slope in single precision": (Leaky, lambda: (normal(6), 0.1)),
    "defaults": (Powered, lambda: (normal(4).detach().abs() + 0.5,)),
    "counted": (
        variadic(mean, lambda x, m, g: ((g / m.sum(-1))[:, None] * m, None)),
        args,
    ),
    "power": (
        variadic(lambda x, n: x**n, lambda x, n, g: (n * x ** (n - 1) * g, None)),
        lambda: (normal(4), 3),
    ),
}
PLANTED = {
    "along rows": (ScaledAlongRows, lambda: (normal(3, 4), normal(3, seed=1)), "gradient of `w`"),
    "cell by cell": (PathOfOne, lambda: (normal(6, 6), 1.0), "gradient of `cost`"),
    "bound of zero": (TruthBounded, lambda: (normal(6), -0.5, 0.5), "gradient of `x`"),
    "bound that is left out": (BothBounded, lambda: (normal(6), -0.5, 0.5), "gradient of `x`"),
    "group without members": (LastOfGroup, groups, "gradient of `x`"),
    "sign by the output": (LeakyByOutput, lambda: (normal(6), 0.1), "gradient of `x`"),
    "default that the example leaves out": (Softmax, lambda: (normal(3, 4),), "gradient of `x`"),
    "word of forward": (Scaled, lambda: (normal(4),), "gradient of `x`"),
    "switched off": (
        variadic(lambda x, eps: x.sin() + eps * x * x, lambda x, eps, g: (g * x.cos(), None)),
        lambda: (normal(4), 0.0),
        "gradient of `args[0]`",
    ),
    "length": (
        variadic(mean, lambda x, m, g: ((g / m.shape[-1])[:, None] * m, None)),
        args,
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
