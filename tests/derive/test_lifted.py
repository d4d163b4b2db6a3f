"""A lifted program goes through every transform, whatever Functions it is made of."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

from pullback.derive.backward import derive_function
from pullback.derive.lifted import is_kept_out, run_lifted
from pullback.errors import BatchError, CaptureError
from tests.derive.functions import differences

func = torch.func


class Cube(torch.autograd.Function):
    """x ** 3 in one method, with a saved intermediate."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx, cotangent):
        (square,) = ctx.saved_tensors
        return 3 * cotangent * square


class WithSetup(torch.autograd.Function):
    """2 * x with `setup_context` and a batching rule, without `jvp`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


GAIN = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64, requires_grad=True)


def program(x, power):
    """A gain from around, a Function, a plain value, and an index beside."""
    return {"y": Cube.apply(x * GAIN) * power, "place": x.argmax(), "power": power}


def plainly(x, power):
    return {"y": (x * GAIN) ** 3 * power, "place": x.argmax(), "power": power}


def lifted(x, power):
    return run_lifted(program, (x, power), [GAIN])


def values(function):
    return lambda x: function(x, 2.0)["y"]


def total(function):
    return lambda x: function(x, 2.0)["y"].sum()


X = torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64)
BATCH = torch.stack([X, 2 * X, -X])

NESTS = {
    "grad": lambda f: func.grad(total(f))(X),
    "vjp": lambda f: func.vjp(values(f), X)[1](X),
    "jvp": lambda f: func.jvp(values(f), (X,), (BATCH[1],)),
    "jacrev": lambda f: func.jacrev(values(f))(X),
    "jacfwd": lambda f: func.jacfwd(values(f))(X),
    "hessian": lambda f: func.hessian(total(f))(X),
    "reverse over reverse": lambda f: func.jacrev(func.jacrev(total(f)))(X),
    "forward over forward": lambda f: func.jacfwd(func.jacfwd(values(f)))(X),
    "third": lambda f: func.jacrev(func.hessian(total(f)))(X),
    "vmap": lambda f: func.vmap(values(f))(BATCH),
    "vmap of places": lambda f: func.vmap(lambda x: f(x, 2.0)["place"])(BATCH),
    "vmap of vmap": lambda f: func.vmap(func.vmap(values(f)))(BATCH[None]),
    "vmap elsewhere": lambda f: func.vmap(values(f), in_dims=1, out_dims=1)(BATCH.T),
    "vmap of grad": lambda f: func.vmap(func.grad(total(f)))(BATCH),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(values(f))(x).sum())(BATCH),
    "gradient of a closure": lambda f: torch.autograd.grad(func.vmap(values(f))(BATCH).sum(), GAIN),
    "gradient of a closure's gradient": lambda f: torch.autograd.grad(
        func.grad(total(f))(X).sum(), GAIN
    ),
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_every_nest_of_transforms_is_right(nest):
    assert differences(nest(lifted), nest(plainly)) == []


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_derived_function_is_lifted_when_it_must(nest):
    D = derive_function(program, X, 2.0)

    assert differences(nest(D.apply), nest(plainly)) == []


def test_call_without_transforms_is_that_of_the_program():
    assert differences(lifted(X, 2.0), program(X, 2.0), tolerance=0) == []


def test_tangents_can_be_differentiated():
    x = X.clone().requires_grad_()
    with forward_ad.dual_level():
        y = lifted(forward_ad.make_dual(x, torch.ones_like(x)), 1.0)["y"]
        tangent = forward_ad.unpack_dual(y).tangent

    expected = 3 * x**2 * GAIN**3

    assert differences(tangent, expected) == []
    assert differences(torch.autograd.grad(tangent.sum(), x), [6 * x * GAIN**3]) == []


def test_output_without_history_has_no_gradient():
    def with_constant(x):
        return Cube.apply(x), x.detach() + 1, x

    y, constant, same = run_lifted(with_constant, (X.clone().requires_grad_(),))

    assert [t.requires_grad for t in (y, constant, same)] == [True, False, True]
    assert same.data_ptr() != X.data_ptr()


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_draws_are_as_vmap_is_told(randomness):
    def noisy(x):
        return torch.rand_like(Cube.apply(x))

    got = func.vmap(lambda x: run_lifted(noisy, (x,)), randomness=randomness)(BATCH)

    assert torch.equal(got[0], got[1]) == (randomness == "same")


def test_draws_must_be_told_of():
    def noisy(x):
        return torch.rand_like(Cube.apply(x))

    with pytest.raises(BatchError, match="must be batched with `randomness`"):
        func.vmap(lambda x: run_lifted(noisy, (x,)))(BATCH)


def test_batch_without_samples_is_refused():
    with pytest.raises(BatchError, match="must hold a sample"):
        func.vmap(lambda x: run_lifted(program, (x, 1.0), [GAIN])["y"])(BATCH[:0])


def test_unknown_tensor_from_around_is_refused():
    with pytest.raises(CaptureError) as caught:
        run_lifted(program, (X, 2.0))

    assert str(caught.value) == (
        "E301 capture: a derived program with Functions that a transform does not know must use "
        "the tensors from outside it that it used in its examples\n"
        "  got:      another one, of shape [3]\n"
        "  fix:      pass it as an argument"
    )


# ---- when it must ----


def kept_out(function, *, tangents=False):
    return is_kept_out([function], tangents=tangents)


def test_nothing_is_kept_out_of_plain_calls():
    assert not kept_out(Cube)
    assert not is_kept_out([], tangents=True)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Cube, {"grad": True, "vmap": True, "jvp": True}),
        (WithSetup, {"grad": False, "vmap": False, "jvp": True}),
    ],
    ids=["Cube", "WithSetup"],
)
def test_transform_asks_for_what_it_needs(function, expected):
    found = {}

    def noting(name):
        def note(x):
            found[name] = kept_out(function)
            return x.sum()

        return note

    func.grad(noting("grad"))(X)
    func.vmap(noting("vmap"))(BATCH)
    func.jvp(noting("jvp"), (X,), (X,))

    assert found == expected
    assert kept_out(function, tangents=True)


def test_derived_function_is_never_kept_out():
    assert not kept_out(derive_function(program, X, 2.0), tangents=True)
