"""Section A: arguments of `apply`, the mode `forward` runs in, and what comes out."""

import warnings

import pytest
import torch
from torch.autograd import grad

import pullback as pb


def make_product(Function):
    """`x + factor * y + x * y` with a plain number between two tensors, in the Python spelling."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x, factor, y):
            ctx.factor = factor
            ctx.save_for_backward(x, y)
            return x + factor * y + x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g + g * y, None, g * ctx.factor + g * x

    return Product


class ProductByName(pb.Function):
    """The same function in the C++ spelling."""

    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.saved_data["factor"] = factor
        ctx.save_for_backward(x, y)
        return x + factor * y + x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.get_saved_variables()
        return g + g * y, None, g * ctx.saved_data["factor"] + g * x


def make_identity(Function, *, save=False):
    """Returns its input as it is; its gradient is three times the cotangent."""

    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            if save:
                ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved_tensors[0] if save else 3 * g

    return Identity


def make_double(Function):
    """`2 * x`, with nothing saved."""

    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    return Double


# ---- arguments ----


def require_right_product(Product):
    x, y = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    out = Product.apply(x, 4, y)
    gx, gy = grad(out.sum(), (x, y), create_graph=True)
    (mixed,) = grad(gx.sum(), y)

    assert torch.equal(out, x + 4 * y + x * y)
    assert torch.equal(gx, y + 1)
    assert torch.equal(gy, x + 4)
    assert torch.equal(mixed, torch.ones(5, 5))


def test_tensors_and_plain_values_mix(Function):
    """A01: a plain value among tensors, kept as an attribute; also with create_graph."""
    require_right_product(make_product(Function))


def test_saved_data_and_saved_tensors_come_back():
    """A01: a plain value kept in saved_data and two saved tensors; also with create_graph."""
    require_right_product(ProductByName)


def test_arguments_may_be_of_any_kind(Function):
    """L01: forward takes any number and kind of arguments, as they are."""
    seen = []

    class Takes(Function):
        @staticmethod
        def forward(ctx, *args):
            seen.append(args)
            return args[1] * 2

        @staticmethod
        def backward(ctx, g):
            return None, 2 * g, None, None, None, None

    x = torch.ones(2, requires_grad=True)
    given = ("text", x, 3, None, {"a": 1}, object())
    (gx,) = grad(Takes.apply(*given).sum(), x)

    assert [got is sent for got, sent in zip(seen[0], given, strict=True)] == [True] * 6
    assert torch.equal(gx, torch.full((2,), 2.0))


def test_default_values_work_in_combined_forward(Function):
    """L01: an argument left out takes its default; a surplus None is its gradient."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, factor=2.0):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    x = torch.ones(3, requires_grad=True)

    assert grad(Scale.apply(x).sum(), x)[0].tolist() == [2.0] * 3
    assert grad(Scale.apply(x, 5.0).sum(), x)[0].tolist() == [5.0] * 3


def make_split_scale(Function):
    """`x * factor + shift` with `setup_context`, two arguments of it optional."""

    class Scale(Function):
        @staticmethod
        def forward(x, factor=2.0, shift=1.0):
            return x * factor + shift

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.inputs = inputs[1:]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.inputs[0], None, None

    return Scale


def test_default_values_work_with_setup_context(Function):
    """L01: with setup_context a default is one of the inputs, and takes a gradient."""
    Scale = make_split_scale(Function)
    x = torch.ones(3, requires_grad=True)
    out = Scale.apply(x)

    assert out.tolist() == [3.0] * 3
    assert out.grad_fn.inputs == (2.0, 1.0)
    assert grad(out.sum(), x)[0].tolist() == [2.0] * 3


@pytest.mark.usefixtures("takes_keywords")
def test_keyword_arguments_bind_with_setup_context(Function):
    """L08: keyword arguments are bound to forward's signature, in any order."""
    Scale = make_split_scale(Function)
    x = torch.ones(3, requires_grad=True)
    out = Scale.apply(shift=10.0, x=x)

    assert out.tolist() == [12.0] * 3
    assert out.grad_fn.inputs == (2.0, 10.0)
    assert grad(out.sum(), x)[0].tolist() == [2.0] * 3


