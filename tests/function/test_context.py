"""`ctx`: tensors on it behave as if saved, and leave nothing behind."""

import copy
import gc
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import pullback as pb


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def no_collector():
    """Without the cycle collector: what is freed was freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Attributes(pb.Function):
    """6 x**2, its gradient made from two attributes and one saved tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.double, ctx.triple = x * 2, x * 3
        ctx.save_for_backward(x)
        return ctx.double * ctx.triple

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * (ctx.double * 3 + ctx.triple * 2) * x / x


class Data(pb.Function):
    """6 x**2, its gradient made from two tensors in `saved_data`."""

    @staticmethod
    def forward(ctx, x):
        ctx.saved_data["double"], ctx.saved_data["triple"] = x * 2, x * 3
        ctx.save_for_backward(x)
        return ctx.saved_data["double"] * ctx.saved_data["triple"]

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        double, triple = ctx.saved_data["double"], ctx.saved_data["triple"]
        return cotangent * (double * 3 + triple * 2) * x / x


both = pytest.mark.parametrize("function", [Attributes, Data], ids=["attributes", "saved_data"])


def keeping(pick):
    """Keeps `pick(x, y)` as an attribute; y is exp(x), and its gradient."""

    class Keeping(pb.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.kept = pick(x, y)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, cotangent):
            Keeping.read = ctx.kept
            return cotangent * ctx.saved_tensors[0]

    return Keeping


# ---- as if saved: changes in place ----


KEPT = {
    "input": lambda x, y: x,
    "output": lambda x, y: y,
    "view of input": lambda x, y: x[:1],
}


@pytest.mark.parametrize("pick", KEPT.values(), ids=KEPT)
def test_change_in_place_is_noticed(pick):
    function = keeping(pick)
    x = leaf(1.0, 2.0) * 1
    y = function.apply(x)
    with torch.no_grad():
        x.add_(1)
        y.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_change_of_an_intermediate_is_noticed():
    held = []

    def pick(x, y):
        held.append(y * 2)
        return held[0]

    y = keeping(pick).apply(leaf(1.0))
    held[0].add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@both
def test_change_during_forward_is_allowed(function):
    class Filling(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.buffer = torch.empty_like(x)
            ctx.buffer.copy_(x).mul_(2)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.buffer

    x = leaf(3.0)
    Filling.apply(x).backward()

    assert x.grad.item() == 6.0


def test_saved_tensors_are_checked_together():
    """As with `saved_tensors`: reading one attribute asks after everything that was saved."""

    class Reading(pb.Function):
        @staticmethod
        def forward(ctx, x, other):
            ctx.save_for_backward(other)
            ctx.double, ctx.other = x * 2, other
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.double, None

    x, other = leaf(3.0), torch.ones(1)
    y = Reading.apply(x, other)
    other.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


# ---- as if saved: hooks ----


@both
def test_hooks_see_every_tensor_once(function):
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tensor.item())
        return tensor

    def unpack(tensor):
        unpacked.append(tensor.item())
        return tensor

    x = leaf(1.0)
    with saved_tensors_hooks(pack, unpack):
        y = function.apply(x)
    y.backward()

    assert packed == [1.0, 2.0, 3.0]
    assert sorted(unpacked) == [1.0, 2.0, 3.0]
    assert x.grad.item() == 12.0


