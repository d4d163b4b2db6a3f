"""Sound functions pass `default-dtype`; planted faults are caught, and named."""

import torch

from pullback.check.rules.dtype.default_dtype import check
from tests.check.subjects import findings, made, normal, rule_tests

SOUND = {
    "number": (made(lambda x: x * 0.1, lambda g, x: g * 0.1), lambda: (normal(5),)),
    "like": (
        made(lambda x: x * 0.1, lambda g, x: g * torch.full_like(g, 0.1)),
        lambda: (normal(5),),
    ),
    "cast at the end": (
        made(lambda x: x.relu(), lambda g, x: g * torch.where(x > 0, 1.0, 0.0).to(g.dtype)),
        lambda: (normal(5),),
    ),
    "wider on purpose": (
        made(lambda x: x.float().exp().to(x.dtype), lambda g, x: g.float() * x.float().exp()),
        lambda: (normal(5),),
    ),
}
PLANTED = {
    "full": (
        made(lambda x: x * 0.1, lambda g, x: g * torch.full(g.shape, 0.1)),
        lambda: (normal(5),),
        "gradient of `x`",
    ),
    "mask": (
        made(lambda a, b: a * (b > 0), lambda g, a, b: (g * torch.where(b > 0, 1.0, 0.0), None)),
        lambda: (normal(5), normal(5, seed=1).detach()),
        "gradient of `a`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)


def test_default_dtype_is_put_back():
    findings(check, *PLANTED["full"][:1], *PLANTED["full"][1]())

    assert torch.get_default_dtype() == torch.float32
