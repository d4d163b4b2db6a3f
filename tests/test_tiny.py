"""The whole product so far, in one file and a few seconds."""

import pytest
import torch

import pullback as pb


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


class Affine(pb.Function):
    """`scale * x + shift`: defaults, keywords, an optional tensor, gradients by name."""

    @staticmethod
    def forward(ctx, x, scale, shift=None):
        ctx.save_for_backward(x, scale)
        return x * scale if shift is None else x * scale + shift

    @staticmethod
    def backward(ctx, cotangent):
        x, scale = ctx.saved_tensors
        gradients = {"x": cotangent * scale, "scale": cotangent * x}
        return gradients | ({"shift": cotangent} if len(ctx.needs_input_grad) == 3 else {})


class Swish(pb.Function):
    """`x sigmoid(x)`, in the style that transforms need, with the names of C++."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, beta=1.0):
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.saved_data["beta"] = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def slope(x, beta):
        sigmoid = torch.sigmoid(beta * x)
        return sigmoid + beta * x * sigmoid * (1 - sigmoid)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.get_saved_variables()
        needed = ctx.needs_input_grad(0)
        return cotangent * Swish.slope(x, ctx.saved_data["beta"]) if needed else None, None

    @staticmethod
    def jvp(ctx, tangent, _):
        (x,) = ctx.saved_tensors
        return tangent * Swish.slope(x, ctx.saved_data["beta"])


class Gaussian(pb.Function):
    """`exp(-x**2)`, its gradient from an intermediate on the context."""

    @staticmethod
    def forward(ctx, x):
        ctx.bell, ctx.x = torch.exp(-x * x), x
        return ctx.bell * 1

    @staticmethod
    def backward(ctx, cotangent):
        return -2 * cotangent * ctx.x * ctx.bell


class Doubling(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


class Sum(pb.Function):
    traverse_lists = True

    @staticmethod
    def forward(ctx, tensors):
        return [sum(tensors), max(t.item() for t in tensors)]

    @staticmethod
    def backward(ctx, cotangent, _):
        return [cotangent, cotangent * 1]


def test_gradients_are_right_twice():
    x, scale, shift = leaf(0.5, -1.5), leaf(2.0, 3.0), leaf(1.0, 1.0)

    assert torch.autograd.gradcheck(Affine.apply, (x, scale))
    assert torch.autograd.gradgradcheck(Affine.apply, (x, scale, shift))
    assert torch.autograd.gradgradcheck(lambda x: Affine.apply(x, shift=shift, scale=scale), (x,))
    assert torch.autograd.gradcheck(Swish.apply, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(Swish.apply, (x, 2.0))


def test_intermediate_differentiates_twice():
    assert torch.autograd.gradgradcheck(Gaussian.apply, (leaf(0.5, -1.5),))


def test_context_is_ours():
    y = Gaussian.apply(leaf(0.5))

    assert isinstance(y.grad_fn, pb.AutogradContext)
    assert y.grad_fn.name() == "GaussianBackward"


def test_input_changes_in_place():
    source = leaf(3.0)
    x = source * 1
    y = Doubling.apply(x)
    y.backward()

    assert y is x
    assert source.grad.item() == 2.0


def test_list_is_taken_apart():
    x, y = leaf(1.0), leaf(2.0)
    total, largest = Sum.apply([x, y])
    total.backward()

    assert (total.item(), largest) == (3.0, 2.0)
    assert (x.grad.item(), y.grad.item()) == (1.0, 1.0)


def test_transforms_compose():
    x = torch.tensor([0.5, -1.5], dtype=torch.float64)
    expected = Swish.slope(x, 1.0)

    assert torch.allclose(torch.func.grad(lambda x: Swish.apply(x).sum())(x), expected)
    assert torch.allclose(torch.func.vmap(torch.func.grad(Swish.apply))(x), expected)


def test_compiled_gradient_is_eagers():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def total(x, scale):
        return (Affine.apply(x, scale) + Gaussian.apply(x)).sum()

    x, scale = leaf(0.5, -1.5), leaf(2.0, 3.0)
    found = torch.autograd.grad(total(x, scale), (x, scale))

    assert torch.allclose(found[0], scale - 2 * x * torch.exp(-x * x))
    assert torch.allclose(found[1], x)


def test_mistake_is_told_in_users_words():
    class Wrong(Affine):
        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    with pytest.raises(pb.PullbackError, match=r"E103 backward-arity: `Wrong\.backward` must") as e:
        Wrong.apply(leaf(1.0), leaf(2.0)).backward()

    assert isinstance(e.value, RuntimeError)
    assert e.value.facts["expected"] == "2, for (x, scale)"


def test_guard_goes_below_autograd():
    x = leaf(1.0)
    with pb.below_autograd():
        y = x * 2

    assert not y.requires_grad
