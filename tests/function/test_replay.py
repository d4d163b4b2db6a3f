"""Double backward through tensors that `forward` computed: right, or an error that names them."""

import contextlib
import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import DoubleBackwardError


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def second(apply, *inputs):
    """The derivative of `sum(gradient ** 2)`: what a gradient penalty computes."""
    gradients = torch.autograd.grad(apply(*inputs).sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum((g * g).sum() for g in gradients), inputs)


def right_or_named(name, apply, reference, *inputs):
    """Whether `apply` differentiates twice like `reference`, or raises with `name` in the text."""
    try:
        got = second(apply, *inputs)
    except DoubleBackwardError as error:
        return name in error.rule
    return all(map(torch.allclose, got, second(reference, *inputs)))


def saving(keep, read, compute, pull):
    """A Function that computes one intermediate, keeps it by `keep` and reads it by `read`."""

    class Saving(pb.Function):
        @staticmethod
        def forward(ctx, x):
            middle, output = compute(x)
            keep(ctx, middle, x)
            return output

        @staticmethod
        def backward(ctx, cotangent):
            return pull(*read(ctx), cotangent)

    return Saving


def keep_saved(ctx, middle, x):
    ctx.save_for_backward(middle, x)


def read_saved(ctx):
    return ctx.saved_tensors


def keep_attributes(ctx, middle, x):
    ctx.temp, ctx.inp = middle, x


def read_attributes(ctx):
    return ctx.temp, ctx.inp


def keep_data(ctx, middle, x):
    ctx.saved_data["temp"], ctx.saved_data["inp"] = middle, x


def read_data(ctx):
    return ctx.saved_data["temp"], ctx.saved_data["inp"]


def keep_alone(ctx, middle, x):
    ctx.save_for_backward(middle)


def read_alone(ctx):
    return ctx.saved_tensors[0], None


def keep_attribute_alone(ctx, middle, x):
    ctx.temp = middle


def read_attribute_alone(ctx):
    return ctx.temp, None


def keep_data_alone(ctx, middle, x):
    ctx.saved_data["temp"] = middle


def read_data_alone(ctx):
    return ctx.saved_data["temp"], None


WITH_INPUT = {
    "save_for_backward": (keep_saved, read_saved),
    "attributes": (keep_attributes, read_attributes),
    "saved_data": (keep_data, read_data),
}
WITHOUT_INPUT = {
    "save_for_backward": (keep_alone, read_alone),
    "attribute": (keep_attribute_alone, read_attribute_alone),
    "saved_data": (keep_data_alone, read_data_alone),
}
with_input = pytest.mark.parametrize(("keep", "read"), WITH_INPUT.values(), ids=WITH_INPUT)
without_input = pytest.mark.parametrize(("keep", "read"), WITHOUT_INPUT.values(), ids=WITHOUT_INPUT)


# ---- the two published repros ----

# https://github.com/pytorch/pytorch/issues/76185: `temp / inp` is 2, yet depends on both.


def compute_temp(x):
    temp = x * 2
    return temp, temp * 3


def pull_temp(temp, x, cotangent):
    return cotangent * torch.full_like(cotangent, 3) * temp / x


# https://github.com/pytorch/pytorch/issues/104040 and 58509: the square of `2 x`.


def compute_interm(x):
    interm = x * 2
    return interm, interm**2


def pull_interm(interm, _, cotangent):
    return 2 * 2 * interm * cotangent


@with_input
def test_constant_quotient_differentiates_twice(keep, read):
    function = saving(keep, read, compute_temp, pull_temp)
    x = leaf(0.5, -1.5, 2.0)

    assert torch.autograd.gradcheck(function.apply, (x,))
    assert torch.autograd.gradgradcheck(function.apply, (x,))


@with_input
def test_constant_quotient_behind_another_op(keep, read):
    function = saving(keep, read, compute_temp, pull_temp)
    x = leaf(0.5, -1.5, 2.0)

    assert torch.autograd.gradgradcheck(lambda x: function.apply(x.exp()), (x,))


@with_input
def test_square_differentiates_twice(keep, read):
    function = saving(keep, read, compute_interm, pull_interm)
    x = leaf(0.5, -1.5, 2.0)

    assert torch.autograd.gradgradcheck(function.apply, (x,))


