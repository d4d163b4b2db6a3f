"""Section B: what `backward` returns, and what becomes of it."""

from typing import ClassVar

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.autograd.function import once_differentiable

import pullback as pb
from pullback import errors


def make_returning(Function, gradients_of):
    """`2 * x + 0 * y` of two tensors and a number; backward returns `gradients_of(cotangent)`."""

    class Returning(Function):
        calls = 0

        @staticmethod
        def forward(ctx, x, y, number):
            return 2 * x + 0 * y

        @staticmethod
        def backward(ctx, g):
            Returning.calls += 1
            return gradients_of(g)

    return Returning


def pull(Function, gradients_of, *, y_grad=True):
    """The gradients of x and y when backward returns `gradients_of(cotangent)`."""
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=y_grad)
    make_returning(Function, gradients_of).apply(x, y, 3).sum().backward()
    return x.grad, y.grad


# ---- undefined gradients ----


def make_gradientless(Function):
    """Twice the input, with no gradient at all."""

    class Gradientless(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    return Gradientless


PLACES = {
    "directly": lambda fn, x: fn(x),
    "behind another op": lambda fn, x: fn(x.sin()),
    "in front of one": lambda fn, x: fn(x).cos(),
}


@pytest.mark.parametrize("place", PLACES)
def test_undefined_gradient_leaves_grad_unset(Function, place):
    """B01: .grad stays None after a backward with an undefined gradient."""
    x = torch.ones(2, requires_grad=True)
    PLACES[place](make_gradientless(Function).apply, x).sum().backward()

    assert x.grad is None


@pytest.mark.parametrize("place", PLACES)
def test_undefined_gradient_is_none_from_grad(Function, place):
    """B01: autograd.grad(allow_unused=True) gives None."""
    x = torch.ones(2, requires_grad=True)
    out = PLACES[place](make_gradientless(Function).apply, x)

    assert grad(out.sum(), x, allow_unused=True) == (None,)


# ---- shape ----


def test_irreducible_shape_is_an_error(Function):
    """B02: the error speaks of the expected shape."""
    with pytest.raises(RuntimeError, match=r"(?s)expected.*2") as caught:
        pull(Function, lambda g: (torch.ones(5), g, None))

    assert "shape" in str(caught.value)
    assert "5" in str(caught.value)


def test_extra_dimensions_are_summed_down(Function):
    """B03: leading dimensions that broadcasting would have added are summed."""
    gx, _ = pull(Function, lambda g: (torch.ones(7, 3, 2), g, None))

    assert gx.tolist() == [21.0, 21.0]


def test_stretched_dimensions_are_summed_down(Function):
    """B03: a dimension of size one, stretched in the gradient, is summed and kept."""

    class Stretched(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g.expand(2, 4)

    x = torch.ones(2, 1, requires_grad=True)
    (gx,) = grad(Stretched.apply(x).sum(), x)

    assert gx.tolist() == [[4.0], [4.0]]


# ---- number ----


def test_surplus_undefined_gradients_are_accepted(Function):
    """B04, L14: trailing None beyond the arguments are ignored."""
    gx, gy = pull(Function, lambda g: (2 * g, g, None, None, None))

    assert gx.tolist() == [2.0, 2.0]
    assert gy.tolist() == [1.0, 1.0]


def test_surplus_defined_gradient_is_an_error(Function):
    """B04: a gradient for an argument that does not exist."""
    with pytest.raises(RuntimeError, match=r"(?s)expected.*3.*got.*4"):
        pull(Function, lambda g: (g, g, None, g))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_gradients_are_an_error(Function, count):
    """B05: every argument takes its place, the number too."""
    with pytest.raises(RuntimeError, match=f"(?s)expected.*3.*got.*{count}"):
        pull(Function, lambda g: (g,) * count)


def test_gradient_for_plain_argument_is_error(Function):
    """B06, L57: a defined gradient where the argument was no tensor."""
    with pytest.raises(RuntimeError, match=r"(?i)gradient"):
        pull(Function, lambda g: (g, g, g))


def test_gradient_that_is_no_tensor_is_error(Function):
    """L13: a gradient is a tensor or None."""
    with pytest.raises((RuntimeError, TypeError), match="int"):
        pull(Function, lambda g: (g, 3, None))


def test_none_for_whole_single_argument(Function):
    """L13: a bare gradient stands for the gradient of the one argument."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    x = torch.tensor([3.0], requires_grad=True)

    assert grad(Square.apply(x), x)[0].tolist() == [6.0]


def test_unneeded_gradient_is_dropped(Function):
    """B07, L15: a gradient for a tensor that needs none is no error and goes nowhere."""
    gx, gy = pull(Function, lambda g: (2 * g, g, None), y_grad=False)

    assert gx.tolist() == [2.0, 2.0]
    assert gy is None


MISTAKES = {
    "too few": (lambda g: (g, g), errors.BackwardArityError),
    "too many": (lambda g: (g, g, None, g), errors.BackwardArityError),
    "shape": (lambda g: (torch.ones(5), g, None), errors.GradientShapeError),
    "not a tensor input": (lambda g: (g, g, g), errors.NonTensorGradientError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_own_class(mistake):
    """B02, B04-B06: our error names the Function and is also the builtin that PyTorch raises."""
    gradients_of, kind = MISTAKES[mistake]

    with pytest.raises(kind, match="`Returning") as caught:
        pull(pb.Function, gradients_of)

    assert isinstance(caught.value, errors.PullbackError)
    assert isinstance(caught.value, RuntimeError)


def test_mapping_of_gradients_by_name():
    """L13: backward may name the inputs; a name left out means no gradient."""
    gx, gy = pull(pb.Function, lambda g: {"x": 2 * g})

    assert gx.tolist() == [2.0, 2.0]
    assert gy is None


# ---- whether backward runs ----


def test_unreachable_input_does_not_run_backward(Function):
    """B08: asked for a tensor that it does not lead to, backward is not run."""
    Returning = make_returning(Function, lambda g: (2 * g, g, None))
    x, y, other = (torch.ones(2, requires_grad=True) for _ in range(3))
    out = Returning.apply(x, y, 3)

    assert grad(out.sum(), other, allow_unused=True) == (None,)
    assert Returning.calls == 0


def test_needless_branch_does_not_run_backward(Function):
    """B08: nor when it is one branch of a sum and the other branch is asked for."""
    Returning = make_returning(Function, lambda g: (2 * g, g, None))
    x, y, other = (torch.ones(2, requires_grad=True) for _ in range(3))
    total = (Returning.apply(x, y, 3) + other).sum()
    (got,) = grad(total, other, retain_graph=True)

    assert got.tolist() == [1.0, 1.0]
    assert Returning.calls == 0
    assert grad(total, x)[0].tolist() == [2.0, 2.0]
    assert Returning.calls == 1


# ---- backward by another name, or none ----


def test_backward_may_be_named_vjp(Function):
    """L16: vjp is another name of backward."""

    class Triple(Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def vjp(ctx, g):
            return 3 * g

    x = torch.ones(2, requires_grad=True)

    assert grad(Triple.apply(x).sum(), x)[0].tolist() == [3.0, 3.0]


def test_backward_and_vjp_together_raise(Function):
    """L16: defining both is an error."""

    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g

        @staticmethod
        def vjp(ctx, g):
            return 3 * g

    with pytest.raises(RuntimeError, match=r"(?s)backward.*vjp"):
        Both.apply(torch.ones(2, requires_grad=True)).sum().backward()


def make_backwardless(Function):
    """A Function with a forward only."""

    class Backwardless(Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

    return Backwardless


def test_missing_backward_is_not_implemented(Function):
    """L22: forward works, backward raises NotImplementedError; ours where it cannot be derived."""

    class Outside(make_backwardless(Function)):
        @staticmethod
        def forward(ctx, x):
            return 3 * x.detach()

    out = Outside.apply(torch.ones(2, requires_grad=True))

    assert out.tolist() == [3.0, 3.0]
    with pytest.raises(NotImplementedError, match="backward"):
        out.sum().backward()


def test_missing_backward_is_derived():
    """L22: ours gives the gradient of forward."""
    x = torch.ones(2, requires_grad=True)
    make_backwardless(pb.Function).apply(x).sum().backward()

    assert x.grad.tolist() == [3.0, 3.0]


# ---- higher derivatives ----


def make_cube(Function):
    """`x ** 3` whose backward calls another Function, both right to any order."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * Square.apply(ctx.saved_tensors[0]) * g

    return Cube


def test_backward_through_another_function_differentiates(Function):
    """L19: with create_graph backward's own operations are recorded, to third order."""
    x = torch.tensor([2.0], requires_grad=True)
    values = [make_cube(Function).apply(x)]
    for _ in range(3):
        values += grad(values[-1], x, create_graph=True)

    assert [value.item() for value in values] == [8.0, 12.0, 12.0, 6.0]


def test_gradcheck_and_gradgradcheck_accept_apply(Function):
    """L23: `Fn.apply` is what gradcheck and gradgradcheck take."""
    x = torch.randn(3, requires_grad=True)
    apply = make_cube(Function).apply

    assert gradcheck(apply, (x,))
    assert gradgradcheck(apply, (x,))


def test_gradcheck_finds_a_wrong_gradient(Function):
    """L23: and refuses a wrong backward."""
    x = torch.randn(3, requires_grad=True)

    assert not gradcheck(make_gradientless(Function).apply, (x,), raise_exception=False)


def test_once_differentiable_raises_the_second_time(Function):
    """L21: the first derivative works, differentiating it is an error."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            assert not torch.is_grad_enabled()
            return 2 * ctx.saved_tensors[0] * g

    x = torch.tensor([3.0], requires_grad=True)
    (gx,) = grad(Square.apply(x) ** 2, x, create_graph=True)

    assert gx.tolist() == [108.0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gx.sum().backward()


def test_input_kept_as_attribute_differentiates_twice(Function):
    """L20: an input kept as an attribute of ctx carries its own history."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.x * g

    x = torch.tensor([3.0], requires_grad=True)
    (gx,) = grad(Square.apply(x), x, create_graph=True)

    assert gx.tolist() == [6.0]
    assert grad(gx, x)[0].tolist() == [2.0]


def test_output_kept_as_attribute_differentiates_twice():
    """L20: ours treats a tensor on ctx as saved, so that gradient flows through it."""

    class Exp(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.out = x.exp()
            return ctx.out

        @staticmethod
        def backward(ctx, g):
            return ctx.out * g

    x = torch.tensor([3.0], requires_grad=True)

    assert gradcheck(Exp.apply, (x,))
    assert gradgradcheck(Exp.apply, (x,))


# ---- complex and autocast ----


def test_complex_gradient_is_conjugate_wirtinger(Function):
    """L67: for a holomorphic f the gradient is the cotangent times the conjugate of f'."""

    class Square(Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, g):
            return g * (2 * ctx.saved_tensors[0]).conj()

    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    (ours,) = grad(Square.apply(z).real.sum(), z)
    (expected,) = grad((z * z).real.sum(), z)

    assert torch.equal(ours, expected)
    assert gradcheck(Square.apply, (z,))
    assert gradgradcheck(Square.apply, (z,))


def make_matmul(Function, **options):
    """A matrix product under custom_fwd and custom_bwd that tells what it saw."""

    class Matmul(Function):
        seen: ClassVar[list] = []

        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", **options)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            Matmul.seen.append((torch.is_autocast_enabled("cpu"), a.dtype))
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            Matmul.seen.append((torch.is_autocast_enabled("cpu"), (g @ b.t()).dtype))
            return g @ b.t(), a.t() @ g

    return Matmul


@pytest.mark.parametrize("enabled", [False, True])
def test_backward_runs_in_forwards_autocast_state(Function, enabled):
    """L66: with custom_fwd and custom_bwd, whatever is in force around backward."""
    Matmul = make_matmul(Function)
    a, b = (torch.eye(2, dtype=torch.float32, requires_grad=True) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        out = Matmul.apply(a, b)
    out.sum().backward()
    inside = torch.bfloat16 if enabled else torch.float32

    assert out.dtype == inside
    assert Matmul.seen == [(enabled, torch.float32), (enabled, inside)]
    assert a.grad.dtype == torch.float32


def test_cast_inputs_turns_autocast_off_inside(Function):
    """L66: cast_inputs casts floating inputs and turns autocast off in both directions."""
    Matmul = make_matmul(Function, cast_inputs=torch.float32)
    a, b = (torch.eye(2, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = Matmul.apply(a, b)
        out.sum().backward()

    assert out.dtype == torch.float32
    assert Matmul.seen == [(False, torch.float32), (False, torch.float32)]
    assert a.grad.dtype == torch.bfloat16