@pytest.mark.usefixtures("takes_keywords")
def test_keyword_arguments_bind_in_combined_forward(Function):
    """L08: keyword arguments of a combined forward, also for tensors and out of order."""
    Product = make_product(Function)
    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    out = Product.apply(y=y, x=x, factor=5)
    gx, gy = grad(out.sum(), (x, y))

    assert out.tolist() == [19.0, 19.0]
    assert gx.tolist() == [4.0, 4.0]
    assert gy.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("arguments", [{"factr": 2}, {"x": 2}])
def test_wrong_keyword_is_a_type_error(Function, arguments):
    """L08: a keyword that forward does not have, or has already, is refused."""
    with pytest.raises(TypeError):
        make_split_scale(Function).apply(torch.ones(2, requires_grad=True), **arguments)


def test_apply_may_be_aliased(Function):
    """L08: `Fn.apply` kept under another name is a plain function."""
    double = make_double(Function).apply
    x = torch.ones(2, requires_grad=True)

    assert grad(double(x).sum(), x)[0].tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [list, tuple, lambda x: {"x": x[0]}, lambda x: [x]])
def test_containers_are_not_traversed(Function, wrap):
    """L03: only a tensor passed directly is tracked."""

    class First(Function):
        @staticmethod
        def forward(ctx, box):
            inner = box["x"] if isinstance(box, dict) else box[0]
            return (inner[0] if isinstance(inner, list) else inner) * 2

        @staticmethod
        def backward(ctx, g):
            return None

    x = torch.ones(2, requires_grad=True)
    out = First.apply(wrap([x]))

    assert out.tolist() == [2.0, 2.0]
    assert not out.requires_grad


def test_hidden_tensor_warns_only_once():
    """L03: a tensor that requires grad, hidden in a container, is worth one warning."""

    class Hidden(pb.Function):
        @staticmethod
        def forward(ctx, box, y):
            return box[0] * y

        @staticmethod
        def backward(ctx, g):
            return None, g

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Hidden.apply([x], y)
        Hidden.apply([x], y)

    assert len(caught) == 1
    assert "box" in str(caught[0].message)


# ---- returning an input ----


def test_returned_input_may_also_be_saved(Function):
    """A02: a combined forward may save the input that it returns as it is."""
    x = torch.tensor([2.0, 5.0], requires_grad=True)
    (gx,) = grad(make_identity(Function, save=True).apply(x).sum(), x)

    assert gx.tolist() == [6.0, 15.0]


def test_returned_input_is_a_view(Function):
    """A03: a new tensor object, a view, whose grad_fn is this Function's."""
    x = torch.ones(2, requires_grad=True)
    out = make_identity(Function).apply(x)

    assert out is not x
    assert out._is_view()
    assert out.data_ptr() == x.data_ptr()
    assert out.grad_fn.name() == "IdentityBackward"
    assert grad(out.sum(), x)[0].tolist() == [3.0, 3.0]


def test_returned_input_keeps_its_own_history(Function):
    """A03: the caller's tensor is as before, leaf or not."""
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    node = y.grad_fn
    make_identity(Function).apply(x)
    make_identity(Function).apply(y)

    assert x.is_leaf
    assert x.grad_fn is None
    assert y.grad_fn is node


