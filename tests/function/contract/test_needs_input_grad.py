"""Section G: which inputs need a gradient, asked in the Python and in the C++ spelling."""

from typing import ClassVar

import pytest
import torch
from torch.autograd import grad

import pullback as pb


def make_asking(question, *, asks=("forward", "backward")):
    """`x * y * z` with plain values between the tensors; keeps the answers to `question(ctx)`."""

    class Asking(pb.Function):
        in_forward: ClassVar[list] = []
        in_backward: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x, number, y, text, z):
            ctx.save_for_backward(x, y, z)
            if "forward" in asks:
                Asking.in_forward.append(question(ctx))
            return x * y * z

        @staticmethod
        def backward(ctx, g):
            x, y, z = ctx.saved_tensors
            if "backward" in asks:
                Asking.in_backward.append(question(ctx))
            return g * y * z, None, g * x * z, None, g * x * y

    return Asking


def each(ctx):
    """The answer for each of the three tensor inputs."""
    return [ctx.needs_input_grad(i) for i in range(3)]


def tensors(*flags):
    """2, 3 and 5, each requiring grad as its flag says."""
    values = zip((2.0, 3.0, 5.0), flags or (True,) * 3, strict=True)
    return [torch.tensor(value, requires_grad=flag) for value, flag in values]


def test_full_backward_answers_requires_grad():
    """G01, L54: False for a tensor that does not require grad, True for one that does."""
    Asking = make_asking(each)
    x, y, z = tensors(True, False, True)
    Asking.apply(x, 7, y, "text", z).backward()

    assert Asking.in_backward == [[True, False, True]]


@pytest.mark.parametrize("asked", [[0], [1], [2], [0, 2], [2, 1], [0, 1, 2]])
def test_only_asked_inputs_are_needed(asked):
    """G02, L54: in autograd.grad, True only for the inputs this very call needs."""
    Asking = make_asking(each)
    inputs = tensors()
    x, y, z = inputs
    gradients = grad(Asking.apply(x, 7, y, "text", z), [inputs[i] for i in asked])
    expected = [15.0, 10.0, 6.0]

    assert Asking.in_backward == [[i in asked for i in range(3)]]
    assert [g.item() for g in gradients] == [expected[i] for i in asked]


def test_each_backward_is_judged_alone():
    """G03: backward(inputs=...) on one retained graph, each with its own answer."""
    Asking = make_asking(each)
    x, y, z = tensors()
    out = Asking.apply(x, 7, y, "text", z)
    out.backward(inputs=[y], retain_graph=True)
    out.backward(inputs=[x, z], retain_graph=True)
    out.backward(retain_graph=True)
    grad(out, z)

    assert Asking.in_backward == [
        [False, True, False],
        [True, False, True],
        [True, True, True],
        [False, False, True],
    ]
    assert [t.grad.item() for t in (x, y, z)] == [30.0, 20.0, 12.0]


def test_non_leaf_inputs_are_judged_too():
    """G03: the asked-for tensor may itself be a result."""
    Asking = make_asking(each)
    x, y, z = tensors()
    x2, y2 = x * 2, y * 2
    out = Asking.apply(x2, 7, y2, "text", z)
    out.backward(inputs=[y2], retain_graph=True)
    (gx,) = grad(out, x)

    assert Asking.in_backward == [[False, True, False], [True, False, False]]
    assert y2.grad.item() == 20.0
    assert gx.item() == 60.0


def test_need_follows_the_graph_behind():
    """G03: an input is needed when an asked-for tensor lies anywhere behind it."""
    Asking = make_asking(each)
    x, y, z = tensors()
    grad(Asking.apply(x.sin(), 7, y, "text", x * z), z)

    assert Asking.in_backward == [[False, False, True]]


