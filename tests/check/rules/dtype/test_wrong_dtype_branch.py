"""Sound functions pass `wrong-dtype-branch`; planted faults are caught, and named."""

import torch

from pullback.check.findings.finding import Severity
from pullback.check.rules.dtype.wrong_dtype_branch import check
from tests.check.subjects import findings, missed_by_gradcheck, normal, rule_tests, variadic


def half_in(dtype):
    """The derivative of a square, halved in one dtype."""
    return lambda x, g: x * g if x.dtype == dtype else 2 * x * g


def complex_normal():
    """Complex numbers in double precision."""
    return (torch.complex(normal(4).detach(), normal(4, seed=1).detach()).requires_grad_(),)


def solved(x, g):
    """The same by a solver that has no kernel for half precision on a CPU."""
    return torch.linalg.solve(torch.eye(len(x), dtype=x.dtype), 2 * x * g)


SOUND = {
    "no kernel": (variadic(lambda x: x * x, solved), lambda: (normal(4, 5),)),
    "complex": (variadic(lambda z: z * z, lambda z, g: 2 * z.conj() * g), complex_normal),
    "square": (variadic(lambda x: x * x, lambda x, g: 2 * x * g), lambda: (normal(4, 5),)),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    str(dtype): (
        variadic(lambda x: x * x, half_in(dtype)),
        lambda: (normal(4, 5),),
        "gradient of `args[0]`",
    )
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
}
PLANTED["complex64"] = (
    variadic(lambda z: z * z, lambda z, g: g * (z if z.dtype == torch.complex64 else 2 * z.conj())),
    complex_normal,
    "gradient of `args[0]`",
)


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "torch.float32")


def test_backward_for_given_dtype_is_fragile():
    target = variadic(lambda x, m: x @ m, lambda x, m, g: (g @ m.float().t(), x.t() @ g))
    given = [normal(4, 4, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    found = findings(check, target, *given)

    assert [finding.severity for finding in found] == [Severity.FRAGILE]
    assert found[0].expected == "gradients, as in float32"
