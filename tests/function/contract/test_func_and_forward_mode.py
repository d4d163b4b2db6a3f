"""Forward mode, and every nesting of torch.func's transforms (L43 to L51)."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jacrev, jvp, vjp, vmap

import pullback as pb


def make_cube(Function):
    """`x ** 3` with everything a transform may ask for."""

    class Cube(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

        @staticmethod
        def jvp(ctx, x_t):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * x_t

    return Cube


# ---- torch.func ----


NESTED = {
    "grad of grad": lambda f, x: torch.func.grad(torch.func.grad(lambda x: f(x).sum()))(x[0]),
    "vmap of grad": lambda f, x: vmap(torch.func.grad(f))(x),
    "grad of vmap": lambda f, x: torch.func.grad(lambda x: vmap(f)(x).sum())(x),
    "vmap of vmap": lambda f, x: vmap(vmap(f))(x.reshape(2, 2)),
    "vmap of jvp": lambda f, x: vmap(lambda x: jvp(f, (x,), (x,))[1])(x),
    "vjp": lambda f, x: vjp(f, x)[1](x)[0],
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(lambda x: f(x).sum())(x),
    "jvp of grad": lambda f, x: jvp(torch.func.grad(lambda x: f(x).sum()), (x,), (x,))[1],
}


@pytest.mark.parametrize("name", NESTED)
def test_transforms_nest_in_any_order(Function, name):
    """L50: with transformable methods the Function composes with any nesting."""
    cube = make_cube(Function).apply
    x = torch.randn(4)

    assert torch.allclose(NESTED[name](cube, x), NESTED[name](lambda x: x**3, x))


@pytest.mark.parametrize("transform", ["backward", "vmap"])
def test_combined_form_is_refused_by_transforms(Function, transform):
    """L47: only forward with setup_context works under torch.func."""

    class Combined(Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    with pytest.raises(RuntimeError, match="setup_context"):
        NEEDS[transform](Combined.apply)


def make_partial(Function, *defined):
    """`3 * x` with only the named methods besides forward."""
    methods = {
        "forward": staticmethod(lambda x: 3 * x),
        "setup_context": staticmethod(lambda ctx, inputs, output: None),
        "backward": staticmethod(lambda ctx, g: 3 * g),
        "jvp": staticmethod(lambda ctx, x_t: 3 * x_t),
        "vmap": staticmethod(lambda info, in_dims, x: (3 * x, in_dims[0])),
        "generate_vmap_rule": True,
    }
    chosen = ("forward", "setup_context", *defined)
    return type("Partial", (Function,), {name: methods[name] for name in chosen})


NEEDS = {
    "backward": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(3)),
    "jvp": lambda f: jvp(f, (torch.ones(3),), (torch.ones(3),))[1],
    "vmap": lambda f: vmap(f)(torch.ones(3)),
}


@pytest.mark.parametrize("method", NEEDS)
def test_each_transform_needs_its_method(Function, method):
    """L48: with it the transform works."""
    assert NEEDS[method](make_partial(Function, method).apply).tolist() == [3.0] * 3


def test_transform_without_its_method_raises(Function):
    """L48: without it the transform says what is missing."""
    with pytest.raises(NotImplementedError, match="jvp"):
        NEEDS["jvp"](make_partial(Function, "backward").apply)


def test_missing_backward_fails_transforms_in_torch():
    """L48: PyTorch's own says what is missing."""
    with pytest.raises(NotImplementedError, match="backward"):
        NEEDS["backward"](make_partial(torch.autograd.Function, "jvp").apply)


def test_missing_backward_is_derived_under_transforms():
    """L48: ours derives it."""
    assert NEEDS["backward"](make_partial(pb.Function, "jvp").apply).tolist() == [3.0] * 3


def test_vmap_without_rule_names_ways_out(Function):
    """L51: the vmap staticmethod, or generate_vmap_rule."""
    with pytest.raises(
        RuntimeError, match=r"(?s)vmap.*generate_vmap_rule|generate_vmap_rule.*vmap"
    ):
        NEEDS["vmap"](make_partial(Function, "backward").apply)


def test_two_vmap_rules_are_an_error(Function):
    """L48: a vmap staticmethod and generate_vmap_rule together."""
    with pytest.raises(
        RuntimeError, match=r"(?s)vmap.*generate_vmap_rule|generate_vmap_rule.*vmap"
    ):
        NEEDS["vmap"](make_partial(Function, "vmap", "generate_vmap_rule").apply)


def test_vmap_rule_gets_info_and_dims(Function):
    """L49: batch size and randomness, a dim per argument, None where nothing is mapped."""
    seen = []

    class Dot(Function):
        @staticmethod
        def forward(x, y, number):
            return (x * y).sum(-1) * number

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x, y, number):
            seen.append((info.batch_size, info.randomness, in_dims, tuple(x.shape)))
            return Dot.apply(x.movedim(in_dims[0], 0), y, number), 0

    x, y = torch.randn(3, 5), torch.randn(3)
    out = vmap(Dot.apply, in_dims=(1, None, None), randomness="same")(x, y, 2.0)

    assert seen == [(5, "same", (1, None, None), (3, 5))]
    assert torch.allclose(out, 2 * (x * y[:, None]).sum(0))


