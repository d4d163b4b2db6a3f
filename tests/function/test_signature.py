"""Parameters of `forward` by name and position: read, bound, and written in messages."""

import functools

import pytest
import torch

import pullback as pb
from pullback.errors import ApplyArgumentsError
from pullback.function.signature import REQUIRED, forward_signature, has_setup_context, source_place


def with_ctx(forward):
    return type("Combined", (pb.Function,), {"forward": staticmethod(forward)})


def with_setup(forward):
    space = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(lambda ctx, inputs, output: None),
    }
    return type("Split", (pb.Function,), space)


def combined(ctx, x, factor=2.0, bias=None):
    return x


def split(x, factor=2.0, bias=None):
    return x


def row(ctx, first, *rest):
    return first


def keywords(ctx, x, *, factor, bias=0.5):
    return x


# ---- reading ----


@pytest.mark.parametrize(
    ("cls", "has_setup"), [(with_ctx(combined), False), (with_setup(split), True)]
)
def test_both_styles_have_same_parameters(cls, has_setup):
    signature = forward_signature(cls)

    assert signature.has_setup == has_setup
    assert has_setup_context(cls) == has_setup
    assert signature.names == ("x", "factor", "bias")
    assert signature.defaults == (REQUIRED, 2.0, None)
    assert signature.owner == cls.__name__
    assert signature.fixed == 3


def test_setup_context_may_be_inherited():
    class Child(with_setup(split)):
        pass

    assert has_setup_context(Child)
    assert not has_setup_context(pb.Function)


def test_row_and_keywords_are_read():
    assert forward_signature(with_ctx(row)).variadic == "rest"
    assert forward_signature(with_ctx(row)).fixed == -1
    assert forward_signature(with_ctx(keywords)).keyword_only == ("factor", "bias")
    assert forward_signature(with_ctx(keywords)).keyword_defaults == (REQUIRED, 0.5)


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (combined, "x, factor=2.0, bias=None"),
        (row, "first, *rest"),
        (keywords, "x, *, factor, bias=0.5"),
        (lambda ctx: None, ""),
        (lambda ctx, *args: None, "*args"),
        (lambda ctx, x=torch.ones(2, 3): None, "x=Tensor(2, 3)"),  # noqa: B008
        (lambda ctx, x=list(range(99)): None, "x=list(...)"),
    ],
)
def test_text_is_as_written(forward, text):
    assert forward_signature(with_ctx(forward)).text() == text


def test_names_of_positions():
    signature = forward_signature(with_ctx(row))

    assert [signature.name(i) for i in range(3)] == ["first", "rest[0]", "rest[1]"]


def test_surplus_position_has_some_name():
    signature = forward_signature(with_ctx(lambda ctx, x: x))

    assert signature.name(0) == "x"
    assert isinstance(signature.name(1), str)


def test_class_method_hides_its_class():
    class Bound(pb.Function):
        @classmethod
        def forward(cls, ctx, x, factor=2.0):
            return x

    assert forward_signature(Bound).names == ("x", "factor")


def test_decorator_shows_what_it_wraps():
    def wrapped(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    assert forward_signature(with_ctx(wrapped(combined))).names == ("x", "factor", "bias")
    assert forward_signature(with_setup(wrapped(split))).names == ("x", "factor", "bias")


def test_decorator_without_trace_takes_anything():
    def wrapped(function):
        def wrapper(*args):
            return function(*args)

        return wrapper

    signature = forward_signature(with_ctx(wrapped(combined)))

    assert signature.names == ()
    assert signature.name(0).endswith("[0]")
    assert signature.fixed == -1


def test_partial_fills_its_arguments():
    signature = forward_signature(with_setup(functools.partial(split, factor=3.0)))

    assert signature.names == ("x",)


def test_builtin_without_signature_takes_anything():
    signature = forward_signature(with_setup(torch.sin))

    assert signature.fixed == -1


# ---- where it is ----


def test_place_is_file_and_line():
    assert source_place(combined) == f"test_signature.py:{combined.__code__.co_firstlineno}"


def test_place_looks_under_wrappers():
    class Bound(pb.Function):
        @classmethod
        def forward(cls, ctx, x):
            return x

    line = Bound.forward.__func__.__code__.co_firstlineno

    assert source_place(functools.wraps(combined)(lambda: None)) == source_place(combined)
    assert source_place(Bound.forward) == f"test_signature.py:{line}"


def test_unknown_place_is_empty():
    assert source_place(torch.sin) == ""
    assert source_place(functools.partial(combined)) == ""


# ---- binding ----


def bound(cls, *args, **kwargs):
    return forward_signature(cls).bind(args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, (1,)),
        ((1, 3.0), {}, (1, 3.0)),
        ((1,), {"factor": 3.0}, (1, 3.0)),
        ((1,), {"bias": 4.0}, (1, 2.0, 4.0)),
        ((), {"bias": 4.0, "x": 1}, (1, 2.0, 4.0)),
        ((1, 3.0, 4.0), {}, (1, 3.0, 4.0)),
    ],
)
def test_combined_call_fills_up_to_the_last(args, kwargs, expected):
    assert bound(with_ctx(combined), *args, **kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, (1, 2.0, None)),
        ((1,), {"bias": 4.0}, (1, 2.0, 4.0)),
        ((), {"x": 1, "factor": 3.0}, (1, 3.0, None)),
    ],
)
def test_split_call_fills_every_default(args, kwargs, expected):
    assert bound(with_setup(split), *args, **kwargs) == expected