@pytest.mark.parametrize("keeps", ["intermediate", "attribute"])
def test_what_is_saved_is_unpacked_once_per_backward(keeps):
    class Exp(pb.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            if keeps == "attribute":
                ctx.y = y
            ctx.save_for_backward(y)
            return y * 2

        @staticmethod
        def backward(ctx, cotangent):
            (first,), (second,) = ctx.saved_tensors, ctx.saved_tensors
            return cotangent * (first + second)

    unpacked = []

    def unpack(tensor):
        unpacked.append(tensor)
        return tensor

    x = leaf(1.0)
    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = Exp.apply(x)
    y.backward(retain_graph=True)
    once = len(unpacked)
    y.backward()

    assert once == (2 if keeps == "attribute" else 1)
    assert len(unpacked) == 2 * once


@both
def test_unpacked_value_is_what_is_read(function):
    x = leaf(1.0)
    with saved_tensors_hooks(lambda t: t, lambda t: t * 10):
        y = function.apply(x)
    y.backward()

    assert x.grad.item() == 120.0


@both
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_checkpoint_recomputes_the_tensors(function, use_reentrant):
    x = leaf(1.0, 2.0)
    y = checkpoint(lambda x: function.apply(x * 1) * 1, x, use_reentrant=use_reentrant)
    y.sum().backward()

    assert torch.equal(x.grad, 12 * x.detach())


@both
def test_checkpoint_holds_no_tensor(function):
    made = []

    class Noting(function):
        @staticmethod
        def forward(ctx, x):
            y = function.forward(ctx, x)
            kept = ctx.saved_data["double"] if function is Data else ctx.double
            made.append(weakref.ref(kept))
            return y

    x = leaf(1.0)
    y = checkpoint(lambda x: Noting.apply(x * 1) * 1, x, use_reentrant=False)

    assert made[0]() is None
    y.backward()
    assert x.grad.item() == 12.0


@both
def test_tensors_are_kept_on_the_cpu(function):
    x = leaf(1.0, 2.0)
    with save_on_cpu():
        y = function.apply(x)
    y.sum().backward()

    assert torch.equal(x.grad, 12 * x.detach())


# ---- as if saved: released ----


@pytest.mark.parametrize("kept", ["attribute", "saved_data", "both places"])
def test_tensor_is_freed_after_backward(kept, no_collector):
    made = []

    class Making(pb.Function):
        @staticmethod
        def forward(ctx, x):
            middle = x * 2
            made.append(weakref.ref(middle))
            if kept != "saved_data":
                ctx.middle = middle
            if kept != "attribute":
                ctx.saved_data["middle"] = middle
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            read = ctx.saved_data["middle"] if kept == "saved_data" else ctx.middle
            return cotangent * read

    x = leaf(3.0)
    y = Making.apply(x)

    assert made[0]() is not None
    y.backward()
    assert made[0]() is None
    assert x.grad.item() == 6.0


def test_released_tensor_says_so():
    y = Attributes.apply(leaf(1.0))
    node = y.grad_fn
    y.backward()

    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = node.double


def test_retained_graph_reads_again():
    x = leaf(1.0)
    y = Attributes.apply(x)
    y.backward(retain_graph=True)
    y.backward()

    assert x.grad.item() == 24.0


@pytest.mark.parametrize("place", ["attribute", "saved_data", "replaced", "nested tuple"])
def test_output_on_ctx_makes_no_cycle(place, no_collector):
    class Exp(pb.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            if place == "saved_data":
                ctx.saved_data["y"] = y
            elif place == "replaced":
                ctx.y = x
                ctx.y = y
            else:
                ctx.y = y
            return (y, y + 1) if place == "nested tuple" else y

        @staticmethod
        def backward(ctx, cotangent, *_):
            return cotangent * (ctx.saved_data["y"] if place == "saved_data" else ctx.y)

    def run(*, backward):
        y = Exp.apply(leaf(1.0))
        y = y[0] if isinstance(y, tuple) else y
        node, tensor = weakref.ref(y.grad_fn), weakref.ref(y)
        if backward:
            y.backward()
        return node, tensor

    for backward in (False, True):
        assert [ref() for ref in run(backward=backward)] == [None, None]


def test_context_is_in_no_cycle(no_collector):
    seen = []

    class Busy(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept, ctx.saved_data["x"], ctx.number = x * 2, x, 5
            seen.append((weakref.ref(ctx), ctx.needs_input_grad[0], ctx.needs_input_grad(0)))
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            assert ctx.needs_input_grad(0)
            return cotangent * ctx.kept

    Busy.apply(leaf(1.0))
    Busy.apply(leaf(1.0)).backward()
    with torch.no_grad():
        Busy.apply(leaf(1.0))

    assert [ref() for ref, *_ in seen] == [None, None, None]


# ---- still an attribute ----


def test_attribute_reads_back_in_forward():
    class Reading(pb.Function):
        @staticmethod
        def forward(ctx, x):
            middle = x * 2
            ctx.middle = middle
            assert ctx.middle is middle
            assert hasattr(ctx, "middle")
            ctx.saved_data["middle"] = middle
            assert ctx.saved_data["middle"] is middle
            return ctx.middle * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    x = leaf(1.0)
    Reading.apply(x).backward()

    assert x.grad.item() == 2.0


@pytest.mark.parametrize(
    ("pick", "is_same"), [(KEPT["input"], True), (KEPT["output"], False)], ids=["input", "output"]
)
def test_saved_attribute_is_the_very_tensor(pick, is_same):
    function = keeping(pick)
    x = leaf(1.0)
    y = function.apply(x)
    y.backward()

    assert (function.read is (x if is_same else y)) == is_same
    assert torch.equal(function.read, x if is_same else y)


def test_parameter_keeps_class_and_notes():
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.note = "mine"
    function = keeping(lambda x, y: x)
    function.apply(parameter).backward()

    assert function.read is parameter
    assert function.read.note == "mine"


def test_reassigned_attribute_has_last_value():
    class Reassigning(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.a, ctx.b, ctx.c = x * 2, x * 3, x * 4
            ctx.a = x * 5
            ctx.b = "text"
            ctx.c = 7
            ctx.c = x * 6
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.a * (ctx.b == "text") * ctx.c

    x = leaf(1.0)
    Reassigning.apply(x).backward()

    assert x.grad.item() == 30.0


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_deleted_attribute_is_gone(when):
    class Deleting(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.a, ctx.b, ctx.number = x * 2, x * 3, 1
            if when == "forward":
                del ctx.a, ctx.number
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            b = ctx.b
            if when == "backward":
                del ctx.a, ctx.b, ctx.number
            assert not hasattr(ctx, "a")
            assert not hasattr(ctx, "number")
            with pytest.raises(AttributeError, match="'DeletingBackward' object has no attribute"):
                del ctx.a
            return cotangent * b

    x = leaf(1.0)
    Deleting.apply(x).backward()

    assert x.grad.item() == 3.0


def test_deleted_attribute_is_freed_in_forward(no_collector):
    freed = []

    class Deleting(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.scratch = x * 2
            scratch = weakref.ref(ctx.scratch)
            del ctx.scratch
            freed.append(scratch() is None)
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    Deleting.apply(leaf(1.0))

    assert freed == [True]


def test_attribute_assigned_in_backward():
    class Counting(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.weight = x * 2
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            gradient = cotangent * ctx.weight
            ctx.weight = ctx.weight + 1
            ctx.fresh = cotangent
            return gradient

    x = leaf(1.0)
    y = Counting.apply(x)
    found = [torch.autograd.grad(y, x, retain_graph=True)[0].item() for _ in range(3)]

    assert found == [2.0, 3.0, 4.0]
    assert y.grad_fn.fresh.item() == 1.0


def test_attribute_assigned_from_outside():
    y = Attributes.apply(leaf(1.0))
    note = torch.ones(1)
    y.grad_fn.note = note

    assert y.grad_fn.note is note
    del y.grad_fn.note
    assert not hasattr(y.grad_fn, "note")


def test_missing_attribute_is_told_as_in_torch():
    for function in (Attributes, keeping(lambda x, y: x)):
        node = function.apply(leaf(1.0)).grad_fn

        with pytest.raises(AttributeError) as raised:
            _ = node.absent
        assert str(raised.value) == f"'{type(node).__name__}' object has no attribute 'absent'"


NAMES = [
    "name",
    "register_hook",
    "saved_data",
    "_plain",
    "_kept",
    "_slots",
    "_origin",
    "_data",
    "_needs",
    "_info",
    "_keep",
    "_tensor_at",
    "saved",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["tensor", "number", "tuple"])
def test_any_name_belongs_to_the_user(name, kind):
    class Naming(pb.Function):
        @staticmethod
        def forward(ctx, x):
            setattr(ctx, name, {"tensor": x * 2, "number": 2, "tuple": (2, "two")}[kind])
            ctx.save_for_backward(x * 1)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            Naming.read = getattr(ctx, name)
            return cotangent * 2 * ctx.saved_tensors[0]

    x = leaf(3.0)
    Naming.apply(x).backward()
    expected = {
        "tensor": torch.tensor([6.0], dtype=torch.float64),
        "number": 2,
        "tuple": (2, "two"),
    }

    assert type(Naming.read) is type(expected[kind])
    assert Naming.read == expected[kind]
    assert x.grad.item() == 6.0


# ---- jvp ----


class Forward(pb.Function):
    """x**2 with forward mode, from attributes, `saved_data` and both kinds of saves."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_forward(x * 5)
        ctx.save_for_backward(x * 7, x)
        ctx.double, ctx.scratch = x * 2, x * 3
        ctx.saved_data["double"] = x * 2
        return x * x

    @staticmethod
    def jvp(ctx, tangent):
        (five,) = ctx.saved_tensors
        Forward.seen = [five.item(), ctx.double.item(), ctx.scratch.item()]
        Forward.seen.append(ctx.saved_data["double"].item())
        del ctx.scratch
        ctx.fresh = tangent * 1
        return tangent * ctx.double

    @staticmethod
    def backward(ctx, cotangent):
        seven, _ = ctx.saved_tensors
        Forward.later = [seven.item(), ctx.double.item(), hasattr(ctx, "scratch")]
        Forward.later.append(ctx.saved_data["double"].item())
        return cotangent * ctx.double


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_reach_jvp(requires_grad):
    x = torch.tensor([3.0], dtype=torch.float64, requires_grad=requires_grad)
    with forward_ad.dual_level():
        y = Forward.apply(forward_ad.make_dual(x, torch.ones_like(x)))
        tangent = forward_ad.unpack_dual(y).tangent

    assert tangent.item() == 6.0
    assert Forward.seen == [15.0, 6.0, 9.0, 6.0]


def test_tensors_reach_backward_after_jvp():
    x = leaf(3.0)
    with forward_ad.dual_level():
        y = Forward.apply(forward_ad.make_dual(x, torch.ones_like(x)))
        (gradient,) = torch.autograd.grad(y, x)

    assert gradient.item() == 6.0
    assert Forward.later == [21.0, 6.0, False, 6.0]


def test_forward_over_reverse_is_right():
    class Square(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def jvp(ctx, tangent):
            return 2 * ctx.x * tangent

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.x * cotangent

    x = leaf(3.0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        (gradient,) = torch.autograd.grad(Square.apply(dual), dual, create_graph=True)
        tangent = forward_ad.unpack_dual(gradient).tangent

    assert tangent.item() == 2.0


def test_jvp_leaves_nothing_behind(no_collector):
    made = []

    class Square(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.y = x * x
            made.extend([weakref.ref(ctx), weakref.ref(ctx.y)])
            return ctx.y

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.y

    x = leaf(3.0)
    with forward_ad.dual_level():
        Square.apply(forward_ad.make_dual(x, torch.ones_like(x)))

    assert [ref() for ref in made] == [None, None]


def test_level_without_tangents_changes_nothing(no_collector):
    """Forward mode is on, but no input of this call has a tangent: no jvp will come."""
    made = []

    class Exp(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.y, ctx.double = x.exp(), x * 2
            made.extend([weakref.ref(ctx), weakref.ref(ctx.double)])
            return ctx.y

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.y

    with forward_ad.dual_level():
        y = Exp.apply(leaf(1.0))
        y.backward()

        assert made[1]() is None
        del y
        assert made[0]() is None


# ---- modes ----


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@both
def test_nothing_is_kept_without_recording(function, mode, no_collector):
    made = []

    class Noting(function):
        @staticmethod
        def forward(ctx, x):
            y = function.forward(ctx, x)
            made.append(weakref.ref(ctx))
            return y

    with mode():
        y = Noting.apply(leaf(1.0))

    assert not y.requires_grad
    assert made[0]() is None


def test_inference_tensor_may_be_an_attribute():
    with torch.inference_mode():
        weight = torch.full((1,), 2.0, dtype=torch.float64)

    class Scaling(pb.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            ctx.save_for_backward(x * 1)
            return x * weight

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.weight, None

    x = leaf(3.0)
    Scaling.apply(x, weight).backward()

    assert x.grad.item() == 2.0


def test_clear_on_access_spares_attributes():
    class Clearing(Attributes):
        clear_saved_tensors_on_access = True

    x = leaf(1.0)
    Clearing.apply(x).backward()

    assert x.grad.item() == 12.0


def test_returned_input_may_be_an_attribute():
    class Identity(pb.Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            (ctx.x,) = inputs

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.x

    x = leaf(3.0)
    Identity.apply(x).backward()

    assert x.grad.item() == 3.0


# ---- saved_data is a mapping ----


def test_saved_data_is_a_mapping():
    seen = {}

    class Mapping(pb.Function):
        @staticmethod
        def forward(ctx, x):
            assert dict(ctx.saved_data) == {}
            assert "absent" not in ctx.saved_data
            assert ctx.saved_data.get("absent") is None
            ctx.saved_data.update(number=1, text="two", tensor=x * 2, scratch=x)
            ctx.saved_data["scratch"] = 5
            assert ctx.saved_data.pop("scratch") == 5
            assert list(ctx.saved_data) == ["number", "text", "tensor"]
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            seen.update(ctx.saved_data)
            seen["length"] = len(ctx.saved_data)
            seen["text of it"] = repr(ctx.saved_data)
            ctx.saved_data["tensor"] = 3
            del ctx.saved_data["number"]
            seen["then"] = dict(ctx.saved_data)
            with pytest.raises(KeyError):
                del ctx.saved_data["number"]
            return cotangent

    Mapping.apply(leaf(1.0)).backward()

    assert seen["tensor"].item() == 2.0
    assert (seen["number"], seen["text"], seen["length"]) == (1, "two", 3)
    assert seen["text of it"].startswith("SavedData({'number': 1, 'text': 'two', 'tensor': tensor(")
    assert seen["then"] == {"text": "two", "tensor": 3}


def test_deleted_tensor_in_saved_data_is_gone():
    class Deleting(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.saved_data["a"], ctx.saved_data["b"] = x * 2, x * 3
            del ctx.saved_data["a"]
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            b = ctx.saved_data["b"]
            del ctx.saved_data["b"]
            assert list(ctx.saved_data) == []
            return cotangent * b

    x = leaf(1.0)
    Deleting.apply(x).backward()

    assert x.grad.item() == 3.0


# ---- needs_input_grad ----


class Flags(pb.Function):
    @staticmethod
    def forward(ctx, x, number, y):
        Flags.seen = ctx.needs_input_grad
        return x * number + y

    @staticmethod
    def backward(ctx, cotangent):
        Flags.asked = [ctx.needs_input_grad(0), ctx.needs_input_grad(1)]
        return cotangent, None, cotangent


def test_flags_are_a_plain_looking_tuple():
    Flags.apply(leaf(1.0), 2, torch.ones(1))

    assert Flags.seen == (True, False, False)
    assert repr(Flags.seen) == "(True, False, False)"
    assert hash(Flags.seen) == hash((True, False, False))
    assert isinstance(Flags.seen, tuple)


def test_flags_can_be_copied_and_pickled():
    Flags.apply(leaf(1.0), 2, torch.ones(1))

    assert tuple(pickle.loads(pickle.dumps(Flags.seen))) == (True, False, False)
    assert tuple(copy.deepcopy(Flags.seen)) == (True, False, False)


def test_flags_are_taken_by_operators():
    class Convolution(pb.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return torch.nn.functional.conv2d(x, weight, bias)

        @staticmethod
        def backward(ctx, cotangent):
            x, weight = ctx.saved_tensors
            sizes = [weight.shape[0]], [1, 1], [0, 0], [1, 1], False, [0, 0], 1
            backward = torch.ops.aten.convolution_backward
            return backward(cotangent, x, weight, *sizes, ctx.needs_input_grad)

    shapes = (1, 1, 3, 3), (1, 1, 2, 2), (1,)
    inputs = [torch.rand(shape).double().requires_grad_() for shape in shapes]

    assert torch.autograd.gradcheck(Convolution.apply, inputs)


def test_flags_may_be_replaced():
    class Replacing(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.needs_input_grad = (False,)
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            assert ctx.needs_input_grad == (False,)
            return cotangent

    x = leaf(1.0)
    Replacing.apply(x).backward()


def test_question_after_the_context_is_freed():
    Flags.apply(leaf(1.0), 2, torch.ones(1))

    with pytest.raises(ReferenceError, match="after its context was freed"):
        Flags.seen(0)


# ---- errors leave nothing behind ----


class Failing(pb.Function):
    """Raises where it is told to."""

    where = ""

    @staticmethod
    def forward(ctx, x):
        ctx.kept, ctx.saved_data["x"] = x * 2, x
        ctx.save_for_backward(x, x * 3)
        Failing.made = [weakref.ref(ctx), weakref.ref(ctx.kept)]
        if Failing.where == "forward":
            raise ZeroDivisionError("forward")
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        gradient = cotangent * ctx.kept
        if Failing.where == "backward":
            raise ZeroDivisionError("backward")
        return gradient


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_error_leaves_nothing_behind(where, create_graph, monkeypatch, no_collector):
    def run(x):
        y = Failing.apply(x)
        (gradient,) = torch.autograd.grad(y, x, create_graph=create_graph)
        return gradient.item()

    x = leaf(3.0)
    monkeypatch.setattr(Failing, "where", where)
    try:
        run(x)
    except ZeroDivisionError as error:
        message = str(error)
    made = Failing.made

    assert message == where
    assert [ref() for ref in made] == [None, None]
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch._C._current_graph_task_id() == -1
    monkeypatch.setattr(Failing, "where", "")
    assert run(x) == 6.0


def test_error_in_one_thread_spares_another(monkeypatch):
    monkeypatch.setattr(Failing, "where", "backward")
    found = []

    def fail():
        try:
            Failing.apply(leaf(3.0)).backward()
        except ZeroDivisionError as error:
            found.append(str(error))
        x = leaf(3.0)
        Attributes.apply(x).backward()
        found.append(x.grad.item())

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

    assert found == ["backward", 36.0]


def test_rejected_result_leaves_nothing_behind(no_collector):
    made = []

    class Wrong(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x * 2
            made.extend([weakref.ref(ctx), weakref.ref(ctx.kept)])
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return ctx.kept, ctx.kept

    for _ in range(2):
        try:
            Wrong.apply(leaf(1.0)).backward()
        except pb.PullbackError as error:
            assert error.code == "E103"  # noqa: PT017

    assert [ref() for ref in made] == [None] * 4


def test_deprecated_name_still_warns():
    for function in (Attributes, Flags):
        args = (leaf(1.0),) if function is Attributes else (leaf(1.0), 2, leaf(1.0))
        y = function.apply(*args)  # PyTorch before 2.13 clears a node whose output is gone
        node = y.grad_fn
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            saved = node.saved_variables

        assert len(saved) == len(node.saved_tensors)
        assert [w.category for w in caught] == [DeprecationWarning]
