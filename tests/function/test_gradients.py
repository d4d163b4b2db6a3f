"""What `backward` returned, made into one gradient per input, or into an error."""

import collections
import warnings

import pytest
import torch

import pullback as pb
from pullback.errors import (
    BackwardArityError,
    GradientDtypeWarning,
    GradientNameError,
    GradientShapeError,
    GradientTypeError,
    NonTensorGradientError,
)
from pullback.function.gradients import by_name


def leaf(*shape, dtype=torch.float64):
    return torch.ones(shape, dtype=dtype, requires_grad=True)


def returning(result, forward=None):
    """A Function of one tensor whose backward returns `result(cotangent)`."""

    class Returning(pb.Function):
        @staticmethod
        def backward(ctx, *cotangents):
            return result(*cotangents)

    def one(ctx, x):
        return x * 1

    Returning.forward = staticmethod(forward or one)
    return Returning


def pair(result):
    """The same for `forward(x, factor, y=None)`."""

    def forward(ctx, x, factor, y=None):
        return x * factor if y is None else x * factor + y

    return returning(result, forward)


# ---- the forms of a result ----


Gradients = collections.namedtuple("Gradients", "x factor y")

FORMS = {
    "tuple": lambda g: (g, None, g * 2),
    "named tuple": lambda g: Gradients(g, None, g * 2),
    "mapping": lambda g: {"y": g * 2, "x": g},
    "ordered mapping": lambda g: collections.OrderedDict(y=g * 2, x=g),
    "chain": lambda g: collections.ChainMap({"x": g}, {"y": g * 2}),
    "mapping with none": lambda g: {"x": g, "factor": None, "y": g * 2},
    "surplus none": lambda g: (g, None, g * 2, None, None),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same(form):
    x, y = leaf(2), leaf(2)
    for _ in range(2):  # the first call of a shape looks closer than later ones
        found = torch.autograd.grad(pair(form).apply(x, 3.0, y).sum(), (x, y))

        assert [g.tolist() for g in found] == [[1.0, 1.0], [2.0, 2.0]]


def test_empty_mapping_means_no_gradient():
    x = leaf(2)
    found = torch.autograd.grad(
        returning(lambda g: {}).apply(x).sum(), x, allow_unused=True, retain_graph=True
    )

    assert found == (None,)


def test_name_left_out_means_no_gradient():
    x, y = leaf(2), leaf(2)
    output = pair(lambda g: {"y": g}).apply(x, 3.0, y).sum()
    found = torch.autograd.grad(output, (x, y), allow_unused=True)

    assert found[0] is None
    assert found[1].tolist() == [1.0, 1.0]


def test_name_of_unpassed_parameter_goes_nowhere():
    x = leaf(2)
    found = torch.autograd.grad(pair(lambda g: {"x": g, "y": g}).apply(x, 3.0).sum(), x)

    assert found[0].tolist() == [1.0, 1.0]


def test_elements_of_row_have_names():
    def forward(ctx, x, *rest):
        return x + rest[0] + rest[1]

    x, y, z = leaf(2), leaf(2), leaf(2)
    function = returning(lambda g: {"x": g, "rest[1]": g * 3}, forward)
    found = torch.autograd.grad(function.apply(x, y, z).sum(), (x, y, z), allow_unused=True)

    assert found[0].tolist() == [1.0, 1.0]
    assert found[1] is None
    assert found[2].tolist() == [3.0, 3.0]


def test_mapping_orders_by_name():
    assert by_name("F", ("x", "y"), {"y": 2, "x": 1}) == (1, 2)
    assert by_name("F", ("x", "y"), {"y": 2, "z": 3}, also=("z",)) == (None, 2)
    with pytest.raises(GradientNameError, match="names among"):
        by_name("F", ("x",), {0: 1})


# ---- what is refused ----


FAULTS = {
    "too few": (lambda g: g, BackwardArityError),
    "too many": (lambda g: (g, None, g, g), BackwardArityError),
    "empty": (lambda g: (), BackwardArityError),
    "nothing": (lambda g: None, BackwardArityError),
    "number": (lambda g: (1.0, None, g), GradientTypeError),
    "list": (lambda g: ([g], None, g), GradientTypeError),
    "array": (lambda g: (g.numpy(), None, g), GradientTypeError),
    "for a number": (lambda g: (g, g, g), NonTensorGradientError),
    "for a number by name": (lambda g: {"factor": g}, NonTensorGradientError),
    "shape": (lambda g: (g[:1], None, g), GradientShapeError),
    "shape of another": (lambda g: (g, None, g[:1].reshape(1, 1)), GradientShapeError),
    "scalar": (lambda g: (g.sum(), None, g), GradientShapeError),
    "name": (lambda g: {"z": g}, GradientNameError),
}


@pytest.mark.parametrize(("result", "kind"), FAULTS.values(), ids=FAULTS)
def test_fault_has_its_class(result, kind):
    function = pair(result)
    x, y = leaf(2), leaf(2)
    with pytest.raises(kind):
        function.apply(x, 3.0, y).sum().backward()

    assert x.grad is None
    assert y.grad is None


@pytest.mark.parametrize(("result", "kind"), FAULTS.values(), ids=FAULTS)
def test_fault_of_known_shape_still_raises(result, kind):
    """After one good backward of a shape fewer things are looked at; the engine looks at all."""
    is_good = [True]

    def sometimes(g):
        return (g, None, g) if is_good[0] else result(g)

    function = pair(sometimes)
    x, y = leaf(2), leaf(2)
    function.apply(x, 3.0, y).sum().backward()
    is_good[0] = False

    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    with pytest.raises(builtin):
        function.apply(x, 3.0, y).sum().backward()


def test_list_for_single_input_is_refused():
    with pytest.raises(GradientTypeError, match="got list"):
        returning(lambda g: [g]).apply(leaf(2)).sum().backward()


def test_fault_names_the_input():
    with pytest.raises(GradientShapeError, match=r"of the shape of `y`") as raised:
        pair(lambda g: (g, None, g[:1])).apply(leaf(2), 3.0, leaf(2)).sum().backward()

    assert raised.value.facts["expected"] == "[2], or a shape that sums down to it"
    assert raised.value.facts["got"] == "[1]"


# ---- shapes ----


@pytest.mark.parametrize(
    ("shape", "gradient", "is_accepted"),
    [
        ((2, 3), (2, 3), True),
        ((2, 3), (4, 2, 3), True),
        ((1, 3), (2, 3), True),
        ((1,), (5, 7), True),
        ((), (5, 7), True),
        ((2, 1), (2, 3), True),
        ((2, 3), (3,), False),
        ((2, 3), (1, 3), False),
        ((2, 3), (3, 2), False),
        ((2,), (), False),
        ((0,), (0,), True),
        ((1,), (0,), True),
        ((2,), (0,), False),
    ],
)
def test_shape_is_judged_as_by_the_engine(shape, gradient, is_accepted):
    def outcome(base):
        class Shaped(base):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, cotangent):
                return torch.ones(gradient, dtype=torch.float64)

        x = leaf(*shape)
        try:
            Shaped.apply(x).sum().backward()
        except RuntimeError as error:
            return type(error), None
        return None, x.grad.tolist()

    ours, theirs = outcome(pb.Function), outcome(torch.autograd.Function)

    assert (ours[0] is None) == is_accepted
    assert ours == theirs if is_accepted else ours[0] is GradientShapeError
    assert (theirs[0] is None) == is_accepted


