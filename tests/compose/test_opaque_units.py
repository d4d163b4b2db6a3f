"""Functions that cannot be traced, inside compositions: as they are, the rest fused around them."""

import ctypes

import numpy
import pytest
import torch

import pullback as pb
from pullback.capture.joint import capture
from pullback.errors import CaptureError, UncompiledWarning

pytestmark = pytest.mark.filterwarnings("error:W501")


class NumPyExp(torch.autograd.Function):
    """Saves its output; a plain argument."""

    @staticmethod
    def forward(ctx, x, rate):
        y = torch.from_numpy(numpy.exp(rate * x.numpy()))
        ctx.save_for_backward(y)
        ctx.rate = rate
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(ctx.rate * cotangent.numpy() * y.numpy()), None


class CProduct(torch.autograd.Function):
    """Reads memory by its address, as C++ and kernels do; saves views of its inputs."""

    @staticmethod
    def forward(ctx, x, y):
        x, y = x.contiguous(), y.contiguous()
        made = torch.empty_like(x)
        count = x.numel()
        a, b, c = ((ctypes.c_double * count).from_address(one.data_ptr()) for one in (x, y, made))
        for place in range(count):
            c[place] = a[place] * b[place]
        ctx.save_for_backward(x.view(-1), y.view(-1))
        return made

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        flat = torch.from_numpy(cotangent.contiguous().numpy()).view(-1)
        grad_x = (flat * y).view_as(cotangent) if ctx.needs_input_grad[0] else None
        grad_y = (flat * x).view_as(cotangent) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y


class Largest(torch.autograd.Function):
    """Decides on a value; two outputs, one of them an index without a gradient."""

    @staticmethod
    def forward(ctx, x):
        place = x.argmax().item()
        ctx.place, ctx.shape = place, x.shape
        index = torch.tensor(place)
        ctx.mark_non_differentiable(index)
        return x.flatten()[place].clone(), index

    @staticmethod
    def backward(ctx, cotangent, _):
        made = torch.zeros(ctx.shape, dtype=cotangent.dtype)
        made.view(-1)[ctx.place] = cotangent
        return made


class Surrogate(torch.autograd.Function):
    """A step with a slope of its own, that ignores its second argument in backward."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        return torch.from_numpy((x.numpy() > 0).astype("float64")) * scale

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent / (1 + x.abs()) ** 2, None


class BackwardOnly(torch.autograd.Function):
    """Only its backward cannot be traced."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(cotangent.numpy() * numpy.cos(x.numpy()))


class Overwriting(torch.autograd.Function):
    """Its backward writes over what it saved, and over its cotangent, as some kernels do."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.numpy() ** 2)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        x.numpy()[...] *= 2 * cotangent.numpy()
        cotangent.numpy()[...] = 0
        return x


def exp_between(x, y):
    return NumPyExp.apply(x.sin() * y, 0.5).cos() * x


def product_between(x, y):
    return CProduct.apply(x.sin(), y.t().contiguous().t() * 2).tanh() + x


def largest_between(x, y):
    value, index = Largest.apply(x.exp())
    return value * y.sin(), index


def surrogate_between(x, y):
    return Surrogate.apply(x.sin(), y.cos()) * x


def backward_only_between(x, y):
    return BackwardOnly.apply(x * y).exp()


def overwriting_between(x, y):
    return Overwriting.apply(x * y) * x.sin()


def overwriting_what_others_read(x, y):
    inner = x * y
    return Overwriting.apply(inner) + inner.sin()


def two_of_them(x, y):
    return CProduct.apply(NumPyExp.apply(x, 2.0).sin(), NumPyExp.apply(y, -1.0)) * x


PROGRAMS = [
    exp_between,
    product_between,
    largest_between,
    surrogate_between,
    backward_only_between,
    overwriting_between,
    two_of_them,
]


def drawn(*shape, seed=0, needs=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(needs)


def pulled(run, args):
    row = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    made = run(*row)
    outputs = made if isinstance(made, tuple) else (made,)
    live = [one for one in outputs if one.requires_grad]
    needing = [x for x in row if x.requires_grad]
    given = [torch.full_like(one, 1.5) for one in live]
    return outputs, torch.autograd.grad(live, needing, given, allow_unused=True)


def assert_same(run, program, args):
    for got, expected in zip(pulled(run, args), pulled(program, args), strict=True):
        for mine, theirs in zip(got, expected, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_node_with_the_same_gradients(program):
    args = drawn(4, 3), drawn(4, 3, seed=1)
    run = pb.combine(program, *args, backend="eager")
    made = run(*args)
    first = made[0] if isinstance(made, tuple) else made
    assert "".join(word.title() for word in program.__name__.split("_")) in first.grad_fn.name()
    assert_same(run, program, args)
    assert "not traced" in run.explain()


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "program",
    [
        overwriting_between,
        *(pytest.param(p, marks=pytest.mark.slow) for p in (exp_between, product_between)),
    ],
)
def test_the_rest_is_compiled_around_it(program):
    args = drawn(4, 3), drawn(4, 3, seed=1)
    run = pb.combine(program, *args, backend="inductor")
    for _ in range(2):
        assert_same(run, program, args)
    assert 'run by backend "inductor"' in run.explain()


def test_other_sizes_are_seen_anew():
    run = pb.combine(exp_between, drawn(4, 3), drawn(4, 3, seed=1), backend="eager")
    args = drawn(7, 2, seed=2), drawn(7, 2, seed=3)
    assert_same(run, exp_between, args)
    assert "ExpBetween" in run(*args).grad_fn.name()


def test_only_what_needs_a_gradient_gets_one():
    args = drawn(4, 3), drawn(4, 3, seed=1, needs=False)
    run = pb.combine(product_between, *args, backend="eager")
    assert_same(run, product_between, args)


def test_backward_twice_gives_the_same_twice():
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    made = pb.combine(overwriting_between, x, y, backend="eager")(x, y).sum()
    first = torch.autograd.grad(made, (x, y), retain_graph=True)
    again = torch.autograd.grad(made, (x, y))
    assert all(map(torch.equal, first, again))
    expected = torch.autograd.grad(overwriting_between(x, y).sum(), (x, y))
    torch.testing.assert_close(first, expected)


def test_what_is_wrong_as_written_stays_so_and_is_said():
    """Its backward writes over what another one reads: only in the order as written is it so."""
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    with pytest.warns(UncompiledWarning, match="must be captured to be one node"):
        run = pb.combine(overwriting_what_others_read, x, y, backend="eager")
    assert run.composed == "nested"


def test_without_gradients_the_program_runs():
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    run = pb.combine(exp_between, x, y, backend="eager")
    with torch.no_grad():
        assert torch.equal(run(x, y), exp_between(x, y))


class Cube(torch.autograd.Function):
    """Decides on a value, and is made of ops all the same: it has a second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 if x.sum().item() > -1e9 else x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


