"""A backward that leaves some of its gradients to be derived, with `pb.derived`."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import grad, gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import pullback as pb
from pullback.errors import MissingBackwardError
from tests.derive.functions import differences


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def message(call):
    with pytest.raises(MissingBackwardError) as caught:
        call()
    return str(caught.value)


def plain(x, w, power=2.0, bias=None):
    y = torch.tanh(x * w) ** power
    return y if bias is None else y + bias


class Part(pb.Function):
    """The gradient of `x` by hand, three times too large; the others are left out."""

    @staticmethod
    def forward(ctx, x, w, power=2.0, bias=None):
        ctx.save_for_backward(x)
        return plain(x, w, power, bias)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return {"x": 3 * cotangent * x, "w": pb.derived, "bias": pb.derived, "power": None}


class PartApart(pb.Function):
    """The same, with `setup_context` and a tuple."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w, power=2.0, bias=None):
        return plain(x, w, power, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * cotangent * x, pb.derived, None, pb.derived


parts = pytest.mark.parametrize("function", [Part, PartApart], ids=["one", "apart"])
one_part_then_both = pytest.mark.parametrize(
    "function", [Part, pytest.param(PartApart, marks=pytest.mark.slow)], ids=["one", "apart"]
)


@parts
@pytest.mark.parametrize("power", [2.0, 3.0])
def test_rest_is_derived_and_written_stays(function, power):
    x, w, bias = normal(2, 3), normal(3), normal(3)
    got = grad(function.apply(x, w, power, bias).sum(), (x, w, bias))
    expected = grad(plain(x, w, power, bias).sum(), (w, bias))

    assert differences(got, [3 * x, *expected]) == []


@parts
def test_rest_serves_missing_inputs(function):
    x, w = normal(2, 3).detach(), normal(3)

    assert differences(grad(function.apply(x, w).sum(), w), grad(plain(x, w).sum(), w)) == []
    assert differences(grad(function.apply(w, x).sum(), w), [(3 * w).expand(2, 3).sum(0)]) == []


@parts
def test_rest_is_differentiated_again(function):
    x, w, bias = normal(2, 3), normal(3), normal(3)

    def rest(x, w, bias):
        return grad(function.apply(x, w, 2.0, bias).sum(), (w, bias), create_graph=True)[0]

    assert gradcheck(rest, (x, w, bias))


def test_one_tensor_in_two_places_has_both():
    class Product(pb.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * b.exp()

        @staticmethod
        def backward(ctx, cotangent):
            return pb.derived, pb.derived

    x = normal(3)

    assert differences(grad(Product.apply(x, x).sum(), x), [x.exp() * (1 + x)]) == []


class Count(TorchDispatchMode):
    """How many matrix products run."""

    def __init__(self):
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def products_of(function, arguments, wanted):
    out = function(*arguments).sum()
    with Count() as count:
        grad(out, wanted)
    return count.products


class Layers(pb.Function):
    @staticmethod
    def forward(ctx, x, v, w):
        return (x @ v).tanh() @ w

    @staticmethod
    def backward(ctx, cotangent):
        return pb.derived, pb.derived, pb.derived


@pytest.mark.parametrize(("place", "products"), [(0, 2 + 2), (1, 2 + 2), (2, 2 + 1)])
def test_only_what_is_asked_is_computed(place, products):
    arguments = [normal(4, 4) for _ in range(3)]
    grad(Layers.apply(*arguments).sum(), arguments[place])  # looks at it, once

    assert products_of(Layers.apply, arguments, arguments[place]) == products


def test_lists_may_be_left_out():
    class Lists(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, xs, *, w):
            return (xs[0] * xs[1] * w).tanh()

        @staticmethod
        def backward(ctx, cotangent):
            return {"xs": pb.derived, "w": pb.derived}

    assert gradcheck(lambda x, w: Lists.apply([x, x + 1], w=w), (normal(2, 3), normal(3)))


def test_absent_cotangent_is_no_cotangent():
    class Two(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.sin(), x.cos(), x.argmax()

        @staticmethod
        def backward(ctx, *cotangents):
            return pb.derived

    x = normal(3)

    assert differences(grad(Two.apply(x)[1].sum(), x), [-x.sin()]) == []


def test_boxed_cotangents_may_be_emptied():
    class Boxed(pb.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, cotangents):
            cotangents.clear()
            return pb.derived

    x = normal(3)

    assert differences(grad(Boxed.apply(x).sum(), x), [x.cos()]) == []


def test_inputs_are_kept_for_the_rest():
    class Kept(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            assert ctx.saved_tensors == ()
            return pb.derived

    x = normal(3)
    y = 2 * x
    out = Kept.apply(y)
    expected = 2 * y.detach().cos()
    del y

    assert differences(grad(out.sum(), x), [expected]) == []

    y = 2 * x
    out = Kept.apply(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_rest_is_derived_under_transforms():
    x, w = normal(2, 3).detach(), normal(3).detach()
    for transform in (
        lambda f: torch.func.grad(lambda w: f(x, w).sum())(w),
        lambda f: torch.func.jacrev(lambda w: f(x, w))(w),
        lambda f: torch.func.grad(lambda w: torch.func.grad(lambda w: f(x, w).sum())(w).sum())(w),
        lambda f: torch.vmap(torch.func.grad(lambda x, w: f(x, w).sum(), 1), (0, None))(x, w),
        lambda f: torch.func.grad(lambda w: torch.vmap(f, (0, None))(x, w).sum())(w),
    ):
        assert differences(transform(PartApart.apply), transform(plain)) == []

    hand = torch.func.grad(lambda x: PartApart.apply(x, w).sum())(x)

    assert differences([hand], [3 * x]) == []


@one_part_then_both
def test_rest_is_derived_around_compiled_code(function):
    compiled = torch.compile(lambda x, w: function.apply(x, w) + 1, backend="aot_eager")
    x, w = normal(2, 3), normal(3)
    got = grad(compiled(x, w).sum(), (x, w))

    assert differences(got, [3 * x, *grad(plain(x, w).sum(), w)]) == []


@one_part_then_both
def test_rest_is_derived_in_compiled_autograd(function):
    x, w = normal(2, 3), normal(3)
    out = function.apply(x, w).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        out.backward()

    assert differences([x.grad, w.grad], [3 * x, *grad(plain(x, w).sum(), w)]) == []


def left_out(ctx, cotangent):
    return pb.derived


def leaving(forward):
    """A Function with this forward, which leaves its one gradient to be derived."""
    return type(
        "Leaving",
        (pb.Function,),
        {
            "forward": staticmethod(forward),
            "backward": staticmethod(left_out),
        },
    )


def draws(ctx, x):
    return x * torch.rand_like(x)


def changes(ctx, x):
    ctx.mark_dirty(x)
    return x.mul_(2)


def leaves_autograd(ctx, x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


def leaves_half_of_it(ctx, x):
    return x * torch.from_numpy(np.sin(x.detach().numpy()))


UNDERIVABLE = {
    draws: "`forward` draws random numbers (aten.rand_like.default)",
    changes: "`forward` changes `x` in place",
    leaves_autograd: "`forward` computes its output outside autograd "
    "(detach, no_grad, numpy, a kernel)",
    leaves_half_of_it: "`forward` moves otherwise than autograd sees "
    "(detach, no_grad, numpy, a kernel)",
}


@pytest.mark.parametrize("forward", UNDERIVABLE, ids=lambda f: f.__name__)
def test_rest_that_cannot_be_derived_is_told(forward):
    function = leaving(forward)
    out = function.apply(normal(3) * 1)
    line = left_out.__code__.co_firstlineno

    assert message(out.sum().backward) == (
        "E101 missing-backward: `Leaving.backward` must return a gradient for `x`, which cannot "
        "be derived\n"
        f"  at:       test_unwritten.py:{line}\n"
        "  expected: a tensor or `None`\n"
        f"  got:      `pb.derived`; {UNDERIVABLE[forward]}\n"
        "  fix:      compute the gradient of `x` in `backward`"
    )


def test_random_rest_is_refused_under_transforms():
    class Draws(pb.Function):
        @staticmethod
        def forward(x):
            return x * torch.rand_like(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            return pb.derived

    told = message(lambda: torch.func.grad(lambda x: Draws.apply(x).sum())(torch.ones(3)))

    assert "`pb.derived`; `forward` draws random numbers" in told


def elsewhere():
    return pb.derived


def test_rest_from_elsewhere_is_told():
    class Hidden(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, cotangent):
            return elsewhere()

    told = message(Hidden.apply(normal(3)).sum().backward)

    assert "the inputs were not kept" in told
    assert "fix:      write `pb.derived` in `backward` itself" in told


def test_derived_is_one_thing():
    assert repr(pb.derived) == "pb.derived"
    assert pickle.loads(pickle.dumps(pb.derived)) is pb.derived
    assert copy.deepcopy(pb.derived) is pb.derived