def test_saved_and_returned_raises_with_setup_context(Function):
    """L11: with setup_context it is an error that tells the way out."""

    class Identity(Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(RuntimeError, match="view_as"):
        Identity.apply(torch.ones(2, requires_grad=True))


# ---- grad mode ----


@pytest.mark.parametrize("create_graph", [False, True])
def test_forward_and_backward_run_in_their_mode(Function, create_graph):
    """A04: recording is off in forward, and on in backward exactly with create_graph."""
    seen = []

    class Watch(Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(torch.is_grad_enabled())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append(torch.is_grad_enabled())
            return g * 2

    x = torch.ones(2, requires_grad=True)
    grad(Watch.apply(x).sum(), x, create_graph=create_graph)

    assert seen == [False, create_graph]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("style", ["combined", "setup_context"])
def test_nothing_is_recorded_inside_forward(Function, style):
    """L02, L07: what forward computes from its inputs has no history until apply returns."""
    seen = []

    class Combined(Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((x * 2).requires_grad)
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return g * 3

    class Split(Combined):
        @staticmethod
        def forward(x):
            seen.append((x * 2).requires_grad)
            return x * 3

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append((inputs[0] * 2).requires_grad)

    x = torch.ones(2, requires_grad=True)
    out = (Combined if style == "combined" else Split).apply(x)

    assert set(seen) == {False}
    assert out.requires_grad


@pytest.mark.parametrize("make", [make_double, make_identity])
def test_no_grad_records_nothing(Function, make):
    """A05, L10: no grad_fn, and the input's requires_grad is left alone, also when returned."""
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        out = make(Function).apply(x)

    assert not out.requires_grad
    assert out.grad_fn is None
    assert x.requires_grad


def test_inference_mode_gives_plain_result(Function):
    """A06, L10: apply works in inference mode with save_for_backward."""
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        out = make_product(Function).apply(x, 4, torch.ones(2))

    assert out.tolist() == [6.0, 6.0]
    assert out.is_inference()
    assert out.grad_fn is None


def test_inference_mode_allows_saved_data():
    """A06: apply works in inference mode with saved_data too."""
    with torch.inference_mode():
        out = ProductByName.apply(torch.ones(2), 4, torch.ones(2))

    assert out.tolist() == [6.0, 6.0]
    assert out.is_inference()


def test_no_grad_fn_without_differentiable_input(Function):
    """A07: no tensor argument requires grad, so the output has no grad_fn."""
    out = make_double(Function).apply(torch.ones(2))

    assert out.grad_fn is None
    assert not out.requires_grad


# ---- outputs ----


def make_outputs(Function, outputs_of):
    """Returns `outputs_of(x)`, and keeps the cotangents it is given on the class."""

    class Several(Function):
        cotangents = ()

        @staticmethod
        def forward(ctx, x):
            return outputs_of(x)

        @staticmethod
        def backward(ctx, *cotangents):
            Several.cotangents = cotangents
            return sum(g for g in cotangents if g is not None)

    return Several


def test_one_tensor_comes_back_as_one(Function):
    """A08: a tensor from forward is a tensor from apply, output number 0."""
    out = make_double(Function).apply(torch.ones(2, requires_grad=True))

    assert isinstance(out, torch.Tensor)
    assert out.output_nr == 0


def test_several_outputs_share_one_node(Function):
    """A08, L07: several come back in order, with one grad_fn and numbers 0, 1, 2."""
    Several = make_outputs(Function, lambda x: (x * 2, x * 3, x * 4))
    outs = Several.apply(torch.ones(2, requires_grad=True))

    assert [out[0].item() for out in outs] == [2.0, 3.0, 4.0]
    assert [out.output_nr for out in outs] == [0, 1, 2]
    assert len({out.grad_fn for out in outs}) == 1
    assert outs[0].grad_fn.name() == "SeveralBackward"


def test_one_tuple_comes_back_as_tuple(Function):
    """A08: a tuple with one tensor stays a tuple."""
    out = make_outputs(Function, lambda x: (x * 2,)).apply(torch.ones(2, requires_grad=True))

    assert type(out) is tuple
    assert len(out) == 1
    assert out[0].requires_grad


def test_list_of_outputs_is_tracked():
    """L55: forward may return a list; every tensor in it is an output."""
    Several = make_outputs(pb.Function, lambda x: [x * 2, x * 3])
    x = torch.ones(2, requires_grad=True)
    first, second = Several.apply(x)
    (gx,) = grad((first + 10 * second).sum(), x)

    assert [first.output_nr, second.output_nr] == [0, 1]
    assert first.grad_fn is second.grad_fn
    assert gx.tolist() == [11.0, 11.0]


def test_one_cotangent_per_output(Function):
    """L12: backward gets one gradient per output, each that output's own."""
    Several = make_outputs(Function, lambda x: (x * 1, x * 1, x * 1))
    x = torch.ones(2, requires_grad=True)
    first, second, third = Several.apply(x)
    grad((first + 10 * second + 100 * third).sum(), x)

    assert [g.tolist() for g in Several.cotangents] == [[1.0] * 2, [10.0] * 2, [100.0] * 2]


def test_plain_outputs_pass_and_give_none(Function):
    """L04: an output that is no tensor comes out as it is; its cotangent is None."""
    note = object()
    Several = make_outputs(Function, lambda x: (note, x * 2, "text", None))
    x = torch.ones(2, requires_grad=True)
    first, out, text, nothing = Several.apply(x)
    grad(out.sum(), x)

    assert first is note
    assert (text, nothing) == ("text", None)
    assert Several.cotangents[0] is None
    assert Several.cotangents[1].tolist() == [1.0, 1.0]
    assert Several.cotangents[2:] == (None, None)


def test_same_tensor_in_two_positions(Function):
    """A09: the two results are equal, and a gradient through both is right."""

    def twice(x):
        y = x * 2
        return y, y

    Several = make_outputs(Function, twice)
    x = torch.ones(2, requires_grad=True)
    first, second = Several.apply(x)
    (gx,) = grad((first + 10 * second).sum(), x)

    assert torch.equal(first, second)
    assert gx.tolist() == [11.0, 11.0]


@pytest.mark.parametrize("kind", ["tensor", "one", "two", "mixed"])
def test_setup_context_sees_inputs_and_output(Function, kind):
    """L06: all inputs as a tuple, and the output exactly as forward returned it."""
    returned, seen = [], []
    shapes = {
        "tensor": lambda x: x * 2,
        "one": lambda x: (x * 2,),
        "two": lambda x: (x * 2, x * 3),
        "mixed": lambda x: (x * 2, "text"),
    }

    class Split(Function):
        @staticmethod
        def forward(x, name):
            returned.append(shapes[name](x))
            return returned[0]

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append((inputs, output))

        @staticmethod
        def backward(ctx, *cotangents):
            return cotangents[0], None

    x = torch.ones(2, requires_grad=True)
    Split.apply(x, kind)
    inputs, output = seen[0]

    assert type(inputs) is tuple
    assert inputs[0] is x
    assert inputs[1] == kind
    assert output is returned[0]


@pytest.mark.parametrize("style", ["combined", "setup_context"])
def test_both_styles_give_one_function(Function, style):
    """L05: combined forward, or forward with setup_context: the same gradients."""

    class Combined(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    class Split(Combined):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    Product = Combined if style == "combined" else Split

    assert torch.autograd.gradcheck(Product.apply, (x, y))
    assert torch.autograd.gradgradcheck(Product.apply, (x, y))


# ---- misuse ----


class Odd(Exception):
    """An error that only a test could raise."""


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_exception_keeps_its_own_type(Function, place):
    """A10: what forward or backward raises reaches the caller; the next call works."""
    broken = [place]

    class Fails(Function):
        @staticmethod
        def forward(ctx, x):
            if broken == ["forward"]:
                raise Odd("in forward")
            return x * 2

        @staticmethod
        def backward(ctx, g):
            if broken == ["backward"]:
                raise Odd("in backward")
            return g * 2

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(Odd, match=f"in {place}"):
        Fails.apply(x).sum().backward()
    broken.clear()

    assert torch.is_grad_enabled()
    assert grad(Fails.apply(x).sum(), x)[0].tolist() == [2.0, 2.0]


def test_instantiating_warns_and_calling_raises(Function):
    """L09: a Function is used through its class only."""
    Double = make_double(Function)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = Double()

    with pytest.raises(RuntimeError, match=r"(?i)static forward"):
        instance(torch.ones(2))


def test_missing_forward_is_not_implemented(Function):
    """L09: a Function without a forward says so."""

    class Empty(Function):
        pass

    with pytest.raises(NotImplementedError, match="forward"):
        Empty.apply(torch.ones(2))