def test_second_derivatives_are_those_of_the_program():
    def program(x):
        return Cube.apply(x.sin()) * x

    x = drawn(5)
    run = pb.combine(program, x, backend="eager")
    assert "not traced" in run.explain()
    assert torch.autograd.gradgradcheck(run, (x,))


def test_a_second_derivative_that_it_has_not_is_refused():
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    run = pb.combine(exp_between, x, y, backend="eager")
    with pytest.raises(RuntimeError):
        (first,) = torch.autograd.grad(run(x, y).sum(), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)


def test_groups_hold_it_too():
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    run = pb.hybrid(exp_between, x, y, groups=[(0, 1, 2, 3, 4)], backend="eager")
    assert_same(run, exp_between, (x, y))
    assert "one node: 0 sin, 1 mul, 2 NumPyExp, 3 cos, 4 mul" in run.explain()


def test_modules_hold_it_too():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(drawn(3, 3, seed=4).detach())

        def forward(self, x):
            return NumPyExp.apply(x @ self.weight, 0.1).sin()

    layer, x = Layer(), drawn(4, 3)
    fast = pb.combine(layer, x, backend="eager")
    fast(x).sum().backward()
    got, layer.weight.grad = layer.weight.grad, None
    layer(x).sum().backward()
    torch.testing.assert_close(got, layer.weight.grad)
    assert fast(x).grad_fn.name() == "LayerBackward"


# ---- what is said, and refused ----


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.numpy()[...] += 1
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Silent(torch.autograd.Function):
    """Changes its argument, and says nothing of it."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(numpy.sin(x.numpy()))
        x.numpy()[...] = 0
        return y

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Holding(torch.autograd.Function):
    """Keeps its argument by itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return torch.from_numpy(numpy.sin(x.numpy()))

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.x.cos()


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.numpy() + torch.rand(x.shape, dtype=x.dtype).numpy())

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


@pytest.mark.parametrize(
    ("cls", "got"),
    [
        (Dirty, "changed by its `forward`"),
        (Silent, "tensor 0 of its arguments, changed by its `forward`"),
        (Holding, "`ctx.x`"),
        (Noisy, "numbers drawn by its `forward`"),
    ],
)
def test_what_an_op_may_not_do_runs_as_written_and_is_said(cls, got):
    def program(x):
        return cls.apply(x.sin()) * 2

    with pytest.warns(UncompiledWarning, match="W501"):
        run = pb.combine(program, drawn(4), backend="eager")
    assert run.composed == "nested"
    assert got in run.explain()
    assert f"`{cls.__name__}` must" in run.explain()


def test_outputs_of_other_shapes_are_refused():
    class Positive(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x > 0)
            return torch.from_numpy(x.numpy()[x.numpy() > 0])

        @staticmethod
        def backward(ctx, cotangent):
            (mask,) = ctx.saved_tensors
            return torch.zeros(mask.shape, dtype=cotangent.dtype).masked_scatter(mask, cotangent)

    def program(x):
        return Positive.apply(x * 2) * 3

    run = pb.combine(program, torch.tensor([1.0, -1.0, 2.0], requires_grad=True), backend="eager")
    x = torch.tensor([1.0, 1.0, 2.0], requires_grad=True)
    with pytest.raises(CaptureError, match="`Positive` must give tensors of one shape"):
        run(x)


def test_saved_tensors_that_hooks_copy_are_refused():
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    run = pb.combine(exp_between, x, y, backend="eager")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        made = run(x, y)
    with pytest.raises(CaptureError, match="as hooks on saved tensors make"):
        made.sum().backward()


def test_an_error_of_the_function_is_raised_as_it_is():
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.dim() != 3:
                raise ValueError("three dimensions")
            return x.clone()

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    with pytest.raises(ValueError, match="three dimensions"):
        pb.combine(lambda x: Picky.apply(x).sin(), drawn(4))


def test_text_is_refused_in_words():
    run = pb.combine(exp_between, drawn(4, 3), drawn(4, 3, seed=1), backend="eager")
    with pytest.raises(CaptureError, match="`NumPyExp`, which runs as it is"):
        run.source()
    with pytest.raises(CaptureError):
        pb.derive(exp_between, drawn(4, 3), drawn(4, 3, seed=1))


def test_captures_do_so_only_where_they_are_asked_to():
    x, y = drawn(4, 3), drawn(4, 3, seed=1)
    with pytest.raises(CaptureError, match="NumPy"):
        capture(exp_between, (x, y))
    assert capture(exp_between, (x, y), opaque=True).opaque == ("NumPyExp",)