def test_vmap_rule_may_leave_output_unmapped(Function):
    """L49: out_dims has the structure of the output, None for an unmapped one."""

    class Pair(Function):
        @staticmethod
        def forward(x):
            return x * 2, torch.ones(2)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x):
            return (x * 2, torch.ones(2)), (in_dims[0], None)

    doubled, ones = vmap(Pair.apply)(torch.ones(4))

    assert doubled.tolist() == [2.0] * 4
    assert ones.shape == (4, 2)


# ---- forward mode ----


def push(apply, *inputs):
    """The tangents of the outputs, each tensor input moving by ones."""
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x, torch.ones_like(x)) if isinstance(x, torch.Tensor) else x
            for x in inputs
        ]
        outputs = apply(*duals)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return [forward_ad.unpack_dual(out).tangent for out in outputs]


def test_jvp_takes_one_tangent_per_input(Function):
    """L43: None for a plain input; one tangent per output; it runs before apply returns."""
    order = []

    class Pair(Function):
        @staticmethod
        def forward(ctx, x, number, y):
            order.append("forward")
            ctx.number = number
            return x * number, x + y

        @staticmethod
        def jvp(ctx, x_t, number_t, y_t):
            order.append(("jvp", number_t))
            return x_t * ctx.number, x_t + y_t

    def call(*inputs):
        outputs = Pair.apply(*inputs)
        order.append("returned")
        return outputs

    first, second = push(call, torch.ones(2), 5.0, torch.ones(2))

    assert order == ["forward", ("jvp", None), "returned"]
    assert first.tolist() == [5.0, 5.0]
    assert second.tolist() == [2.0, 2.0]


def test_ctx_carries_data_to_jvp(Function):
    """L44: attributes made in forward are there, and may be deleted."""
    left = []

    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.result, ctx.note = x.exp(), "text"
            return ctx.result

        @staticmethod
        def jvp(ctx, x_t):
            tangent = x_t * ctx.result
            del ctx.result
            left.append((hasattr(ctx, "result"), ctx.note))
            return tangent

    (tangent,) = push(Exp.apply, torch.zeros(2))

    assert tangent.tolist() == [1.0, 1.0]
    assert left == [(False, "text")]


@pytest.mark.parametrize("right", [True, False])
def test_jvp_mirrors_a_change_in_place(Function, right):
    """L45: where forward changed its input, jvp must change its tangent."""

    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def jvp(ctx, x_t):
            return x_t.mul_(2) if right else x_t * 2

    if right:
        assert push(Double.apply, torch.ones(2))[0].tolist() == [2.0, 2.0]
    else:
        with pytest.raises(RuntimeError, match=r"in-?place"):
            push(Double.apply, torch.ones(2))


@pytest.mark.parametrize("right", [True, False])
def test_jvp_mirrors_a_view(Function, right):
    """L45: where forward returned a view of its input, jvp must return one of the tangent."""

    class First(Function):
        @staticmethod
        def forward(ctx, x):
            return x.narrow(0, 0, 1)

        @staticmethod
        def jvp(ctx, x_t):
            return x_t.narrow(0, 0, 1) if right else x_t.narrow(0, 0, 1).clone()

    if right:
        assert push(First.apply, torch.ones(2))[0].tolist() == [1.0]
    else:
        with pytest.raises(RuntimeError, match="view"):
            push(First.apply, torch.ones(2))


@pytest.mark.parametrize("materialize", [True, False])
def test_jvp_respects_materialisation(Function, materialize):
    """L46, L41: an input without a tangent gives zeros, or None with materialisation off."""
    seen = []

    class Add(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.set_materialize_grads(materialize)
            return x + y

        @staticmethod
        def jvp(ctx, x_t, y_t):
            seen.append(y_t if y_t is None else y_t.tolist())
            return x_t * 1

    y = torch.ones(2)
    (tangent,) = push(lambda x: Add.apply(x, y), torch.ones(2))

    assert tangent.tolist() == [1.0, 1.0]
    assert seen == [[0.0, 0.0] if materialize else None]


def test_undifferentiable_output_takes_no_tangent(Function):
    """L43: jvp returns None for an output that has no tangent."""

    class Sorts(Function):
        @staticmethod
        def forward(ctx, x):
            values, index = x.sort()
            ctx.mark_non_differentiable(index)
            ctx.index = index
            return values, index

        @staticmethod
        def jvp(ctx, x_t):
            return x_t[ctx.index], None

    values_t, index_t = push(Sorts.apply, torch.tensor([3.0, 1.0]))

    assert values_t.tolist() == [1.0, 1.0]
    assert index_t is None
