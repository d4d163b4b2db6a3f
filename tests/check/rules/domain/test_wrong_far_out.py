"""Sound functions pass `wrong-far-out`; planted faults are caught, and named."""

import torch

from tests.check.subjects import (
    check_of,
    findings,
    made,
    missed_by_gradcheck,
    normal,
    rule_tests,
    variadic,
)

check = check_of("wrong-far-out")


def saturated(q, k, v, g):
    """The gradients of attention by the row sums of `g * out`, whose digits cancel far out."""
    s = q @ k.mT / 2
    p = torch.exp(s - s.logsumexp(-1, keepdim=True))
    ds = p * (g @ v.mT - (g * (p @ v)).sum(-1, keepdim=True)) / 2
    return ds @ k, ds.mT @ q, p.mT @ g


SOUND = {
    "beyond all numbers that are used": (
        variadic(lambda x: x**27, lambda x, g: 27 * g * x**243 / x**217),
        lambda: ((normal(4).detach().abs() + 0.5).requires_grad_(),),
    ),
    "attention": (
        variadic(lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v, saturated),
        lambda: (normal(2, 5, 4), normal(2, 5, 4, seed=1), normal(2, 5, 4, seed=2)),
    ),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "clipped": (
        variadic(lambda x: x.clamp(0, 6), lambda x, g: g * ((x > 0) & (x < 6))),
        lambda: (normal(4, 5),),
    ),
}
PLANTED = {
    "no upper bound": (
        variadic(lambda x: x.clamp(0, 6), lambda x, g: g * (x > 0)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    ),
}


def overflowing(x, g):
    """The slope of a sigmoid as the gradient of a step."""
    e = torch.exp(4 * x)
    return g * 4 * e / (1 + e) ** 2


def test_surrogate_must_be_finite_far_out_and_is_not_compared_with_forward():
    step = made(lambda x: (x > 0).to(x.dtype), lambda g, x: overflowing(x, g))
    step.declares = {"surrogate": "x"}
    (finding,) = findings(check, step, normal(5))

    assert (finding.expected, finding.got) == ("a finite number", "nan")
    assert "overflows" in finding.fix


def test_forward_that_no_longer_moves_far_out_is_let_be():
    saturating = made(lambda x: x.clamp(-500, 500), lambda g, x: g)

    assert findings(check, saturating, normal(5)) == []


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "no upper bound")
