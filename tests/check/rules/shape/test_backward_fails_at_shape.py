"""Sound functions pass `backward-fails-at-shape`; planted faults are caught, and named."""

import torch

from pullback.check.rules.shape.backward_fails_at_shape import check
from tests.check.subjects import missed_by_gradcheck, normal, rule_tests, variadic


def glu(x):
    """One half, gated by the other."""
    value, gate = x.chunk(2, -1)
    return value * gate.sigmoid()


def glu_backward(x, g):
    """For halves of one size: of three columns, forward takes two and one by accident."""
    value, gate = x.chunk(2, -1)
    s = gate.sigmoid()
    return torch.cat([g * s, g * value * s * (1 - s)], -1)


def softmax_backward(x, g):
    """By rows, of which a number has none."""
    y, g = (t.reshape(-1, x.shape[-1]) for t in (x.softmax(-1), g))
    return (y * (g - (g * y).sum(-1, keepdim=True))).reshape(x.shape)


def three_columns(x):
    """A forward that takes more columns by accident."""
    n = x.norm(dim=-1)
    return torch.stack([x[..., 0] + n, x[..., 1] * n, x[..., 2]], -1)


def three_back(x, g):
    """The gradient of three columns."""
    n = x.norm(dim=-1)
    along = (g[..., 0] + g[..., 1] * x[..., 1]) / n
    first = g[..., 0] + along * x[..., 0]
    second = g[..., 1] * n + along * x[..., 1]
    return torch.stack([first, second, g[..., 2] + along * x[..., 2]], -1)


SOUND = {
    "three columns": (variadic(three_columns, three_back), lambda: (normal(4, 3),)),
    "one matrix": (
        variadic(lambda x: x.mT @ x, lambda x, g: x @ (g + g.t())),
        lambda: (normal(5, 4),),
    ),
    "halves": (variadic(glu, glu_backward), lambda: (normal(4, 8),)),
    "rows": (
        variadic(lambda x: x.softmax(-1), softmax_backward),
        lambda: (normal(4, 5),),
    ),
    "matrices only": (
        variadic(lambda x, w: x @ w.mT, lambda x, w, g: (g @ w, g.t() @ x)),
        lambda: (normal(4, 5), normal(3, 5, seed=1)),
    ),
    "one scale for all": (
        variadic(lambda x, a: x * a, lambda x, a, g: (g * a, (g * x).sum().reshape(1))),
        lambda: (normal(4, 3), normal(1, seed=1)),
    ),
    "pairs of columns": (
        variadic(
            lambda x: x.unfold(-1, 2, 2).sum(-1),
            lambda x, g: g.repeat_interleave(2, -1).reshape(x.shape),
        ),
        lambda: (normal(4, 6),),
    ),
    "square in a matrix": (
        variadic(lambda x: x.diagonal(), lambda x, g: torch.diag_embed(g)),
        lambda: (normal(4, 4),),
    ),
    "neighbours": (
        variadic(
            lambda x, i: x[i] - x[: len(i), None],
            lambda x, i, g: (
                torch.zeros_like(x)
                .index_add(0, i.flatten(), g.flatten(0, 1))
                .index_add(0, torch.arange(len(i)), -g.sum(1)),
                None,
            ),
        ),
        lambda: (normal(5, 3), torch.tensor([[0, 1], [4, 2], [3, 3], [1, 0]])),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "number": (
        variadic(lambda x: x.exp(), lambda x, g: (g.view(-1, x.shape[-1]) * x.exp()).view(x.shape)),
        lambda: (normal(4, 3),),
        "backward",
    ),
    "flat": (
        variadic(
            lambda x: x.flatten(1).square().sum(-1),
            lambda x, g: 2 * x.flatten(1) * g[:, None],
        ),
        lambda: (normal(2, 6),),
        "backward",
    ),
    "multiple of 4": (
        variadic(lambda x: x * x, lambda x, g: 2 * x * g.reshape(4, -1).reshape(x.shape)),
        lambda: (normal(4, 5),),
        "backward",
    ),
    "shape of the example": (
        variadic(lambda x: x.reshape(-1) * 2, lambda x, g: 2 * g.reshape(4, 8)),
        lambda: (normal(4, 8),),
        "backward",
    ),
    "size of the example": (
        variadic(lambda x: x.mean(0), lambda x, g: (g / 4).expand(4, *g.shape)),
        lambda: (normal(4, 3),),
        "backward",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "multiple of 4")
