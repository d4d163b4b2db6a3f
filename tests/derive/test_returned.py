"""What `derive` and the compositions return: a class that is called like the program, and named."""

import copy
import warnings

import pytest
import torch

import pullback as pb
from pullback.derive.returned import record_of
from pullback.errors import CaptureError
from pullback.function.plain import is_derived

X = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)


def swish(x, scale=1.0):
    return x * torch.sigmoid(scale * x)


MADE = {
    "derive": lambda **more: pb.derive(swish, X, **more),
    "combine": lambda **more: pb.combine(swish, X, backend="eager", **more),
    "hybrid": lambda **more: pb.hybrid(swish, X, groups=[(0, 1)], backend="eager", **more),
    "nest": lambda **more: pb.nest(swish, **more),
}

every = pytest.mark.parametrize("verb", MADE)


@every
def test_call_is_apply(verb):
    made = MADE[verb]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns where a Function is instantiated
        called = made(X, scale=2.0)

    expected = made.apply(X, scale=2.0)
    (gradient,) = torch.autograd.grad(called.sum(), X)
    assert called.equal(expected)
    assert called.grad_fn.name() == expected.grad_fn.name()
    assert gradient.equal(torch.autograd.grad(expected.sum(), X)[0])


@every
def test_it_is_still_a_function_class(verb):
    made = MADE[verb]()

    assert isinstance(made, type)
    assert issubclass(made, pb.Function)
    assert copy.deepcopy(made) is made
    assert made.program is swish
    assert isinstance(made.explain(), str)


@every
def test_call_is_read_by_the_compiler(verb):
    made = MADE[verb]()
    compiled = torch.compile(lambda x: made(x).cos(), backend="eager", fullgraph=True)

    assert torch.allclose(compiled(X), swish(X).cos())


@every
def test_transforms_go_through_a_call(verb):
    made = MADE[verb]()

    got = torch.func.vmap(torch.func.grad(lambda x: made(x)))(X.detach())

    assert torch.allclose(got, torch.func.vmap(torch.func.grad(swish))(X.detach()))


@every
def test_name_is_that_of_class_and_node(verb):
    made = MADE[verb](name="my_gate")

    assert made.__name__ == made.__qualname__ == "MyGate"
    if verb in ("derive", "combine"):
        assert made(X).grad_fn.name() == "MyGateBackward"


def test_name_is_that_of_source_and_op():
    made = pb.derive(lambda x: x.sin(), X, name="gate")

    assert "class Gate(torch.autograd.Function):" in made.source()
    assert "class Gate(torch.autograd.Function):" in pb.emit(made)
    assert 'm.impl("gate"' in pb.emit(made, "cpp", verify=False)


def test_two_lambdas_are_two_ops():
    made = [pb.derive(one, X) for one in (lambda x: x.sin(), lambda x: x.cos())]

    assert len({one.__name__ for one in made}) == 2
    outs = [one(X) for one in made]
    assert len({out.grad_fn.name() for out in outs}) == 2


@pytest.mark.parametrize("verb", ["hybrid", "nest"])
@pytest.mark.parametrize("method", ["source", "frontier"])
def test_what_is_not_one_node_has_no_source(verb, method):
    with pytest.raises(CaptureError, match="`Swish` must be one node") as raised:
        getattr(MADE[verb](), method)()

    assert "pb.emit" in raised.value.facts["fix"]


# ---- the marker ----


class Written(pb.Function):
    """A class that somebody wrote, with the names that a derived one has."""

    program = frontier = explain = staticmethod(torch.sin)

    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g


@every
def test_what_is_made_of_a_program_says_so(verb):
    made = MADE[verb]()

    assert is_derived(made)
    assert made.program is swish


def test_one_node_has_a_record_of_how_it_was_made():
    assert record_of(pb.derive(swish, X)).program is swish


@pytest.mark.parametrize("thing", [Written, torch.sin, torch.nn.Linear, 3])
def test_what_somebody_wrote_does_not(thing):
    assert not is_derived(thing)


# ---- constants ----


def returns_its_numbers(x):
    numbers = torch.tensor([1.0, 2.0, 3.0])
    return x * numbers, numbers, numbers[1:]


RETURNING = {
    "derive": lambda x: pb.derive(returns_its_numbers, x).apply,
    "combine": lambda x: pb.combine(returns_its_numbers, x, backend="eager").apply,
    "hybrid": lambda x: pb.hybrid(returns_its_numbers, x, groups=[(0,)], backend="eager").apply,
    "text": lambda x: _printed(pb.derive(returns_its_numbers, x)).apply,
}


def _printed(derived):
    space = {}
    exec(derived.source(), space)
    return space[derived.__name__]


@pytest.mark.parametrize("way", RETURNING)
def test_numbers_that_are_returned_are_new_at_each_call(way):
    x = torch.ones(3, requires_grad=True)
    call = RETURNING[way](x)
    for tensor in call(x)[1:]:
        tensor.mul_(10)

    assert [y.tolist() for y in call(x)] == [[1, 2, 3], [1, 2, 3], [2, 3]]


def test_views_of_numbers_share_memory_as_in_the_program():
    _, numbers, part = pb.derive(returns_its_numbers, torch.ones(3)).apply(torch.ones(3))
    numbers.mul_(10)

    assert part.tolist() == [20, 30]