@with_input
def test_square_behind_another_op(keep, read):
    function = saving(keep, read, compute_interm, pull_interm)
    x = leaf(0.5, -1.5, 2.0)

    assert torch.autograd.gradgradcheck(lambda x: function.apply(x.exp()), (x,))


@without_input
def test_leaf_that_was_not_saved(keep, read):
    function = saving(keep, read, compute_interm, pull_interm)
    x = leaf(0.5, -1.5, 2.0)

    assert torch.autograd.gradgradcheck(function.apply, (x,))


@without_input
def test_held_input_that_was_not_saved(keep, read):
    function = saving(keep, read, compute_interm, pull_interm)
    x, held = leaf(0.5, -1.5, 2.0), []

    def apply(x):
        held.append(x.exp())
        return function.apply(held[-1])

    assert torch.autograd.gradgradcheck(apply, (x,))


@without_input
def test_dropped_input_is_right_or_named(keep, read):
    name = "saved tensor 0" if keep is keep_alone else "temp"
    function = saving(keep, read, compute_interm, pull_interm)

    assert right_or_named(
        name, lambda x: function.apply(x.exp()), lambda x: 4 * x.exp() ** 2, leaf(0.5, -1.5)
    )


def test_torch_is_silently_wrong_here():
    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            interm = x * 2
            ctx.save_for_backward(interm)
            return interm**2

        @staticmethod
        def backward(ctx, cotangent):
            (interm,) = ctx.saved_tensors
            return 4 * interm * cotangent

    x = leaf(0.5, 2.0)
    (gradient,) = torch.autograd.grad((Silent.apply(x) * x).sum(), x, create_graph=True)
    (got,) = torch.autograd.grad(gradient.sum(), x)

    assert not torch.allclose(got, 24 * x)


# ---- what may be saved ----


class Several(pb.Function):
    """sin(x) cos(y) + x y, from four intermediates in three kinds of places."""

    @staticmethod
    def forward(ctx, x, y):
        sin_x, cos_x, sin_y, cos_y = x.sin(), x.cos(), y.sin(), y.cos()
        ctx.save_for_backward(sin_x, cos_x, x)
        ctx.sin_y = sin_y
        ctx.saved_data["cos_y"] = cos_y
        ctx.y = y
        return sin_x * cos_y + x * y

    @staticmethod
    def backward(ctx, cotangent):
        sin_x, cos_x, x = ctx.saved_tensors
        cos_y = ctx.saved_data["cos_y"]
        return cotangent * (cos_x * cos_y + ctx.y), cotangent * (x - sin_x * ctx.sin_y)


def test_several_intermediates_differentiate_twice():
    assert torch.autograd.gradgradcheck(Several.apply, (leaf(0.3, 1.2), leaf(-0.4, 0.7)))


def test_one_input_alone_needs_gradient():
    y = leaf(-0.4, 0.7).detach()

    assert torch.autograd.gradgradcheck(lambda x: Several.apply(x, y), (leaf(0.3, 1.2),))


def test_same_tensor_in_two_slots():
    class Cube(pb.Function):
        @staticmethod
        def forward(ctx, x, y):
            product = x * y
            ctx.save_for_backward(product, product, x, y)
            ctx.product = product
            return product**3

        @staticmethod
        def backward(ctx, cotangent):
            first, again, x, y = ctx.saved_tensors
            return cotangent * 3 * first * again * y, cotangent * 3 * ctx.product * first * x

    assert torch.autograd.gradgradcheck(Cube.apply, (leaf(0.5, 2.0), leaf(1.5, -0.5)))


def test_same_tensor_as_both_inputs():
    class Product(pb.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x * 1, y * 1)
            return x * y

        @staticmethod
        def backward(ctx, cotangent):
            x, y = ctx.saved_tensors
            return cotangent * y, cotangent * x

    assert torch.autograd.gradgradcheck(lambda x: Product.apply(x, x), (leaf(0.5, 2.0),))


def test_fourth_order_is_right():
    class Fourth(pb.Function):
        @staticmethod
        def forward(ctx, x):
            square = x**2
            ctx.save_for_backward(square, x)
            return square * square

        @staticmethod
        def backward(ctx, cotangent):
            square, x = ctx.saved_tensors
            return cotangent * 4 * square * x

    x, orders = leaf(2.0), []
    y = Fourth.apply(x)
    for _ in range(4):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        orders.append(y.item())

    assert orders == [32.0, 48.0, 48.0, 24.0]


