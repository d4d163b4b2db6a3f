"""Names of ours on somebody else's context, and methods that translate them."""

import inspect

import pytest
import torch
from torch.autograd.function import FunctionCtx

import pullback as pb
from pullback.errors import GradientNameError
from pullback.function.foreign import ContextView, ForeignNeeds, opened_view, view
from pullback.function.signature import is_translated


class Foreign(FunctionCtx):
    """A context as `torch.func` and Dynamo make them: no node, Python's names only."""

    def __init__(self, flags=(True, False, True)):
        self.needs_input_grad = flags

    @property
    def saved_tensors(self):
        return self.to_save


# ---- a view of a context ----


def test_view_offers_every_name():
    ctx = Foreign()
    x, y = torch.ones(1), torch.ones(1)
    seen = opened_view(ctx, (x, 2, y))
    seen.save_for_backward(x, y)
    seen.saved_data["k"] = 3
    seen.mark_dirty(x)
    seen.mark_non_differentiable(y)
    seen.set_materialize_grads(False)
    seen.save_for_forward(x)
    seen.factor = 5

    assert ctx.to_save == (x, y)
    assert ctx.saved_for_forward == (x,)
    assert ctx.materialize_grads is False
    assert ctx.factor == 5
    later = view(ctx)
    assert later.saved_tensors == (x, y)
    assert later.get_saved_variables() == (x, y)
    assert later.saved_data == {"k": 3}
    assert later.get_and_bump_dirty() == (x,)
    assert x._version == 1
    assert later.get_non_differentiable() == (y,)
    assert later.factor == 5
    del later.factor
    assert not hasattr(ctx, "factor")


def test_view_of_ours_is_ours():
    class Looking(pb.Function):
        @staticmethod
        def forward(ctx, x):
            assert opened_view(ctx, (x,)) is ctx
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            assert view(ctx) is ctx
            return cotangent

    Looking.apply(torch.ones(1, requires_grad=True)).backward()


def test_view_of_a_view_is_the_view():
    seen = ContextView(Foreign())

    assert view(seen) is seen


def test_every_call_has_its_own_data():
    first, second = Foreign(), Foreign()
    opened_view(first, ()).saved_data["k"] = 1

    assert opened_view(second, ()).saved_data == {}


def test_kept_tensors_are_behind_the_saved():
    ctx = Foreign()
    ctx.to_save = (1, 2, 3, 4)
    ctx._pb_data, ctx._pb_data_slots = {"plain": 5}, {"tensor": 1}
    seen = ContextView(ctx, {"kept": 0}, 2)

    assert seen.saved_tensors == (1, 2)
    assert seen.kept == 3
    assert seen.saved_data == {"plain": 5, "tensor": 4}


# ---- needs_input_grad ----


def test_foreign_flags_are_tuple_and_question():
    needs = ForeignNeeds((True, False, False, True), plain=(1,), live=None)

    assert tuple(needs) == (True, False, False, True)
    assert len(needs) == 4
    assert needs[3]
    assert needs[-1]
    assert needs[1:3] == (False, False)
    assert [needs(i) for i in range(3)] == [True, False, True]
    assert needs([(0, 1)])
    assert not needs([(1, 2)])
    assert needs([(1, 2), (2, 3)])
    assert not needs([])
    with pytest.raises(IndexError):
        needs(3)


def test_backward_under_way_decides():
    needs = ForeignNeeds((True, False, True), plain=(1,), live=(False, True))

    assert tuple(needs) == (True, False, True)
    assert [needs(0), needs(1)] == [False, True]


# ---- which classes are translated ----


def make(forward="return x * 1", backward="return g"):
    """A class from source, so that the bodies can be listed."""
    space = {"pb": pb, "dict": dict}
    exec(
        "class Made(pb.Function):\n"
        "    @staticmethod\n"
        f"    def forward(ctx, x, factor=2.0):\n        {forward}\n"
        "    @staticmethod\n"
        f"    def backward(ctx, g):\n        {backward}\n",
        space,
    )
    return space["Made"]


OURS = {
    "saved_data": {"forward": "ctx.saved_data['k'] = 1; return x * 1"},
    "saved_data in backward": {"backward": "return g * ctx.saved_data['k']"},
    "get_saved_variables": {"backward": "ctx.get_saved_variables(); return g"},
    "get_and_bump_dirty": {"forward": "ctx.get_and_bump_dirty(); return x * 1"},
    "get_non_differentiable": {"forward": "ctx.get_non_differentiable(); return x * 1"},
    "needs as a question": {"backward": "return g if ctx.needs_input_grad(0) else None"},
    "mapping": {"backward": "return {'x': g}"},
    "mapping by call": {"backward": "return dict(x=g)"},
    "inner function": {"backward": "f = lambda: ctx.saved_data; return g"},
}
TORCHS = {
    "plain": {},
    "saved tensors": {"backward": "ctx.saved_tensors; return g"},
    "needs as a tuple": {"backward": "return g if ctx.needs_input_grad[0] else None"},
    "needs as a value": {"backward": "flags = ctx.needs_input_grad; return g"},
    "attributes": {"forward": "ctx.factor = factor; return x * 1"},
    "marks": {"forward": "ctx.mark_non_differentiable(); return x * 1"},
}