RANGES = {
    "none": ([], False),
    "empty range": ([(1, 1)], False),
    "first only": ([(0, 1)], False),
    "second only": ([(1, 2)], True),
    "end is open": ([(2, 3)], False),
    "all": ([(0, 3)], True),
    "any of them": ([(0, 1), (1, 2)], True),
    "none of them": ([(0, 1), (2, 3), (1, 1)], False),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_answer_for_any_index(name):
    """G04, L54: half-open ranges, true when any index in any of them is needed."""
    ranges, expected = RANGES[name]
    Asking = make_asking(lambda ctx: ctx.needs_input_grad(ranges))
    x, y, z = tensors()
    grad(Asking.apply(x, 7, y, "text", z), y)

    assert Asking.in_backward == [expected]


def test_index_counts_tensor_inputs_only():
    """G05: plain arguments take no number in the call, but do in the tuple."""
    Asking = make_asking(lambda ctx: (ctx.needs_input_grad(1), ctx.needs_input_grad[1]))
    x, y, z = tensors(False, True, False)
    Asking.apply(x, 7, y, "text", z).backward()

    assert Asking.in_backward == [(True, False)]


def test_none_takes_no_number():
    """G05: an absent optional tensor is a plain argument, so that the next tensor moves up."""
    seen = []

    class Adds(pb.Function):
        @staticmethod
        def forward(ctx, x, y, z):
            return x + z

        @staticmethod
        def backward(ctx, g):
            seen.extend([ctx.needs_input_grad(0), ctx.needs_input_grad(1)])
            return g, None, g

    x, _, z = tensors()
    grad(Adds.apply(x, None, z), z)

    assert seen == [False, True]


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("question", [3, 100, [(3, 4)], [(0, 1), (3, 5)]])
def test_index_beyond_the_inputs_raises(question, place):
    """G06: instead of an answer that means nothing, in forward as in backward."""
    Asking = make_asking(lambda ctx: ctx.needs_input_grad(question), asks=(place,))
    x, y, z = tensors(False, False, True)

    with pytest.raises(IndexError):
        Asking.apply(x, 7, y, "text", z).backward()


def test_forward_answers_requires_grad():
    """G07: with no backward under way, whether the input requires grad."""
    Asking = make_asking(each)
    x, y, z = tensors(True, False, True)
    Asking.apply(x, 7, y, "text", z)

    assert Asking.in_forward == [[True, False, True]]


def test_setup_context_answers_requires_grad():
    """G07: so does the call in setup_context."""
    seen = []

    class Adds(pb.Function):
        @staticmethod
        def forward(number, x, y):
            return x + y

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append([ctx.needs_input_grad(0), ctx.needs_input_grad(1)])
            seen.append(tuple(ctx.needs_input_grad))

        @staticmethod
        def backward(ctx, g):
            return None, g, g

    x, y, _ = tensors(False, True, True)
    Adds.apply(3, x, y)

    assert seen == [[False, True], (False, False, True)]


def make_tuple_reader(Function):
    """`x * y` that reads needs_input_grad as a sequence, and returns only what is needed."""

    class Reads(Function):
        seen: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x, number, y):
            ctx.save_for_backward(x, y)
            Reads.seen.append(tuple(ctx.needs_input_grad))
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            need = ctx.needs_input_grad
            Reads.seen.append(tuple(need))
            Reads.seen.append((len(need), isinstance(need, tuple), any(need), need[-1], need[:2]))
            need_x, need_number, need_y = need
            assert not need_number
            return g * y if need_x else None, None, g * x if need_y else None

    return Reads


@pytest.mark.parametrize("x_grad", [False, True])
def test_flags_per_argument_as_tuple(Function, x_grad):
    """G08, L17: one flag per argument, plain ones False, in forward and in backward."""
    Reads = make_tuple_reader(Function)
    x, y, _ = tensors(x_grad, True, True)
    Reads.apply(x, 7, y).backward()
    flags = (x_grad, False, True)

    assert Reads.seen == [flags, flags, (3, True, True, True, flags[:2])]
    assert y.grad.item() == 2.0
    assert (x.grad is not None) == x_grad


def test_flags_are_fixed_at_forward(Function):
    """G08: the tuple says what requires grad, whatever this backward asks for."""
    Reads = make_tuple_reader(Function)
    x, y, _ = tensors()
    grad(Reads.apply(x, 7, y), y)

    assert Reads.seen[:2] == [(True, False, True)] * 2


def test_flag_index_out_of_range_raises(Function):
    """G08: as with any tuple."""

    class Reads(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g if ctx.needs_input_grad[1] else None

    with pytest.raises(IndexError):
        Reads.apply(torch.ones(1, requires_grad=True)).backward()