def test_third_order_from_intermediate_alone():
    class Sine(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.cos = x.cos()
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.cos

    x, orders = leaf(0.3), []
    y = Sine.apply(x)
    for _ in range(3):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        orders.append(y.detach())

    assert torch.allclose(torch.cat(orders), torch.cat([x.cos(), -x.sin(), -x.cos()]))


def test_complex_intermediate_is_conjugated_right():
    function = saving(keep_alone, read_alone, compute_interm, lambda m, _, g: g * (4 * m).conj())
    x = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128, requires_grad=True)

    assert torch.autograd.gradgradcheck(function.apply, (x,))


def test_view_of_an_output_is_recomputed():
    class Exp(pb.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y.view(-1))
            return y

        @staticmethod
        def backward(ctx, cotangent):
            (flat,) = ctx.saved_tensors
            return cotangent * flat.view_as(cotangent)

    assert torch.autograd.gradgradcheck(Exp.apply, (torch.rand(2, 2).double().requires_grad_(),))


def test_setup_context_style_differentiates_twice():
    class Square(pb.Function):
        @staticmethod
        def forward(x, factor):
            return (x * factor) ** 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.factor = inputs
            ctx.save_for_backward(x * ctx.factor)

        @staticmethod
        def backward(ctx, cotangent):
            (scaled,) = ctx.saved_tensors
            return 2 * cotangent * scaled * ctx.factor, None

    assert torch.autograd.gradgradcheck(lambda x: Square.apply(x, 3.0), (leaf(0.5, 2.0),))


def test_keyword_only_and_list_inputs():
    class Weighted(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, tensors, *, weight):
            ctx.first, ctx.second = tensors[0] * weight, tensors[1] * weight
            ctx.weight = weight
            return ctx.first * ctx.second

        @staticmethod
        def backward(ctx, cotangent):
            first, second = ctx.first, ctx.second
            of_weight = 2 * first * second / ctx.weight
            row = [cotangent * second * ctx.weight, cotangent * first * ctx.weight]
            return {"tensors": row, "weight": cotangent * of_weight}

    inputs = leaf(0.5, 2.0), leaf(1.5, -0.5), leaf(0.7, 1.1)

    def apply(a, b, w):
        return Weighted.apply([a, b], weight=w)

    assert torch.autograd.gradcheck(apply, inputs)
    assert torch.autograd.gradgradcheck(apply, inputs)