def test_every_shape_is_looked_at():
    function = returning(lambda g: g[:1] if len(g) == 3 else g)
    function.apply(leaf(2)).sum().backward()

    with pytest.raises(GradientShapeError):
        function.apply(leaf(3)).sum().backward()


# ---- dtypes ----


def dtype_warnings(function, x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function.apply(x).real.sum().backward()
    return [w.category for w in caught if issubclass(w.category, pb.PullbackWarning)]


@pytest.mark.parametrize(
    ("result", "dtype"),
    [
        (lambda g: g.float(), torch.float64),
        (lambda g: g.double(), torch.float32),
        (lambda g: g.real, torch.complex128),
    ],
)
def test_other_dtype_warns_and_is_cast(result, dtype):
    x = leaf(2, dtype=dtype)

    assert dtype_warnings(returning(result), x) == [GradientDtypeWarning]
    assert x.grad.dtype is dtype


@pytest.mark.parametrize(
    ("result", "dtype"),
    [
        (lambda g: g, torch.float64),
        (lambda g: g, torch.complex128),
    ],
)
def test_fitting_dtype_does_not_warn(result, dtype):
    assert dtype_warnings(returning(result), leaf(2, dtype=dtype)) == []


def test_complex_gradient_of_real_input_raises():
    """PyTorch refuses it as well, after the cast has been announced."""
    function = returning(lambda g: g.to(torch.complex128))

    with pytest.raises(RuntimeError):
        function.apply(leaf(2)).sum().backward()


# ---- what else a gradient may be ----


def test_sparse_gradient_is_accepted():
    def forward(ctx, weight, index):
        ctx.index, ctx.shape = index, weight.shape
        return weight[index]

    class Embedding(pb.Function):
        @staticmethod
        def backward(ctx, cotangent):
            return torch.sparse_coo_tensor(
                ctx.index[None], cotangent, ctx.shape, check_invariants=True
            ), None

    Embedding.forward = staticmethod(forward)
    weight = leaf(3, 2)
    Embedding.apply(weight, torch.tensor([0, 2])).sum().backward()

    assert weight.grad.is_sparse
    assert weight.grad.to_dense().tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


def test_gradient_may_be_a_subclass():
    x = leaf(2)
    returning(lambda g: torch.nn.Parameter(g)).apply(x).sum().backward()

    assert x.grad.tolist() == [1.0, 1.0]


def test_cotangent_itself_may_be_returned():
    x = leaf(2)
    function = returning(lambda g: g)
    function.apply(x).backward(torch.full((2,), 3.0, dtype=torch.float64))
    function.apply(x).backward(torch.full((2,), 3.0, dtype=torch.float64))

    assert x.grad.tolist() == [6.0, 6.0]


def test_unneeded_gradient_may_have_any_shape():
    x, y = leaf(2), torch.ones(2, dtype=torch.float64)
    pair(lambda g: (g, None, g.sum())).apply(x, 3.0, y).sum().backward()

    assert x.grad.tolist() == [1.0, 1.0]


def test_backward_called_by_hand_is_checked():
    class Product(pb.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * w

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    x = torch.ones(2, requires_grad=True)
    node = Product.apply(x, torch.ones(2)).grad_fn

    with pytest.raises(BackwardArityError, match="one value per input"):
        node.apply(torch.ones(2))
