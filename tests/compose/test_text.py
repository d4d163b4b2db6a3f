"""Units as a Python function: containers, several outputs, modes, and values that are let go."""

import gc
import weakref

import torch

from pullback.capture.units import Ref, Unit, record
from pullback.compose.text import NodeCall, units_function


def function_for(program, *args):
    units = record(program, *args)
    outputs = [output.number for output in units.outputs]
    return units_function("run", units.units, [n for n, _ in units.inputs], outputs)


def test_function_makes_the_calls():
    x = torch.randn(3, 4)

    def program(x):
        a, b = x.chunk(2, dim=-1)
        with torch.no_grad():
            mask = a > 0
        return torch.cat([torch.where(mask, a, b), b], -1), mask

    got, expected = function_for(program, x)(x), program(x)

    assert all(map(torch.equal, got, expected))


def test_modes_of_a_unit_are_entered():
    x = torch.ones(3, requires_grad=True)

    def program(x):
        with torch.no_grad():
            y = x * 2
        return y * x

    (got,) = function_for(program, x)(x)

    assert torch.autograd.grad(got.sum(), x)[0].tolist() == [2.0] * 3


def test_tensors_inside_dicts_are_filled():
    def target(pair):
        return pair["a"] * pair["k"]

    unit = Unit(
        number=0,
        name="scaled",
        kind="op",
        place="",
        inputs=(0,),
        outputs=(1,),
        changed=(),
        target=target,
        args=({"a": Ref(0), "k": 3},),
        kwargs={},
        modes=None,
    )
    (got,) = units_function("run", [unit], [0], [1])(torch.ones(2))

    assert got.tolist() == [3.0, 3.0]


def test_values_are_let_go_after_use():
    held, alive = [], []

    def make(x):
        y = x * 2
        held.append(weakref.ref(y))
        return (y,)

    def look(x):
        gc.collect()
        alive.append(held[0]() is not None)
        return (x + 1,)

    steps = [
        NodeCall(make, (0,), (1,)),
        NodeCall(lambda y: (y * 3,), (1,), (2,)),
        NodeCall(look, (2,), (3,)),
    ]
    units_function("run", steps, [0], [3])(torch.ones(2))

    assert alive == [False]


def test_constants_are_values_of_their_own():
    run = units_function(
        "run", [NodeCall(lambda x, c: (x + c,), (0, 5), (6,))], [0], [6], {5: torch.ones(2)}
    )

    assert run(torch.ones(2))[0].tolist() == [2.0, 2.0]
