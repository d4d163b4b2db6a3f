"""Sound functions pass `wrong-at-ties`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-at-ties")


def shared(x, grad):
    """Each of the tied elements gets its share."""
    tied = x == x.amax(-1, keepdim=True)
    return grad[..., None] * tied / tied.sum(-1, keepdim=True)


class Eigen(torch.autograd.Function):
    """Eigenvalues and eigenvectors of a symmetric matrix, with a guard where two are equal."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh((a + a.mT) / 2)
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    def inverse(gap):
        return torch.where(gap == 0, 0.0, 1 / torch.where(gap == 0, 1.0, gap))

    @classmethod
    def of(cls, ctx, g, h):
        values, vectors = ctx.saved_tensors
        inner = cls.inverse(values - values[:, None]) * (vectors.mT @ h)
        inner = vectors @ (torch.diag(g) + inner) @ vectors.mT
        return (inner + inner.mT) / 2

    @staticmethod
    def backward(ctx, g, h):
        return Eigen.of(ctx, g, h)


class UnguardedEigen(Eigen):
    """0 times infinity where only the eigenvalues are used."""

    @staticmethod
    def inverse(gap):
        return 1 / gap.masked_fill(torch.eye(len(gap), dtype=torch.bool), torch.inf)

    @staticmethod
    def backward(ctx, g, h):
        return UnguardedEigen.of(ctx, g, h)


def matrix():
    root = normal(3, 3).detach()
    return (root + root.mT).requires_grad_()


def capped(x):
    """The nearest shares of at most 1 that sum to 2, by bisection."""
    low, high = x.amin(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
    for _ in range(60):
        middle = (low + high) / 2
        is_much = (x - middle).clamp(0, 1).sum(-1, keepdim=True) > 2
        low, high = torch.where(is_much, middle, low), torch.where(is_much, high, middle)
    return (x - (low + high) / 2).clamp(0, 1)


def capped_back(x, g):
    y = capped(x)
    free = ((y > 0) & (y < 1)).to(g)
    return free * (g - (g * free).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1))


SOUND = {
    "bisection": (variadic(capped, capped_back), lambda: (normal(3, 6),)),
    "eigenvalues": (Eigen, lambda: (matrix(),)),
    "shared": (variadic(lambda x: x.amax(-1), shared), lambda: (normal(4, 5),)),
    "first": (
        variadic(
            torch.maximum,
            lambda a, b, g: (torch.where(a >= b, g, 0.0), torch.where(a >= b, 0.0, g)),
        ),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}


def distances(x):
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def without_guard(x, g):
    """The gradient of the distances, guarded on the diagonal alone."""
    length = distances(x) + torch.eye(len(x), dtype=x.dtype)
    return ((g + g.T)[..., None] * (x[:, None] - x) / length[..., None]).sum(1)


PLANTED = {
    "eigenvalues": (UnguardedEigen, lambda: (matrix(),), "with only output 0 used"),
    "points that coincide": (
        variadic(distances, without_guard),
        lambda: (normal(5, 3),),
        "gradient of `args[0]`",
    ),
    "everyone": (
        variadic(lambda x: x.amax(-1), lambda x, g: g[..., None] * (x == x.amax(-1, keepdim=True))),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "nobody": (
        variadic(torch.minimum, lambda a, b, g: (g * (a < b), g * (b < a))),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "everyone")