def test_forward_may_use_every_context_name():
    class Square(pb.Function):
        @staticmethod
        def forward(ctx, x):
            sign = x.sign()
            ctx.mark_non_differentiable(sign)
            ctx.set_materialize_grads(False)
            assert ctx.get_non_differentiable() == (sign,)
            assert ctx.get_and_bump_dirty() == ()
            assert ctx.needs_input_grad(0)
            assert ctx.needs_input_grad[0]
            ctx.save_for_backward(x * 2)
            ctx.saved = "an attribute of the user's"
            ctx.saved_data["k"] = 1
            return x * x, sign

        @staticmethod
        def backward(ctx, cotangent, _):
            return cotangent * ctx.get_saved_variables()[0]

    assert torch.autograd.gradgradcheck(lambda x: Square.apply(x)[0], (leaf(0.5, -2.0),))


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_deleted_attribute_moves_no_other(when):
    class Product(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.scratch, ctx.double, ctx.triple = x * 5, x * 2, x * 3
            if when == "forward":
                del ctx.scratch
            return ctx.double * ctx.triple

        @staticmethod
        def backward(ctx, cotangent):
            double = ctx.double
            if when == "backward":
                del ctx.scratch, ctx.double
            return cotangent * (double * 3 + ctx.triple * 2)

    assert torch.autograd.gradgradcheck(Product.apply, (leaf(0.5, -2.0),))


# ---- what is a constant indeed ----


def masked(make_mask):
    """`mask * x**2` with the mask saved as a float tensor."""

    class Masked(pb.Function):
        @staticmethod
        def forward(ctx, x):
            mask = make_mask(x)
            ctx.save_for_backward(mask, x)
            ctx.mask = mask
            return mask * x * x

        @staticmethod
        def backward(ctx, cotangent):
            mask, x = ctx.saved_tensors
            return cotangent * (mask + ctx.mask) * x

    return Masked


MASKS = {
    "relu": lambda x: (x > 0).double(),
    "at the threshold": lambda x: (x > 1).double(),
    "at the threshold from above": lambda x: (x >= 1).double(),
    "sign": lambda x: x.sign(),
    "largest": lambda x: torch.nn.functional.one_hot(x.argmax(), 4).double(),
    "dropout": lambda x: torch.nn.functional.dropout(torch.ones_like(x)),
    "gaussian": torch.randn_like,
    "constant": lambda x: WEIGHTS,
    "levels": lambda x: torch.bucketize(x, torch.linspace(-3, 3, 50).double()).double(),
    "count": lambda x: (x > 0).sum().double().expand(4).clone(),
    "count of data": lambda x: (DATA > 0).sum().double().expand(4).clone(),
}
WEIGHTS = torch.arange(1.0, 5.0, dtype=torch.float64)
DATA = torch.linspace(-1.0, 1.5, 200, dtype=torch.float64)


@pytest.mark.parametrize("make_mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("is_leaf", [True, False], ids=["leaf", "non-leaf"])
def test_mask_is_a_constant(make_mask, is_leaf):
    seen = []

    def note(x):
        seen.append(make_mask(x))
        return seen[-1]

    x = leaf(1.0, -2.0, 0.5, 3.0)
    function = masked(note)
    y = function.apply(x) if is_leaf else function.apply(x * 1)
    mask = seen[0].clone()
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (got,) = torch.autograd.grad((gradient * gradient).sum(), x)

    assert torch.allclose(gradient, 2 * mask * x)
    assert torch.allclose(got, 8 * mask**2 * x)


def test_count_of_another_input_is_constant():
    """Only inputs that need a gradient can move a saved tensor that matters."""

    class Mean(pb.Function):
        @staticmethod
        def forward(ctx, x, target):
            count = (target > 0).sum().to(x.dtype)
            ctx.save_for_backward(x, count)
            return x * x / count

        @staticmethod
        def backward(ctx, cotangent):
            x, count = ctx.saved_tensors
            return 2 * cotangent * x / count, None

    assert torch.autograd.gradgradcheck(lambda x: Mean.apply(x, DATA), (leaf(1.0, -2.0),))


DRAWS = {
    "counter": lambda x: torch.full_like(x, next(COUNTER)),
    "generator": lambda x: torch.rand(2, dtype=x.dtype, generator=GENERATOR),
    "numpy": lambda x: torch.from_numpy(np.random.rand(2)),
    "python": lambda x: torch.full_like(x, random.random()),
}
COUNTER = iter(range(1, 10**6))
GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draw_from_elsewhere_is_right_or_raises(draw):
    draws = []

    def note(x):
        draws.append(draw(x))
        return draws[-1]

    x = leaf(1.0, -2.0)
    (gradient,) = torch.autograd.grad(masked(note).apply(x).sum(), x, create_graph=True)
    try:
        (got,) = torch.autograd.grad((gradient * gradient).sum(), x)
    except DoubleBackwardError:
        return

    assert torch.allclose(got, 8 * draws[0] ** 2 * x)


def test_mask_of_dropped_input_is_constant():
    class Sloped(pb.Function):
        @staticmethod
        def forward(ctx, x):
            mask = (x > 0).double() + 1
            ctx.save_for_backward(mask)
            return mask * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0]

    x = leaf(1.0, -2.0)
    (gradient,) = torch.autograd.grad(Sloped.apply(x**2 * x).sum(), x, create_graph=True)
    (got,) = torch.autograd.grad(gradient.sum(), x)

    assert torch.equal(got, torch.tensor([12.0, -12.0], dtype=torch.float64))


# ---- right or an error, never silence ----


def outside(compute):
    """exp(x), computed by `compute` where autograd does not look, and saved."""

    class Exp(pb.Function):
        @staticmethod
        def forward(ctx, x):
            exp = compute(x)
            ctx.save_for_backward(exp)
            return exp.to(x.dtype, copy=True)

        @staticmethod
        def backward(ctx, cotangent):
            (exp,) = ctx.saved_tensors
            return cotangent * exp.to(cotangent.dtype)

    return Exp


OUTSIDE = {
    "numpy": lambda x: torch.from_numpy(np.exp(x.detach().numpy())),
    "numpy in float32": lambda x: torch.from_numpy(np.exp(x.detach().numpy().astype("float32"))),
    "detached": lambda x: x.detach().exp(),
    "data": lambda x: x.data.exp(),
    "no_grad": torch.no_grad()(lambda x: x.exp()),
    "out=": lambda x: torch.exp(x, out=torch.empty_like(x)),
    "bfloat16 kernel": lambda x: x.detach().bfloat16().exp(),
}


@pytest.mark.parametrize("compute", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("value", [1.0, 1e-3, 0.0, -30.0])
def test_value_from_outside_autograd_raises(compute, value):
    function = outside(compute)

    with pytest.raises(DoubleBackwardError, match="must be given `exp` with its history"):
        second(function.apply, leaf(value, value))


@pytest.mark.parametrize("value", [1.0, -2.0])
def test_dropped_input_from_outside_raises(value):
    function = outside(OUTSIDE["numpy"])

    with pytest.raises(DoubleBackwardError, match="input `x` was not saved and is gone"):
        second(lambda x: function.apply(x * 1), leaf(value))


def test_ratio_from_outside_autograd_raises():
    class Ratio(pb.Function):
        @staticmethod
        def forward(ctx, x, y):
            ratio = torch.from_numpy(x.detach().numpy() / y.detach().numpy())
            ctx.save_for_backward(ratio, y)
            return ratio.clone()

        @staticmethod
        def backward(ctx, cotangent):
            ratio, y = ctx.saved_tensors
            return cotangent / y, -cotangent * ratio / y

    with pytest.raises(DoubleBackwardError, match="must be given `ratio`"):
        second(Ratio.apply, leaf(1.0), leaf(2.0))


HALF_OUTSIDE = {
    "numpy": lambda x: x + torch.from_numpy(np.sin(x.detach().numpy())),
    "detach": lambda x: x * torch.sigmoid(x).detach(),
    "data": lambda x: x.clone().data.mul_(2) + x,
}


@pytest.mark.parametrize("compute", HALF_OUTSIDE.values(), ids=HALF_OUTSIDE)
def test_half_outside_autograd_is_never_silent(compute):
    """The saved tensor has some history when `forward` runs again, but not all of it."""

    class Half(pb.Function):
        @staticmethod
        def forward(ctx, x):
            half = compute(x)
            ctx.save_for_backward(half)
            return half * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0]

    def slope(x):  # by differences, since autograd sees a part only
        with torch.no_grad():
            return (compute(x + 1e-6) - compute(x - 1e-6)) / 2e-6

    x = leaf(1.0, -0.5)
    try:
        (got,) = second(Half.apply, x)
    except DoubleBackwardError:
        return

    assert torch.allclose(got, 2 * compute(x) * slope(x))


def test_random_intermediate_raises():
    class Noisy(pb.Function):
        @staticmethod
        def forward(ctx, x):
            noisy = x * torch.rand_like(x)
            ctx.save_for_backward(noisy)
            return noisy * noisy

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0] ** 3

    torch.manual_seed(7)

    with pytest.raises(DoubleBackwardError, match="gives other values when it runs again"):
        second(Noisy.apply, leaf(1.0, 2.0))


