"""Sound functions pass `unequal-guard`; planted faults are caught, and named."""

import torch

from pullback.check.rules.domain.unequal_guard import check
from tests.check.subjects import findings, made, missed_by_gradcheck, normal, rule_tests

X = normal(4, 5)


def smooth_abs(x):
    return (x * x + 1e-12).sqrt()


def stopped_early(x):
    """`2 x`, by steps that end at a tolerance: closer than that its slope is another one."""
    return torch.where(x.abs() < 1e-4, 3 * x, 2 * x)


SOUND = {
    "a solver with a tolerance": (made(stopped_early, lambda g, x: 2 * g), (X,)),
    "the same constant": (
        made(smooth_abs, lambda g, x: g * x / (x * x + 1e-12).sqrt()),
        (X,),
    ),
    "a small guard of backward's own": (
        made(lambda x: x.norm(dim=-1), lambda g, x: (g / (x.norm(dim=-1) + 1e-12))[:, None] * x),
        (X,),
    ),
    "a bound of backward's own next to a pole": (
        made(
            lambda x: 1 / x.abs().sqrt(), lambda g, x: -g * x.sign() / 2 / (x.abs() + 1e-9) ** 1.5
        ),
        (X,),
    ),
    "noise where numbers cancel": (
        made(lambda x: x.sin() / x, lambda g, x: g * (x * x.cos() - x.sin()) / (x * x)),
        (X,),
    ),
    "square": (made(lambda x: x * x, lambda g, x: 2 * g * x), (X,)),
    "maximum of two": (
        made(lambda x, y: torch.maximum(x, y), lambda g, x, y: (g * (x >= y), g * (x < y))),
        (X, normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "another constant": (
        made(smooth_abs, lambda g, x: g * x / (x * x + 1e-10).sqrt()),
        (X,),
        "gradient of `x`",
    ),
    "another constant, much smaller": (
        made(lambda x: (x.abs() + 1e-9).log(), lambda g, x: g * x.sign() / (x.abs() + 1e-11)),
        (X,),
        "gradient of `x`",
    ),
    "a large guard of backward's own": (
        made(lambda x: x.abs(), lambda g, x: g * x / (x.abs() + 3e-7)),
        ((X.detach().abs() + 1).requires_grad_(),),
        "gradient of `x`",
    ),
    "a guard of backward's own, inside of the root": (
        made(
            lambda x: x.norm(dim=-1),
            lambda g, x: g[:, None] * x / ((x * x).sum(-1, True) + 1e-20).sqrt(),
        ),
        (X,),
        "gradient of `x`",
    ),
    "a small guard of backward's own": (
        made(lambda x: x.abs(), lambda g, x: g * x / (x.abs() + 1e-9)),
        (X,),
        "gradient of `x`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "another constant")


def test_wrong_entries_are_counted():
    guards = torch.tensor([[1e-12], [1e-12], [1e-12], [1e-10]], dtype=torch.float64)
    target = made(smooth_abs, lambda g, x: g * x / (x * x + guards).sqrt())

    (finding,) = findings(check, target, X)

    assert "wrong in 5 of 20 entries" in finding.at
