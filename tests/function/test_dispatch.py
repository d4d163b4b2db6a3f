"""`apply`: the short way and the long one give the same; `below_autograd` guards a redispatch."""

import functools
import warnings

import pytest
import torch

import pullback as pb
from pullback.errors import HiddenTensorWarning


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


class Scale(pb.Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor, ctx.count = factor, len(ctx.needs_input_grad)
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        return (cotangent * ctx.factor, None)[: ctx.count]


class ScaleSplit(pb.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor=2.0):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent * ctx.factor


styles = pytest.mark.parametrize("function", [Scale, ScaleSplit], ids=["combined", "split"])


@styles
def test_every_way_to_call(function):
    x = leaf(1.0)
    calls = [
        lambda: function.apply(x),
        lambda: function.apply(x, 2.0),
        lambda: function.apply(x, factor=2.0),
        lambda: function.apply(x=x, factor=2.0),
        lambda: function.apply(factor=2.0, x=x),
        functools.partial(function.apply, x, factor=2.0),
        functools.partial(function.apply, factor=2.0, x=x),
    ]
    found = [torch.autograd.grad(call(), x)[0].item() for call in calls]

    assert found == [2.0] * 7


def test_apply_looks_like_torchs():
    assert Scale.apply.__name__ == "apply"
    assert Scale.apply.__self__ is Scale
    assert Scale.apply == Scale.apply
    assert Scale.apply != ScaleSplit.apply


# ---- functorch ----


def test_transforms_take_defaults_and_keywords():
    x = torch.ones(3, dtype=torch.float64)

    def total(x):
        return (ScaleSplit.apply(x) + ScaleSplit.apply(x, factor=3.0)).sum()

    assert torch.func.grad(total)(x).tolist() == [5.0] * 3
    assert torch.func.vmap(ScaleSplit.apply)(x).tolist() == [2.0] * 3
    assert torch.func.jvp(ScaleSplit.apply, (x,), (x,))[1].tolist() == [2.0] * 3


def test_first_call_may_be_transformed():
    class Fresh(ScaleSplit):
        pass

    gradient = torch.func.grad(lambda x: Fresh.apply(x).sum())(torch.ones(2))
    x = torch.ones(2, requires_grad=True)
    Fresh.apply(x).sum().backward()

    assert gradient.tolist() == [2.0, 2.0]
    assert x.grad.tolist() == [2.0, 2.0]


def test_combined_style_is_refused_by_transforms():
    with pytest.raises(RuntimeError, match="it must override the setup_context"):
        torch.func.grad(lambda x: Scale.apply(x).sum())(torch.ones(2))


@styles
def test_dead_wrapper_is_an_ordinary_tensor(function):
    leaked = []
    torch.func.grad(lambda x: leaked.append(x) or x.sum())(torch.ones(2))

    assert function.apply(leaked[0]).tolist() == [2.0, 2.0]
    assert function.apply(leaked[0], factor=3.0).tolist() == [3.0, 3.0]


# ---- containers ----


def said(function, *args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    return [w.category for w in caught]


def taker():
    class Taker(pb.Function):
        @staticmethod
        def forward(ctx, x, box=None):
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            return (cotangent, None)[: len(ctx.needs_input_grad)]

    return Taker


HIDING = {
    "list": lambda t: [t],
    "tuple": lambda t: (1, t),
    "dict": lambda t: {"a": t},
    "nested": lambda t: [1, {"a": (t,)}],
    "deepest": lambda t: [[[[t]]]],
}


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_hidden_tensor_is_found(hide):
    assert said(taker().apply, leaf(1.0), hide(leaf(1.0))) == [HiddenTensorWarning]


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_harmless_container_is_quiet(hide):
    assert said(taker().apply, leaf(1.0), hide(torch.ones(1))) == []
    assert said(taker().apply, leaf(1.0), hide("text")) == []


def test_deeper_container_is_not_searched():
    assert said(taker().apply, leaf(1.0), [[[[[leaf(1.0)]]]]]) == []


def test_hidden_tensor_in_keyword_is_found():
    assert said(taker().apply, leaf(1.0), box=[leaf(1.0)]) == [HiddenTensorWarning]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_hidden_where_nothing_is_recorded(mode):
    function = taker()
    with mode():
        quiet = said(function.apply, leaf(1.0), [leaf(1.0)])

    assert quiet == []
    assert said(function.apply, leaf(1.0), [leaf(1.0)]) == [HiddenTensorWarning]


def test_other_objects_are_not_searched():
    class Box:
        def __init__(self, tensor):
            self.tensor = tensor

        def __iter__(self):
            raise AssertionError("looked inside")

    assert said(taker().apply, leaf(1.0), Box(leaf(1.0))) == []


def test_list_that_holds_itself_is_no_trap():
    loop = [torch.ones(1)]
    loop.append(loop)

    assert said(taker().apply, leaf(1.0), loop) == []


def test_warning_as_error_is_raised():
    function = taker()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HiddenTensorWarning):
            function.apply(leaf(1.0), [leaf(1.0)])


# ---- many calls ----


def test_hundred_arguments_are_inputs():
    class Sum(pb.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return sum(tensor * tensor for tensor in tensors)

        @staticmethod
        def backward(ctx, cotangent):
            return tuple(2 * tensor * cotangent for tensor in ctx.saved_tensors)

    inputs = [leaf(float(i)) for i in range(100)]
    found = torch.autograd.grad(Sum.apply(*inputs), inputs)

    assert [g.item() for g in found] == [2.0 * i for i in range(100)]


GARBAGE = """
import gc

import torch

import pullback as pb


class Busy(pb.Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.y = x * factor
        ctx.save_for_backward(x, x * 3)
        ctx.saved_data["x"] = x
        return ctx.y, x + 1

    @staticmethod
    def backward(ctx, first, second):
        return {"x": first * ctx.saved_tensors[1] + ctx.y}


def step():
    x = torch.ones((), requires_grad=True)
    for output in (Busy.apply(x), Busy.apply(x * 1, 3.0), Busy.apply(x, factor=4.0)):
        output[0].backward()
    with torch.no_grad():
        Busy.apply(x)
    (gradient,) = torch.autograd.grad(Busy.apply(x)[0], x, create_graph=True)
    torch.autograd.grad(gradient, x)


def is_ours(thing):
    module = type(thing).__module__ or ""
    return type(thing) is torch.Tensor or module.startswith(("pullback", "__main__"))


step()
gc.collect()
gc.set_debug(gc.DEBUG_SAVEALL)
for _ in range(3):
    step()
    PLANT
gc.collect()
print(sorted({type(thing).__name__ for thing in gc.garbage if is_ours(thing)}))
"""


@pytest.mark.parametrize(
    ("planted", "found"),
    [("", "[]"), ("knot = torch.ones(2); knot.knot = knot; del knot", "['Tensor']")],
    ids=["calls", "planted"],
)
def test_repeated_calls_make_no_garbage(planted, found, run_python):
    done = run_python("-c", GARBAGE.replace("PLANT", planted))

    assert (done.stdout.strip(), done.stderr) == (found, "")


def test_memory_stays_flat_over_many_calls():
    resource = pytest.importorskip("resource")

    class Busy(pb.Function):
        @staticmethod
        def forward(ctx, x, factor=2.0):
            ctx.y = x * factor
            ctx.save_for_backward(x * 3)
            return ctx.y

        @staticmethod
        def backward(ctx, cotangent):
            return {"x": cotangent * ctx.saved_tensors[0]}

    def run(count):
        for i in range(count):
            x = torch.ones(i % 5 + 1, requires_grad=True)
            Busy.apply(x, 3.0).sum().backward()
            Busy.apply(x)

    run(2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(10_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert after - before < 4096  # kB; a leak of one tensor per call is 10,000 times 400 bytes


# ---- below autograd ----


def test_guard_records_nothing():
    x = leaf(1.0)
    with pb.below_autograd():
        below = x * 2

    assert not below.requires_grad
    assert (x * 2).requires_grad


def test_guard_ends_after_an_error():
    x = leaf(1.0)
    with pytest.raises(ZeroDivisionError), pb.below_autograd():
        raise ZeroDivisionError

    assert (x * 2).requires_grad


def test_guard_reaches_the_kernel():
    library = torch.library.Library("pullback_test_dispatch", "DEF")
    library.define("double(Tensor x) -> Tensor")
    calls = []

    class Double(pb.Function):
        @staticmethod
        def forward(ctx, x):
            with pb.below_autograd():
                return torch.ops.pullback_test_dispatch.double(x)

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * cotangent

    def kernel(x):
        calls.append(x.shape)
        return x * 2

    library.impl("double", kernel, "CPU")
    library.impl("double", Double.apply, "Autograd")
    x = leaf(1.0)
    torch.ops.pullback_test_dispatch.double(x).backward()

    assert x.grad.item() == 2.0
    assert calls == [torch.Size([1])]
