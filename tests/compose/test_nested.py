"""`nest`: a program as it is written, behind the face of a Function."""

import pytest
import torch

import pullback as pb
from pullback.capture.units import record
from tests.compose.pipelines import Silu, chain, square_sin


def pair():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


def test_nested_runs_as_written():
    x, y = pair()
    nested = pb.nest(square_sin)
    out = nested.apply(x, y=y)

    assert issubclass(nested, pb.Function)
    assert torch.equal(out, square_sin(x, y))
    assert out.grad_fn.name() == "MulBackward"
    assert nested.explain() == "nested: as written"
    assert (nested.__name__, nested.composed) == ("SquareSin", "nested")


def test_nested_may_decide_on_values():
    nested = pb.nest(lambda x: x.sin() if x.sum() > 0 else -x)

    assert nested.apply(torch.tensor([-1.0])).tolist() == [1.0]


def test_nested_is_transparent_to_recording():
    x, y = pair()
    nested = pb.nest(chain)
    units = record(lambda x, y: nested.apply(x, y) * 2, x, y)

    assert [unit.name for unit in units.units] == ["Sin", "Exp", "Tanh", "Mul", "mul"]


def test_nested_raises_what_the_program_raises():
    def program(x):
        raise KeyError(x.shape)

    with pytest.raises(KeyError):
        pb.nest(program).apply(torch.ones(2))


def test_nested_function_class_is_its_apply():
    x, _ = pair()

    assert pb.nest(Silu).apply(x).grad_fn.name() == "SiluBackward"


@pytest.mark.slow
def test_nested_is_sound():
    assert pb.check(pb.nest(chain), pair()).findings == ()