@pytest.mark.parametrize("bodies", OURS.values(), ids=OURS)
def test_class_with_our_names_is_translated(bodies):
    assert is_translated(make(**bodies))


@pytest.mark.parametrize("bodies", TORCHS.values(), ids=TORCHS)
def test_class_with_torchs_names_is_left(bodies):
    cls = make(**bodies)

    assert not is_translated(cls)
    assert cls.forward.__code__.co_filename == "<string>"
    assert cls.backward.__code__.co_filename == "<string>"


def test_translated_method_keeps_its_parameters():
    class Written(pb.Function):
        @staticmethod
        def forward(ctx, x, factor=2.0, *rest):
            """What it does."""
            ctx.saved_data["factor"] = factor
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return {"x": cotangent * ctx.saved_data["factor"]}

    code = Written.forward.__code__

    assert str(inspect.signature(Written.forward)) == "(ctx, x, factor=2.0, *rest)"
    assert code.co_varnames[: code.co_argcount] == ("ctx", "x", "factor")
    assert Written.forward.__defaults__ == (2.0,)
    assert Written.forward.__doc__ == "What it does."
    assert Written.forward.__name__ == "forward"
    assert Written.backward.__qualname__.endswith("Written.backward")
    assert "saved_data" in inspect.getsource(Written.forward)


NAMES = ["_user", "_view", "_finish", "_seen", "make", "ctx", "self"]


@pytest.mark.parametrize("name", NAMES)
def test_parameter_may_have_any_name(name):
    space = {"pb": pb}
    exec(
        "class Made(pb.Function):\n"
        "    @staticmethod\n"
        f"    def forward({name}, x_{name}):\n"
        f"        {name}.saved_data['k'] = 3.0\n"
        f"        return x_{name} * 3.0\n"
        "    @staticmethod\n"
        f"    def backward(c_{name}, {name}):\n"
        f"        return {{'x_{name}': {name} * c_{name}.saved_data['k']}}\n",
        space,
    )
    x = torch.ones(2, requires_grad=True)
    space["Made"].apply(x).sum().backward()

    assert x.grad.tolist() == [3.0, 3.0]


def test_child_may_call_translated_parent():
    class Parent(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.saved_data["k"] = 3.0
            return x * 3.0

        @staticmethod
        def backward(ctx, cotangent):
            return {"x": cotangent * ctx.saved_data["k"]}

    class Child(Parent):
        @staticmethod
        def forward(ctx, x):
            return Parent.forward(ctx, x) * 2

        @staticmethod
        def backward(ctx, cotangent):
            return Parent.backward(ctx, cotangent)["x"] * 2

    x = torch.ones(2, requires_grad=True)
    Child.apply(x).sum().backward()

    assert x.grad.tolist() == [6.0, 6.0]


# ---- under torch.func ----


class Everything(pb.Function):
    """`factor * x` with every name of ours, in the style that transforms need."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor=3.0):
        return x * factor, x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.saved_data["factor"] = inputs
        ctx.mark_non_differentiable(output[1])
        assert ctx.get_non_differentiable()[0] is output[1]
        assert ctx.get_and_bump_dirty() == ()
        assert ctx.needs_input_grad(0) == ctx.needs_input_grad[0]
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, cotangent, _):
        (x,) = ctx.get_saved_variables()
        needed = ctx.needs_input_grad(0) or ctx.needs_input_grad([(0, 1)])
        return {"x": cotangent * ctx.saved_data["factor"] * x / x if needed else None}

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent * ctx.saved_data["factor"], None


def first(x):
    return Everything.apply(x)[0]


def test_our_names_work_under_transforms():
    x = torch.tensor([1.0, 2.0])

    assert torch.func.grad(lambda x: first(x).sum())(x).tolist() == [3.0, 3.0]
    assert torch.func.vjp(first, x)[1](torch.ones(2))[0].tolist() == [3.0, 3.0]
    assert torch.func.jvp(first, (x,), (torch.ones(2),))[1].tolist() == [3.0, 3.0]
    assert torch.func.jacrev(first)(x).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert torch.func.vmap(first)(x).tolist() == [3.0, 6.0]


def test_our_names_work_without_transforms():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(first, (x,), check_forward_ad=True)


class Mapped(pb.Function):
    """A mapping is its only word of ours; everything else it asks in Python's names."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor=3.0):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        assert len(ctx.needs_input_grad) == 2
        needed = ctx.needs_input_grad[0]
        return {"x": cotangent * ctx.factor * x / x if needed else None}


def test_mapping_and_flags_under_transforms():
    gradient = torch.func.grad(lambda x: Mapped.apply(x).sum())(torch.ones(2))

    assert gradient.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("keep", ["needs", "plain"])
def test_mapping_and_flags_compile(keep):
    class Combined(pb.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            needed = ctx.needs_input_grad[0] if keep == "needs" else True
            return {"x": cotangent * ctx.factor if needed else None}

    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x: Combined.apply(x, 3.0), backend="eager", fullgraph=True)
    compiled(x).sum().backward()

    assert x.grad.tolist() == [3.0, 3.0]


def test_wrong_name_is_told_under_transforms():
    class Wrong(Everything):
        @staticmethod
        def backward(ctx, cotangent, _):
            return {"y": cotangent}

    with pytest.raises(GradientNameError, match="names among"):
        torch.func.grad(lambda x: Wrong.apply(x)[0].sum())(torch.ones(2))
