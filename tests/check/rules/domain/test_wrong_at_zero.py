"""Sound functions pass `wrong-at-zero`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, missed_by_gradcheck, normal, rule_tests, variadic

check = check_of("wrong-at-zero")


def cube_root_guard(x, grad):
    """x / |x|, NaN at zero."""
    return grad * 3 * x * x.abs() * x / x


def raising_at_zero(x, grad):
    """Twice the input, unless an entry is zero: by accident, not to say so."""
    return 2 * x * grad / (1 // int(not (x == 0).any()))


def masked_log(x, mask):
    """The logarithm where the mask is set, else zero."""
    return torch.where(mask > 0, x.log(), torch.zeros_like(x))


def positive_with_mask():
    """Positive numbers, and a mask that hides some of them."""
    return normal(4, 5).detach().abs().add(0.2).requires_grad_(), torch.tensor([1.0, 0, 1, 1, 0])


def unit(x):
    """Rows of length one, and zeros where there is nothing."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8)


def unit_backward(x, grad, least=1e-8):
    """The gradient of `unit`, with the guard that is given."""
    n = x.norm(dim=-1, keepdim=True).clamp(min=least)
    y = x / n
    inner = torch.where(n > least, (grad * y).sum(-1, keepdim=True), 0.0)
    return (grad - y * inner) / n


def normalised(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def along(g, x, unit):
    norm = x.norm(dim=-1, keepdim=True)
    return (g - unit * (g * unit).sum(-1, keepdim=True)) / norm.clamp(min=1e-12)


SOUND = {
    "row of zeros": (
        variadic(normalised, lambda x, g: along(g, x, normalised(x))),
        lambda: (normal(3, 4),),
    ),
    "guarded in both": (variadic(unit, unit_backward), lambda: (normal(4, 5),)),
    "masked, chosen after the division": (
        variadic(masked_log, lambda x, m, g: (torch.where(m > 0, g / x, 0.0), None)),
        positive_with_mask,
    ),
    "power by logarithms": (
        variadic(
            lambda x, p: torch.exp(p * x.log()),
            lambda x, p, g: (g * p * x ** (p - 1), g * torch.exp(p * x.log()) * x.log()),
        ),
        lambda: (normal(4, 3).abs() + 0.2, normal(4, 3, seed=1).abs() + 0.2),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "corner": (variadic(torch.abs, lambda x, g: g * x.sign()), lambda: (normal(4, 5),)),
    "corner, slope 1": (
        variadic(torch.abs, lambda x, g: torch.where(x >= 0, g, -g)),
        lambda: (normal(4, 5),),
    ),
}
PLANTED = {
    "row of zeros": (
        variadic(normalised, lambda x, g: along(g, x, x / x.norm(dim=-1, keepdim=True))),
        lambda: (normal(3, 4),),
        "gradient of `args[0]`",
    ),
    "wrong, and not finite at zero": (
        variadic(torch.sinc, lambda x, g: 0.9 * g * ((torch.pi * x).cos() - torch.sinc(x)) / x),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "guarded in forward alone": (
        variadic(unit, lambda x, g: unit_backward(x, g, 0.0)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "complex length": (
        variadic(lambda z: z.abs() ** 2, lambda z, g: 2 * g * z.abs() * (z / z.abs())),
        lambda: (normal(4, dtype=torch.complex128),),
        "gradient of `args[0]`",
    ),
    "raises": (
        variadic(lambda x: x * x, raising_at_zero),
        lambda: (normal(4, 5),),
        "backward",
    ),
    "masked by a product": (
        variadic(masked_log, lambda x, m, g: (g * m / x, None)),
        positive_with_mask,
        "gradient of `args[0]`",
    ),
    "0/0": (
        variadic(lambda x: x.abs() ** 3, cube_root_guard),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
    "product": (
        variadic(lambda x: x.prod(-1), lambda x, g: (g * x.prod(-1))[..., None] / x),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "product")