def test_random_intermediate_of_zeros_is_never_silent():
    draws = []

    class Noisy(pb.Function):
        @staticmethod
        def forward(ctx, x):
            draws.append(torch.rand_like(x))
            noisy = x * draws[-1]
            ctx.save_for_backward(noisy)
            return noisy * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0]

    torch.manual_seed(7)
    x = leaf(0.0, 0.0)
    (gradient,) = torch.autograd.grad(Noisy.apply(x).sum(), x, create_graph=True)
    try:
        (got,) = torch.autograd.grad(gradient.sum(), x)
    except DoubleBackwardError:
        return

    assert torch.equal(got, draws[0])


def test_branch_on_dropped_input_is_never_silent():
    class Branching(pb.Function):
        @staticmethod
        def forward(ctx, x):
            middle = x * 2 if x.sum() < 0 else torch.ones_like(x)
            ctx.save_for_backward(middle)
            return middle**2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 4 * ctx.saved_tensors[0]

    assert right_or_named(
        "middle", lambda x: Branching.apply(x * 1), lambda x: 4 * x**2, leaf(-1.0, -2.0)
    )


@pytest.mark.parametrize(
    "value",
    [3, 2.5, "text", None, True, (1, 2), [1, 2], slice(1), range(3), np.int64(3), np.float32(2.0)],
    ids=repr,
)
def test_plain_values_do_not_stand_in_the_way(value):
    class Plain(pb.Function):
        @staticmethod
        def forward(ctx, x, value):
            ctx.save_for_backward(x * 2)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0], None

    assert torch.autograd.gradgradcheck(lambda x: Plain.apply(x, value), (leaf(1.0, -2.0),))


