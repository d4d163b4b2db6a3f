"""After the user's `forward`: what is saved, marked and returned is settled."""

import pytest
import torch

import pullback as pb
from pullback.errors import DirtyNotReturnedError, ReturnedInputSavedError, SavedNonTensorError
from pullback.function.forward import LIST


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def combined(forward, backward=None, **space):
    def pass_on(ctx, *cotangents):
        return (cotangents[0], *[None] * (len(ctx.needs_input_grad) - 1))

    space |= {"forward": staticmethod(forward), "backward": staticmethod(backward or pass_on)}
    return type("Combined", (pb.Function,), space)


# ---- nothing more is saved than the user saved ----


SAVES = {
    "nothing": lambda ctx, x, y: None,
    "an input": lambda ctx, x, y: ctx.save_for_backward(x),
    "the output": lambda ctx, x, y: ctx.save_for_backward(y),
    "an intermediate": lambda ctx, x, y: ctx.save_for_backward(x * 2, x),
    "none": lambda ctx, x, y: ctx.save_for_backward(None, x),
}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_saved_memory_is_as_in_torch(save):
    def count(base):
        class Saving(base):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                save(ctx, x, y)
                return y

            @staticmethod
            def backward(ctx, cotangent):
                return cotangent

        y = Saving.apply(leaf(1.0))
        node = y.grad_fn
        return [None if t is None else t.shape for t in node.saved_tensors], vars(node).keys()

    ours, theirs = count(pb.Function), count(torch.autograd.Function)

    assert ours[0] == theirs[0]
    assert all(name.startswith("_pb_") for name in ours[1])


def test_attributes_are_saved_behind_the_others():
    def forward(ctx, x):
        ctx.double = x * 2
        ctx.save_for_backward(x)
        ctx.saved_data["triple"] = x * 3
        return x * 1

    y = combined(forward).apply(leaf(1.0))
    node = y.grad_fn

    assert [t.data.item() for t in node._raw_saved_tensors] == [1.0, 2.0, 3.0]
    assert [t.item() for t in node.saved_tensors] == [1.0]


# ---- lists ----


def test_list_comes_back_as_list():
    seen = []

    def forward(ctx, x):
        return [x * 2, x * 3]

    def backward(ctx, *cotangents):
        seen.append(len(cotangents))
        return 2 * cotangents[0] + 3 * cotangents[1]

    x = leaf(1.0)
    output = combined(forward, backward).apply(x)
    (gradient,) = torch.autograd.grad(output[0] + output[1], x)

    assert type(output) is list
    assert [y.item() for y in output] == [2.0, 3.0]
    assert gradient.item() == 5.0
    assert seen == [2]


@pytest.mark.parametrize(
    "output", [[], [1, "two"], [None]], ids=["empty", "of plain values", "of none"]
)
def test_list_without_tensors_comes_back(output):
    assert combined(lambda ctx, x: output).apply(leaf(1.0)) == output


def test_list_under_no_grad_is_a_list():
    with torch.no_grad():
        output = combined(lambda ctx, x: [x * 2]).apply(leaf(1.0))

    assert type(output) is list
    assert not output[0].requires_grad


def test_list_with_saved_outputs():
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.y = y
        return [y, y + 1]

    def backward(ctx, first, second):
        return (first + second) * (ctx.saved_tensors[0] + ctx.y) / 2

    function = combined(forward, backward)

    assert torch.autograd.gradcheck(lambda x: tuple(function.apply(x)), (leaf(0.5),))
    assert torch.autograd.gradgradcheck(lambda x: tuple(function.apply(x)), (leaf(0.5),))


def test_list_in_setup_style():
    class Split(pb.Function):
        @staticmethod
        def forward(x):
            return [x * 2, x * 3]

        @staticmethod
        def setup_context(ctx, inputs, output):
            assert type(output) is list

        @staticmethod
        def backward(ctx, first, second):
            return 2 * first + 3 * second

    x = leaf(1.0)
    first, second = Split.apply(x)
    (first + second).backward()

    assert x.grad.item() == 5.0


