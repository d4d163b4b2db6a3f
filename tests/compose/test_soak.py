"""A hundred thousand calls with changing shapes: memory stays flat, and the results right."""

import gc
import resource

import pytest
import torch

import pullback as pb
from pullback.run import available
from tests.compose.pipelines import Exp, Mul, Sin

pytestmark = pytest.mark.slow

CALLS, SIZES = 100_000, 997


def program(x, y):
    return Mul.apply(Exp.apply(Sin.apply(x)), y)


def resident() -> int:
    """The kilobytes that this process has in memory now."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def run(call, first, last):
    base = torch.linspace(-1, 1, SIZES + 1)
    for number in range(first, last):
        size = number % SIZES + 2
        x = base[:size].clone().requires_grad_()
        y = base[-size:].clone().requires_grad_()
        out = call(x, y)
        out.backward(torch.ones_like(out))
    return x, y


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", ["eager", "inductor", "native"])
def test_memory_stays_flat(backend):
    if backend not in available():
        pytest.skip(f"no {backend} here")
    x = torch.ones(3, requires_grad=True)
    call = pb.combine(program, x, x.detach().clone().requires_grad_(), backend=backend).apply
    run(call, 0, 5_000)
    before = resident()
    x, y = run(call, 5_000, CALLS)
    got = x.grad, y.grad
    want = torch.autograd.grad(program(x, y).sum(), (x, y))

    torch.testing.assert_close(got, want)
    assert resident() - before < 20_000