def test_changed_configuration_raises():
    class Scaled(pb.Function):
        @staticmethod
        def forward(ctx, x, settings):
            scaled = x * settings["factor"]
            ctx.save_for_backward(scaled)
            ctx.factor = settings["factor"]
            return scaled**2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2 * ctx.saved_tensors[0] * ctx.factor, None

    x, settings = leaf(1.0), {"factor": 2.0}
    y = Scaled.apply(x, settings)
    settings["factor"] = 5.0
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)

    with pytest.raises(DoubleBackwardError, match="must be given `scaled`"):
        torch.autograd.grad(gradient, x)


@pytest.mark.parametrize("compute", ["numpy", "half detached"])
def test_good_calls_vouch_for_no_other(compute):
    """An argument decides how `forward` computes: each way has to be sound by itself."""

    class Choosing(pb.Function):
        @staticmethod
        def forward(ctx, x, how):
            if how == "numpy":
                middle = torch.from_numpy(np.exp(x.detach().numpy()))
            elif how == "half detached":
                middle = x * x.exp().detach()
            else:
                middle = x.exp()
            ctx.save_for_backward(middle)
            return middle * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0], None

    x = leaf(1.0)
    for _ in range(10):
        second(lambda x: Choosing.apply(x, "torch"), x)

    with pytest.raises(DoubleBackwardError, match="must be given `middle`"):
        second(lambda x: Choosing.apply(x, compute), x)


def test_input_changed_in_place_raises():
    class Doubling(pb.Function):
        @staticmethod
        def forward(ctx, x):
            squared = x * x
            ctx.save_for_backward(squared)
            ctx.mark_dirty(x)
            return x.mul_(x)

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2 * ctx.saved_tensors[0]

    with pytest.raises(DoubleBackwardError, match="input `x` was not saved and is gone or changed"):
        second(lambda x: Doubling.apply(x * 1), leaf(3.0))


@pytest.mark.parametrize("when", ["before backward", "after backward"])
def test_leaf_changed_by_an_optimizer_raises(when):
    x, other = leaf(3.0), leaf(1.0)
    y = saving(keep_alone, read_alone, compute_interm, pull_interm).apply(x) * other
    if when == "before backward":
        with torch.no_grad():
            x.add_(1)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    if when == "after backward":
        with torch.no_grad():
            x.add_(1)

    with pytest.raises(RuntimeError, match=r"gone or changed|modified by an inplace operation"):
        torch.autograd.grad(gradient, (x, other), allow_unused=True)


def test_forward_that_cannot_run_again_raises():
    class Once(pb.Function):
        runs = 0

        @staticmethod
        def forward(ctx, x):
            Once.runs += 1
            if Once.runs > 1:
                raise ConnectionError("the stream is spent")
            ctx.middle = x * 2
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.middle

    with pytest.raises(DoubleBackwardError, match="cannot run again") as raised:
        second(Once.apply, leaf(3.0))

    assert isinstance(raised.value.__cause__, ConnectionError)


def test_once_differentiable_keeps_its_own_error():
    class Once(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 2)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0]

    x = leaf(3.0)
    (gradient,) = torch.autograd.grad(Once.apply(x) * x, x, create_graph=True)

    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        gradient.backward()


# ---- the name in the message ----


def named(forward, read):
    def backward(ctx, cotangent):
        return cotangent * read(ctx)

    space = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Named", (pb.Function,), space)


def test_message_names_the_expression():
    def forward(ctx, x):
        ctx.save_for_backward(x, x.detach() + 1)
        return x * 2

    with pytest.raises(DoubleBackwardError, match=r"must be given `x.detach\(\) \+ 1` with"):
        second(named(forward, lambda ctx: ctx.saved_tensors[1]).apply, leaf(1.0))


def test_message_names_the_attribute():
    def forward(ctx, x):
        ctx.shifted = x.detach() + 1
        return x * 2

    with pytest.raises(DoubleBackwardError, match=r"must be given `ctx\.shifted` with"):
        second(named(forward, lambda ctx: ctx.shifted).apply, leaf(1.0))