@pytest.mark.parametrize("make", [with_ctx, with_setup])
def test_arguments_that_do_not_fit(make):
    cls = make(combined if make is with_ctx else split)
    faults = {
        (1, 2, 3, 4): "(1, 2, 3, 4): too many positional arguments: 4",
        (): "(): missing a required argument: 'x'",
    }
    for args, fault in faults.items():
        with pytest.raises(ApplyArgumentsError) as raised:
            bound(cls, *args)
        assert raised.value.facts["got"] == fault
    with pytest.raises(ApplyArgumentsError) as raised:
        bound(cls, 1, x=2)
    assert raised.value.facts["got"] == "(1, x=2): got multiple values for argument 'x'"
    with pytest.raises(ApplyArgumentsError) as raised:
        bound(cls, 1, power=2)
    assert raised.value.facts["got"] == "(1, power=2): got an unexpected keyword argument 'power'"


def test_row_takes_what_is_left():
    assert bound(with_ctx(row), 1, 2, 3) == (1, 2, 3)


# ---- what the user sees ----


class Affine(pb.Function):
    @staticmethod
    def forward(ctx, x, scale=2.0, *, shift=None, power=1):
        ctx.scale, ctx.count = scale, len(ctx.needs_input_grad)
        y = (x * scale) ** power
        return y if shift is None else y + shift

    @staticmethod
    def backward(ctx, cotangent):
        return {"x": cotangent * ctx.scale, "shift": cotangent}


class AffineSplit(pb.Function):
    @staticmethod
    def forward(x, scale=2.0, *, shift=None, power=1):
        y = (x * scale) ** power
        return y if shift is None else y + shift

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.scale, _, _ = inputs

    @staticmethod
    def backward(ctx, cotangent):
        return {"x": cotangent * ctx.scale, "shift": cotangent}


@pytest.mark.parametrize("function", [Affine, AffineSplit])
def test_keyword_only_tensor_gets_a_gradient(function):
    x, shift = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    y = function.apply(x, 3.0, shift=shift)
    y.sum().backward()

    assert y.tolist() == [4.0, 4.0]
    assert x.grad.tolist() == [3.0, 3.0]
    assert shift.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("function", [Affine, AffineSplit])
def test_keywords_in_any_order(function):
    x = torch.ones(2, requires_grad=True)
    y = function.apply(power=1, shift=torch.ones(2), scale=4.0, x=x)
    y.sum().backward()

    assert y.tolist() == [5.0, 5.0]
    assert x.grad.tolist() == [4.0, 4.0]


def test_gradient_of_unpassed_keyword_goes_nowhere():
    x = torch.ones(2, requires_grad=True)
    y = Affine.apply(x)
    y.sum().backward()

    assert y.tolist() == [2.0, 2.0]
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("function", [Affine, AffineSplit])
def test_unknown_keyword_is_refused(function):
    with pytest.raises(TypeError, match="unexpected keyword argument 'shft'"):
        function.apply(torch.ones(2), shft=1.0)


def test_default_that_was_not_passed_is_no_input():
    y = Affine.apply(torch.ones(2, requires_grad=True))

    assert y.grad_fn.count == 1


def test_missing_keyword_is_named():
    class Needs(pb.Function):
        @staticmethod
        def forward(ctx, x, *, factor):
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    with pytest.raises(TypeError, match="factor"):
        Needs.apply(torch.ones(1, requires_grad=True))


def test_keyword_default_is_kept_quiet():
    """A keyword-only parameter that nobody passes asks backward for nothing."""

    class Quiet(pb.Function):
        @staticmethod
        def forward(ctx, x, *, factor=3.0):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.factor

    x = torch.ones(2, requires_grad=True)
    Quiet.apply(x).sum().backward()

    assert x.grad.tolist() == [3.0, 3.0]
