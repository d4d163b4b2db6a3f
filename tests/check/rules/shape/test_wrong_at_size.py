"""Sound functions pass `wrong-at-size`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-at-size")


def halves(x, grad):
    """Right where the size is even."""
    out = torch.zeros_like(x)
    n = x.shape[-1] // 2 * 2
    out[..., :n] = 2 * (x * grad)[..., :n]
    return out


def filtered(x, by):
    """The product with a spectrum, taken back."""
    return torch.fft.irfft(torch.fft.rfft(x) * by, x.shape[-1])


def reduced(x, b, g):
    """The gradient of a vector by a sum over rows, of anything else by a mean over columns."""
    grad = g * x
    return g * b, grad.sum(0) if b.dim() < g.dim() else grad.mean(-1, keepdim=True)


SOUND = {
    "a real and an imaginary part": (
        variadic(lambda x: (x[..., 0] ** 2 + x[..., 1] ** 2) / 2, lambda x, g: x * g[..., None]),
        lambda: (normal(3, 4, 2),),
    ),
    "vector only": (
        variadic(lambda x, b: x * b, lambda x, b, g: (g * b, (g * x).sum(0))),
        lambda: (normal(5, 3), normal(3, seed=1)),
    ),
    "any shape": (
        variadic(lambda x, b: x * b, lambda x, b, g: (g * b, (g * x).sum_to_size(b.shape))),
        lambda: (normal(5, 3), normal(3, seed=1)),
    ),
    "padded filter": (
        variadic(
            lambda x, k: filtered(x, torch.fft.rfft(k, x.shape[-1])),
            lambda x, k, g: (
                filtered(g, torch.fft.rfft(k, x.shape[-1]).conj()),
                filtered(g, torch.fft.rfft(x).conj()).flatten(0, -2).sum(0),
            ),
        ),
        lambda: (normal(3, 8), normal(8, seed=1)),
    ),
    "rows without labels": (
        variadic(
            lambda x, y: -x.gather(1, y[:, None]).mean(),
            lambda x, y, g: (
                torch.zeros_like(x).scatter(1, y[:, None], -g.expand(len(y), 1) / len(x)),
                None,
            ),
        ),
        lambda: (normal(6, 5), torch.tensor([1, 4, 0, 2, 2, 3])),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "column": (
        variadic(lambda x, b: x * b, reduced),
        lambda: (normal(5, 3), normal(3, seed=1)),
        "gradient of `args[1]`",
    ),
    "odd": (variadic(lambda x: x * x, halves), lambda: (normal(3, 4),), "gradient of `args[0]`"),
    "block": (
        variadic(lambda x: x * x, lambda x, g: 2 * x * g * (torch.arange(x.shape[-1]) < 256)),
        lambda: (normal(3, 4),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "odd")