def test_message_names_the_attribute_behind_saves():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.first, ctx.shifted = x * 1, x.detach() + 1
        return x * 2

    with pytest.raises(DoubleBackwardError, match=r"must be given `ctx\.shifted` with"):
        second(named(forward, lambda ctx: ctx.shifted).apply, leaf(1.0))


def test_message_names_the_key():
    def forward(ctx, x):
        ctx.saved_data["shifted"] = x.detach() + 1
        return x * 2

    with pytest.raises(DoubleBackwardError, match="shifted"):
        second(named(forward, lambda ctx: ctx.saved_data["shifted"]).apply, leaf(1.0))


def test_message_without_source_names_the_place():
    def forward(ctx, x):
        ctx.save_for_backward(*[x.detach() + 1])
        return x * 2

    with pytest.raises(DoubleBackwardError, match="must be given `saved tensor 0` with"):
        second(named(forward, lambda ctx: ctx.saved_tensors[0]).apply, leaf(1.0))


# ---- nothing else is disturbed ----


def test_first_backward_gets_plain_tensors():
    seen = []

    class Looking(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 2)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            (middle,) = ctx.saved_tensors
            seen.append((middle.requires_grad, middle.is_leaf))
            return cotangent * middle

    Looking.apply(leaf(3.0)).backward()

    assert seen == [(False, True)]


def test_backward_may_record_by_itself():
    """`enable_grad` inside a first backward asks for a graph of its own, not for history."""

    class Recomputing(pb.Function):
        @staticmethod
        def forward(ctx, x):
            middle = x * 2
            ctx.save_for_backward(middle)
            ctx.kept = middle
            return middle**2

        @staticmethod
        def backward(ctx, cotangent):
            with torch.enable_grad():
                (middle,) = ctx.saved_tensors
                assert not ctx.kept.requires_grad
                middle.requires_grad_()
                (middle**2).backward(cotangent)
            return middle.grad * 2

    x = leaf(3.0)
    Recomputing.apply(x).backward()

    assert x.grad.item() == 24.0


def test_looking_from_outside_gives_plain_tensors():
    x = leaf(3.0)
    y = saving(keep_alone, read_alone, compute_interm, pull_interm).apply(x)
    node = y.grad_fn

    assert not node.saved_tensors[0].requires_grad
    assert node.saved_tensors[0].is_leaf


def test_user_buffer_is_not_changed_again():
    class Running(pb.Function):
        @staticmethod
        def forward(ctx, x, running):
            middle = x * 2
            running.mul_(0.5).add_(middle.detach())
            ctx.save_for_backward(middle)
            return middle**2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 4 * ctx.saved_tensors[0], None

    x, running = leaf(3.0), torch.zeros(1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(Running.apply(x, running), x, create_graph=True)
    before = running.clone()
    try:
        (got,) = torch.autograd.grad(gradient, x)
    except DoubleBackwardError:
        got = torch.full_like(x, 8.0)

    assert torch.equal(running, before)
    assert got.item() == 8.0


def test_random_states_are_left_alone():
    function = masked(lambda x: torch.rand_like(x) + random.random() + np.random.rand())
    generator = torch.Generator().manual_seed(1)

    class Drawing(pb.Function):
        @staticmethod
        def forward(ctx, x, generator):
            ctx.middle = x * 2
            ctx.draw = torch.rand(1, dtype=x.dtype, generator=generator)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.middle * ctx.draw, None

    x = leaf(3.0)
    first = function.apply(x) + Drawing.apply(x, generator)
    (gradient,) = torch.autograd.grad(first, x, create_graph=True)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1:3]
    own = generator.get_state()
    with contextlib.suppress(DoubleBackwardError):
        torch.autograd.grad(gradient, x)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1:3]

    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert (before[2][0] == after[2][0]).all()
    assert before[2][1] == after[2][1]
    assert torch.equal(own, generator.get_state())


def test_plain_arguments_are_not_held():
    class Thing:
        pass

    class Plain(pb.Function):
        @staticmethod
        def forward(ctx, x, thing, tensors):
            ctx.save_for_backward(x * 2)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0], None, None

    x, thing, tensor = leaf(3.0), Thing(), torch.ones(3)
    dead = [weakref.ref(thing), weakref.ref(tensor)]
    y = Plain.apply(x, thing, [tensor])
    del thing, tensor
    y.backward()

    assert [ref() for ref in dead] == [None, None]


