"""Every message, whole, as a user who made the mistake reads it; warnings are said once."""

import warnings

import pytest
import torch

import pullback as pb
from pullback import errors


def place(function):
    """`file.py:line` of a function written in this file."""
    return f"test_errors.py:{function.__code__.co_firstlineno}"


def leaf(*shape):
    return torch.ones(shape, dtype=torch.float64, requires_grad=True)


def message(kind, function, *args, **kwargs):
    """The text of the error of class `kind` that a call raises."""
    with pytest.raises(kind) as raised:
        function(*args, **kwargs)
    assert type(raised.value) is kind
    return str(raised.value)


def said(kind, function, *args, **kwargs):
    """The texts of the warnings of class `kind` that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    return [str(w.message) for w in caught if w.category is kind]


class Plain(pb.Function):
    """Right, and the base of most mistakes below: they replace one method."""

    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None


# ---- what backward is and returns ----


class NoBackward(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach() * 2


def test_missing_backward_is_told_whole():
    y = NoBackward.apply(leaf(2))

    assert message(errors.MissingBackwardError, y.sum().backward) == (
        "E101 missing-backward: `NoBackward` must define `backward` to be differentiated\n"
        f"  at:       {place(NoBackward.forward)}\n"
        "  expected: `backward(ctx, *cotangents)`, one cotangent per output\n"
        "  got:      none, and none can be derived: `forward` computes its output outside autograd "
        "(detach, no_grad, numpy, a kernel)\n"
        "  fix:      define `backward`, or mark the outputs with `ctx.mark_non_differentiable`\n"
        "  torch:    You must implement either the backward or vjp method for your custom "
        "autograd.Function to use it with backward mode AD."
    )


class WrongName(Plain):
    @staticmethod
    def backward(ctx, cotangent):
        return {"y": cotangent}


def test_gradient_name_is_told_whole():
    y = WrongName.apply(leaf(2), 3.0)

    assert message(errors.GradientNameError, y.sum().backward) == (
        "E102 gradient-name: `WrongName.backward` must name inputs of `forward`\n"
        "  expected: names among (x, factor)\n"
        "  got:      'y'\n"
        "  fix:      use the parameter names of `forward`, without `ctx`"
    )


class TooFew(Plain):
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_backward_arity_is_told_whole():
    y = TooFew.apply(leaf(2), 3.0)

    assert message(errors.BackwardArityError, y.sum().backward) == (
        "E103 backward-arity: `TooFew.backward` must return one value per input of `forward`\n"
        f"  at:       {place(TooFew.backward)}\n"
        "  expected: 2, for (x, factor)\n"
        "  got:      1\n"
        "  fix:      return `None` in the place of each input that needs no gradient\n"
        "  torch:    function TooFewBackward returned an incorrect number of gradients "
        "(expected 2, got 1)"
    )


class OneForTwo(pb.Function):
    traverse_lists = True

    @staticmethod
    def forward(ctx, tensors):
        return tensors[0] + tensors[1]

    @staticmethod
    def backward(ctx, cotangent):
        return [cotangent]


def test_arity_of_list_is_told_whole():
    y = OneForTwo.apply([leaf(2), leaf(2)])

    assert message(errors.BackwardArityError, y.sum().backward) == (
        "E103 backward-arity: `OneForTwo.backward` must return one gradient per element of a "
        "list argument\n"
        f"  at:       {place(OneForTwo.backward)}\n"
        "  expected: a list of 2, or `None`\n"
        "  got:      1\n"
        "  fix:      return a list with `None` for each element that needs no gradient"
    )


class WrongShape(Plain):
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.t(), None


def test_gradient_shape_is_told_whole():
    y = WrongShape.apply(leaf(2, 3), 3.0)

    assert message(errors.GradientShapeError, y.sum().backward) == (
        "E104 gradient-shape: `WrongShape.backward` must return a gradient of the shape of `x`\n"
        f"  at:       {place(WrongShape.backward)}\n"
        "  expected: [2, 3], or a shape that sums down to it\n"
        "  got:      [3, 2]\n"
        "  fix:      reduce or transpose it; check that no two gradients are swapped\n"
        "  torch:    Function WrongShapeBackward returned an invalid gradient at index 0 - got "
        "[3, 2] but expected shape compatible with [2, 3]"
    )


class ForANumber(Plain):
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, cotangent.sum()


def test_non_tensor_gradient_is_told_whole():
    y = ForANumber.apply(leaf(2), 3.0)

    assert message(errors.NonTensorGradientError, y.sum().backward) == (
        "E105 non-tensor-gradient: `ForANumber.backward` must return `None` for `factor`, which "
        "is not a tensor\n"
        f"  at:       {place(ForANumber.backward)}\n"
        "  expected: None\n"
        "  got:      a tensor of shape []\n"
        "  fix:      return `None` in its place\n"
        "  torch:    function ForANumberBackward returned a gradient different than None at "
        "position 2, but the corresponding forward input was not a Variable"
    )


class NotATensor(Plain):
    @staticmethod
    def backward(ctx, cotangent):
        return 2.0, None


def test_gradient_type_is_told_whole():
    y = NotATensor.apply(leaf(2), 3.0)

    assert message(errors.GradientTypeError, y.sum().backward) == (
        "E106 gradient-type: `NotATensor.backward` must return a tensor or `None` for `x`\n"
        f"  at:       {place(NotATensor.backward)}\n"
        "  got:      float\n"
        "  fix:      return a tuple of tensors and `None`, or a mapping by input name\n"
        "  torch:    expected Variable or None (got float)"
    )


class Both(Plain):
    @staticmethod
    def vjp(ctx, cotangent):
        return cotangent, None


def test_both_backward_and_vjp_is_told_whole():
    y = Both.apply(leaf(2), 3.0)

    assert message(errors.BothBackwardAndVjpError, y.sum().backward) == (
        "E107 both-backward-and-vjp: `Both` must define one of `backward` and `vjp`\n"
        f"  at:       {place(Plain.backward)}\n"
        f"  got:      both; `vjp` at {place(Both.vjp)}\n"
        "  fix:      delete one of them\n"
        "  torch:    Implementing both 'backward' and 'vjp' for a custom Function is not "
        "allowed. You should only implement one of them."
    )


class Square(pb.Function):
    @staticmethod
    def forward(ctx, x):
        doubled = x * 2
        ctx.save_for_backward(doubled)
        return doubled * doubled / 4

    @staticmethod
    def backward(ctx, cotangent):
        (doubled,) = ctx.saved_tensors
        return cotangent * doubled


def test_double_backward_is_told_whole():
    x = leaf(2)
    (gradient,) = torch.autograd.grad(Square.apply(x * 1).sum(), x, create_graph=True)

    assert message(errors.DoubleBackwardError, gradient.sum().backward) == (
        "E108 double-backward: `Square.backward` must be given `doubled` with its history to be "
        "differentiated\n"
        f"  at:       {place(Square.forward)}\n"
        "  expected: an input or an output, or inputs from which it can be computed again\n"
        "  got:      `doubled`, computed inside `forward`; input `x` was not saved and is gone "
        "or changed\n"
        "  fix:      (1) save the inputs and recompute it in `backward`; (2) return it as one "
        "more output and save that; (3) decorate `backward` with `once_differentiable`"
    )


# ---- forward, apply and the context ----


def test_apply_arguments_is_told_whole():
    assert message(errors.ApplyArgumentsError, Plain.apply, leaf(2, 3), power=3) == (
        "E201 apply-arguments: `Plain.apply` must be called with the arguments of `forward`\n"
        f"  at:       {place(Plain.forward)}\n"
        "  expected: (x, factor=2.0)\n"
        "  got:      (Tensor(2, 3), power=3): got an unexpected keyword argument 'power'\n"
        "  torch:    forward() got an unexpected keyword argument 'power'"
    )


class NotReturned(Plain):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.mark_dirty(x.mul_(factor))
        return x.clone()


def test_dirty_not_returned_is_told_whole():
    assert message(errors.DirtyNotReturnedError, NotReturned.apply, leaf(2) * 1) == (
        "E202 dirty-not-returned: `NotReturned.forward` must return `x`, which it marked dirty\n"
        f"  at:       {place(NotReturned.forward)}\n"
        "  got:      1 output, none of them `x`\n"
        "  fix:      return `x` itself, or work on a clone and do not mark it\n"
        "  torch:    Some elements marked as dirty during the forward method were not returned "
        "as output. The inputs that are modified inplace must all be outputs of the Function."
    )


class SavesANumber(Plain):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.save_for_backward(x, factor)
        return x * factor


def test_saved_non_tensor_is_told_whole():
    assert message(errors.SavedNonTensorError, SavesANumber.apply, leaf(2), 3.0) == (
        "E203 saved-non-tensor: `SavesANumber`: `save_for_backward` must be given tensors or "
        "`None`\n"
        f"  at:       {place(SavesANumber.forward)}\n"
        "  got:      float as argument 1\n"
        "  fix:      keep it as an attribute of `ctx`, or in `ctx.saved_data`\n"
        "  torch:    save_for_backward can only save variables, but argument 1 is of type float"
    )


class MarksANumber(Plain):
    call = "mark_dirty"

    @staticmethod
    def forward(ctx, x, factor=2.0):
        getattr(ctx, MarksANumber.call)(x, factor)
        return x


@pytest.mark.parametrize("call", ["mark_dirty", "mark_non_differentiable"])
def test_marked_non_tensor_is_told_whole(call, monkeypatch):
    monkeypatch.setattr(MarksANumber, "call", call)

    assert message(errors.MarkedNonTensorError, MarksANumber.apply, leaf(2) * 1, 3.0) == (
        f"E204 marked-non-tensor: `MarksANumber`: `{call}` must be given tensors\n"
        f"  at:       {place(MarksANumber.forward)}\n"
        "  got:      float as argument 1\n"
        f"  torch:    {call} can only accept variables, but argument 1 is not one"
    )


class Identity(pb.Function):
    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_returned_input_saved_is_told_whole():
    assert message(errors.ReturnedInputSavedError, Identity.apply, leaf(2)) == (
        "E205 returned-input-saved: `Identity` must not save `x` and return it as it is\n"
        f"  at:       {place(Identity.forward)}\n"
        "  got:      `x` among the outputs and among the saved tensors\n"
        "  fix:      return `x.view_as(x)`, or write `forward(ctx, ...)` in one piece\n"
        "  torch:    An input that has been returned as-is as output is being saved for "
        "backward. This is not supported if you override setup_context. You should return and "
        "save a view of the input instead, e.g. with x.view_as(x) or setup ctx inside the "
        "forward function itself."
    )


class AsksTooFar(Plain):
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent if ctx.needs_input_grad(1) else None, None


def test_input_index_is_told_whole():
    y = AsksTooFar.apply(leaf(2), 3.0)

    assert message(errors.InputIndexError, y.sum().backward) == (
        "E206 input-index: `AsksTooFar`: `needs_input_grad(i)` must name one of the tensor "
        "inputs\n"
        f"  at:       {place(Plain.forward)}\n"
        "  expected: 0 <= i < 1\n"
        "  got:      i = 1\n"
        "  fix:      count tensor inputs only, or use `needs_input_grad[i]` to count every "
        "argument"
    )


# ---- what runs, and is surely a slip: said whole, and said once ----


class TakesAList(Plain):
    @staticmethod
    def forward(ctx, x, others):
        return x * 1


def test_hidden_tensor_is_told_whole_once():
    def call():
        TakesAList.apply(leaf(2), [leaf(2)])

    assert said(errors.HiddenTensorWarning, call) == [
        "W301 hidden-tensor: `TakesAList.apply` must be given tensors that need gradients "
        "directly\n"
        f"  at:       {place(TakesAList.forward)}\n"
        "  got:      one that requires grad inside `others`, a list: no gradient will reach it\n"
        "  fix:      pass it as an argument of its own, or set `traverse_lists = True` on the "
        "class"
    ]
    assert said(errors.HiddenTensorWarning, call) == []


class SavesTwice(Plain):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.save_for_backward(x)
        ctx.save_for_backward(x)
        return x * factor


def test_repeated_save_is_told_whole_once():
    anew = type("SavesTwice", (SavesTwice,), {})

    assert said(errors.RepeatedSaveWarning, anew.apply, leaf(2)) == [
        "W302 repeated-save: `SavesTwice` must call `save_for_backward` at most once\n"
        f"  at:       {place(SavesTwice.forward)}\n"
        "  got:      a second call, which replaces what the first one saved\n"
        "  fix:      give `save_for_backward` all tensors in one call"
    ]
    assert said(errors.RepeatedSaveWarning, anew.apply, leaf(2)) == []


class MarksTwice(Plain):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.mark_dirty(x)
        ctx.mark_dirty(x)
        return x.mul_(factor)


def test_repeated_dirty_is_told_whole_once():
    assert said(errors.RepeatedDirtyWarning, MarksTwice.apply, leaf(2) * 1) == [
        "W303 repeated-dirty: `MarksTwice` must call `mark_dirty` at most once\n"
        f"  at:       {place(MarksTwice.forward)}\n"
        "  got:      a second call, which replaces what the first one marked\n"
        "  fix:      give `mark_dirty` all tensors in one call"
    ]
    assert said(errors.RepeatedDirtyWarning, MarksTwice.apply, leaf(2) * 1) == []


class OtherDtype(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.float()


def test_gradient_dtype_is_told_whole_once():
    def call(size):
        OtherDtype.apply(leaf(size)).sum().backward()

    assert said(errors.GradientDtypeWarning, call, 2) == [
        "W305 gradient-dtype: `OtherDtype.backward` must return gradients of their inputs' "
        "dtypes\n"
        f"  at:       {place(OtherDtype.backward)}\n"
        "  expected: torch.float64, for `x`\n"
        "  got:      torch.float32, which the engine casts\n"
        "  fix:      return it `.to(torch.float64)`, or compute in that dtype"
    ]
    assert said(errors.GradientDtypeWarning, call, 2) == []
    assert said(errors.GradientDtypeWarning, call, 3) == []


def test_each_class_is_warned_by_itself():
    class Child(SavesTwice):
        pass

    said(errors.RepeatedSaveWarning, SavesTwice.apply, leaf(2))

    assert len(said(errors.RepeatedSaveWarning, Child.apply, leaf(2))) == 1


def test_warning_points_at_the_caller():
    class Child(SavesTwice):
        pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Child.apply(leaf(2))

    assert caught[0].filename == __file__


# ---- the form ----


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("MissingBackwardError", NotImplementedError),
        ("GradientNameError", TypeError),
        ("BackwardArityError", RuntimeError),
        ("GradientShapeError", RuntimeError),
        ("NonTensorGradientError", RuntimeError),
        ("GradientTypeError", RuntimeError),
        ("BothBackwardAndVjpError", RuntimeError),
        ("DoubleBackwardError", RuntimeError),
        ("ApplyArgumentsError", TypeError),
        ("DirtyNotReturnedError", RuntimeError),
        ("SavedNonTensorError", TypeError),
        ("MarkedNonTensorError", RuntimeError),
        ("ReturnedInputSavedError", RuntimeError),
        ("InputIndexError", IndexError),
    ],
)
def test_error_is_the_builtin_of_torch(name, builtin):
    cls = getattr(errors, name)

    assert issubclass(cls, pb.PullbackError)
    assert next(base for base in cls.__mro__ if base.__module__ == "builtins") is builtin


def test_empty_facts_are_left_out():
    error = errors.BackwardArityError("`F` must hold", expected="2", fix="hold it")

    assert str(error) == ("E103 backward-arity: `F` must hold\n  expected: 2\n  fix:      hold it")
    assert error.facts == {"at": "", "expected": "2", "got": "", "fix": "hold it", "torch": ""}
    assert error.rule == "`F` must hold"
    assert error.args == ("`F` must hold",)


def test_facts_stand_in_one_order():
    error = errors.BackwardArityError("r", torch="t", fix="f", got="g", expected="e", at="a")

    assert str(error).splitlines()[1:] == [
        "  at:       a",
        "  expected: e",
        "  got:      g",
        "  fix:      f",
        "  torch:    t",
    ]


def test_warning_has_the_same_form():
    warning = errors.RepeatedSaveWarning("`F` must hold", at="a.py:1", got="2")

    assert isinstance(warning, UserWarning)
    assert str(warning) == ("W302 repeated-save: `F` must hold\n  at:       a.py:1\n  got:      2")