@pytest.mark.parametrize("mixed", [False, True], ids=["tensors only", "plain argument"])
def test_subclass_of_list_is_one_kind(mixed):
    """What a list of one's own class becomes does not depend on the arguments."""

    class Row(list):
        pass

    function = combined(lambda ctx, x, *rest: Row([x * 2]))
    output = function.apply(leaf(1.0), *([1] if mixed else []))

    assert output[0].requires_grad == function.apply(leaf(1.0)).__getitem__(0).requires_grad
    assert LIST not in output


def test_plain_outputs_come_back():
    output = combined(lambda ctx, x: (x * 1, "text", None, {"a": 1}, [2])).apply(leaf(1.0))

    assert output[1:] == ("text", None, {"a": 1}, [2])
    assert output[0].requires_grad


# ---- what is refused ----


RECORDED = {"recorded": True, "not recorded": False}


@pytest.mark.parametrize("is_recorded", RECORDED.values(), ids=RECORDED)
def test_saved_number_matters_when_recorded(is_recorded):
    """As in PyTorch: where nothing is recorded nothing is saved, so anything may be named."""

    def forward(ctx, x):
        ctx.save_for_backward(x, 3)
        return x * 1

    function = combined(forward)
    with torch.set_grad_enabled(is_recorded):
        if is_recorded:
            with pytest.raises(SavedNonTensorError, match="int as argument 1"):
                function.apply(leaf(1.0))
        else:
            assert function.apply(leaf(1.0)).item() == 1.0


@pytest.mark.parametrize("is_recorded", RECORDED.values(), ids=RECORDED)
def test_dirty_input_is_always_returned(is_recorded):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2) * 1

    with torch.set_grad_enabled(is_recorded), pytest.raises(DirtyNotReturnedError, match="`x`"):
        combined(forward).apply(leaf(1.0) * 1)


def test_dirty_input_among_several_outputs():
    def forward(ctx, x, y):
        ctx.mark_dirty(y)
        return x * 2, y.mul_(3)

    x, y = leaf(1.0), leaf(1.0) * 1
    _, second = combined(forward).apply(x, y)

    assert second is y
    assert y.item() == 3.0


def test_second_dirty_input_is_named():
    def forward(ctx, x, y):
        ctx.mark_dirty(x, y)
        y.mul_(3)
        return x.mul_(2)

    with pytest.raises(DirtyNotReturnedError, match="must return `y`, which it marked dirty"):
        combined(forward).apply(leaf(1.0) * 1, leaf(1.0) * 1)


def test_dirty_tensor_that_is_no_input_warns_as_in_torch():
    def forward(ctx, x):
        y = x * 2
        ctx.mark_dirty(y)
        return y

    with pytest.warns(UserWarning, match="not an input") as caught:
        combined(forward).apply(leaf(1.0))

    assert len(caught) == 1


class Returning(pb.Function):
    """Returns its input as it is; saves it where it is told to."""

    where = "save_for_backward"

    @staticmethod
    def forward(x, y):
        return x, y * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        if Returning.where:
            getattr(ctx, Returning.where)(*inputs)

    @staticmethod
    def backward(ctx, first, second):
        return first, second * 2


@pytest.mark.parametrize("where", ["save_for_backward", "save_for_forward"])
def test_returned_and_saved_input_is_named(where, monkeypatch):
    monkeypatch.setattr(Returning, "where", where)

    with pytest.raises(ReturnedInputSavedError, match="must not save `x` and return it"):
        Returning.apply(leaf(1.0), leaf(2.0))


def test_returned_input_alone_is_fine(monkeypatch):
    monkeypatch.setattr(Returning, "where", "")
    x, y = leaf(1.0), leaf(2.0)
    found = torch.autograd.grad(sum(Returning.apply(x, y)), (x, y))

    assert [g.item() for g in found] == [1.0, 2.0]


def test_error_comes_before_the_graph():
    """A refused call leaves its inputs as they were."""

    def forward(ctx, x):
        ctx.save_for_backward("text")
        return x * 1

    x = leaf(1.0)
    with pytest.raises(SavedNonTensorError):
        combined(forward).apply(x)

    assert x.is_leaf
    assert x.grad is None
    assert x._version == 0
