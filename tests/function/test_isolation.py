"""Inside, draws are repeatable and nothing from outside changes; outside, no trace is left."""

import random

import numpy as np
import pytest
import torch

from pullback.function.isolation import TorchState, isolated, seeded
from pullback.function.modes import uncompiled


def draws(generator):
    tensor = torch.rand(1).item()
    own = torch.rand(1, generator=generator).item()
    return tensor, own, random.random(), np.random.rand()


def states(generator):
    numpy = np.random.get_state()
    return (
        torch.get_rng_state().tolist(),
        generator.get_state().tolist(),
        random.getstate(),
        numpy[1].tolist(),
        numpy[2],
    )


def test_same_seed_gives_same_draws():
    generator = torch.Generator()
    found = []
    for seed in (0, 1, 0):
        with isolated([generator], seed):
            found.append(draws(generator))

    assert found[0] == found[2]
    assert all(a != b for a, b in zip(found[0], found[1], strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_random_states_come_back(fails):
    generator = torch.Generator()
    before = states(generator)
    try:
        with isolated([1, generator, "text"], 0):
            draws(generator)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass

    assert states(generator) == before


CHANGES = {
    "in place": lambda x: x.mul_(2),
    "through a view": lambda x: x[:1].add_(1),
    "by index": lambda x: x.__setitem__(0, 5.0),
    "out=": lambda x: torch.add(torch.ones(2), 1, out=x),
    "detached": lambda x: x.detach().zero_(),
    "data": lambda x: x.data.zero_(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_outside_tensor_cannot_change(change):
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="changes a tensor in place"), isolated([x], 0):
        change(x)

    assert x.tolist() == [1.0, 1.0]


def test_own_tensor_may_change():
    x = torch.ones(2)
    with isolated([x], 0):
        y = torch.empty_like(x)
        y.copy_(x).mul_(2)
        y[0] = 5.0
        torch.add(y, 1, out=y)
        z = x.clone()
        z.view(2, 1).add_(1)

    assert y.tolist() == [6.0, 3.0]
    assert z.tolist() == [2.0, 2.0]
    assert x.tolist() == [1.0, 1.0]


def test_gradients_are_recorded_inside():
    x = torch.ones(2, requires_grad=True)
    with isolated([x], 0):
        y = x * 3

    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [3.0, 3.0]


def test_dynamo_compiles_again_once_all_have_left():
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    part = torch.compile(torch.sin, backend=backend)
    first, second = uncompiled(), uncompiled()
    with first:
        second.__enter__()
        part(torch.ones(2))
    part(torch.ones(2))  # the second is still inside

    assert not compiled

    second.__exit__(None, None, None)
    part(torch.ones(2))

    assert len(compiled) == 1


def test_calls_on_graphs_are_let_through():
    def cond(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.ones(3)
    expected = cond(x)
    with isolated([x], 0):
        inside = cond(x)

    assert torch.equal(inside, expected)
    assert torch.equal(cond(x), expected)


def test_same_numbers_come_again():
    then = TorchState()
    first = torch.rand(3)
    with then.again():
        again = torch.rand(3)

    assert torch.equal(again, first)


def test_numbers_of_now_go_on_afterwards():
    torch.manual_seed(1)
    then = TorchState()
    torch.rand(3)
    expected = torch.get_rng_state()
    with then.again():
        torch.rand(7)

    assert torch.equal(torch.get_rng_state(), expected)


def test_drawing_is_noticed():
    then = TorchState()
    before = then.is_now()
    torch.rand(1)

    assert before
    assert not then.is_now()


def test_seeded_numbers_leave_the_state_alone():
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    with seeded(5):
        first = torch.rand(3)
    with seeded(5):
        again = torch.rand(3)

    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), expected)