def test_inputs_are_not_held():
    x = leaf(3.0)
    middle = x * 1
    dead = weakref.ref(middle)
    y = saving(keep_alone, read_alone, compute_interm, pull_interm).apply(middle)
    del middle

    assert dead() is None
    y.backward()


def test_second_order_leaves_nothing_behind():
    def run():
        x = leaf(3.0)
        y = Several.apply(x, x * 2)
        node = weakref.ref(y.grad_fn)
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        with contextlib.suppress(DoubleBackwardError):
            torch.autograd.grad(gradient, x)
        return node

    gc.collect()
    gc.disable()
    try:
        node = run()
        assert node() is None
    finally:
        gc.enable()


def test_retained_graph_differentiates_again():
    x = leaf(3.0)
    y = saving(keep_alone, read_alone, compute_interm, pull_interm).apply(x)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    times = [torch.autograd.grad(gradient, x, retain_graph=True)[0].item() for _ in range(3)]

    assert times == [8.0, 8.0, 8.0]


# ---- with everything else ----


@with_input
def test_hooks_do_not_disturb_history(keep, read):
    function = saving(keep, read, compute_interm, pull_interm)
    x = leaf(3.0)
    for hooks in (
        save_on_cpu(),
        saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()),
        saved_tensors_hooks(lambda t: t.detach().numpy(), torch.from_numpy),
    ):
        with hooks:
            y = function.apply(x)
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)

        assert torch.autograd.grad(gradient, x)[0].item() == 8.0


def test_checkpoint_is_right_or_named():
    function = saving(keep_saved, read_saved, compute_interm, pull_interm)

    assert right_or_named(
        "middle",
        lambda x: checkpoint(lambda x: function.apply(x * 1), x, use_reentrant=False),
        lambda x: 4 * x**2,
        leaf(0.5, 2.0),
    )


def test_vectorized_hessian_is_right():
    function = saving(keep_alone, read_alone, compute_interm, pull_interm)

    def loss(x):
        return (function.apply(x) ** 2).sum()

    x = leaf(1.0, 2.0)
    expected = torch.diag(192 * x.detach() ** 2)

    assert torch.equal(torch.autograd.functional.hessian(loss, x), expected)
    assert torch.equal(torch.autograd.functional.hessian(loss, x, vectorize=True), expected)


def test_batched_gradients_check():
    function = saving(keep_alone, read_alone, compute_interm, pull_interm)

    assert torch.autograd.gradgradcheck(function.apply, (leaf(0.5, 2.0),), check_batched_grad=True)


def test_gradient_penalty_of_module_is_right():
    function = saving(keep_saved, read_saved, compute_interm, pull_interm)
    module = torch.nn.Linear(3, 2).double()
    x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)

    def penalty(square):
        module.zero_grad()
        (gradient,) = torch.autograd.grad(square(module(x)).sum(), x, create_graph=True)
        (gradient**2).sum().backward()
        return module.weight.grad.clone()

    assert torch.allclose(penalty(function.apply), penalty(lambda h: 4 * h**2))


def test_autocast_is_right_or_named():
    class Product(pb.Function):
        @staticmethod
        def forward(ctx, x, w):
            h = x @ w
            ctx.save_for_backward(x, w, h)
            return (h * h).to(x.dtype)

        @staticmethod
        def backward(ctx, cotangent):
            x, w, h = ctx.saved_tensors
            slope = 2 * h.to(x.dtype) * cotangent
            return slope @ w.t(), x.t() @ slope

    x, w = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)

    def apply(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Product.apply(x, w)

    assert right_or_named("h", apply, lambda x, w: (x @ w) ** 2, x, w)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_shapes_alone_differentiate_twice(kind):
    function = saving(keep_alone, read_alone, compute_interm, pull_interm)
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    mode = fake_tensor.FakeTensorMode() if kind == "fake" else torch.device("meta")
    with mode:
        x = torch.ones(2, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
        (got,) = torch.autograd.grad(gradient.sum(), x)

    assert got.shape == (2, 3)


def test_second_order_can_be_traced():
    from torch.fx.experimental.proxy_tensor import make_fx

    function = saving(keep_alone, read_alone, compute_interm, pull_interm)

    def curvature(x):
        (gradient,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
        return torch.autograd.grad((gradient * gradient).sum(), x)[0]

    graph = make_fx(curvature)(leaf(1.0, 2.0))

    assert torch.equal(graph(leaf(3.0, 4.0)), torch.tensor([384.0, 512.0], dtype=torch.float64))
