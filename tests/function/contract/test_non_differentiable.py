"""Section E: outputs that carry no gradient."""

from typing import ClassVar

import pytest
import torch
from torch.autograd import grad

import pullback as pb


def make_pair(Function, *, marked):
    """`2x` and `x + 1`; the outputs numbered in `marked` are not differentiable."""

    class Pair(Function):
        cotangents: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x):
            outputs = 2 * x, x + 1
            ctx.mark_non_differentiable(*(outputs[i] for i in marked))
            return outputs

        @staticmethod
        def backward(ctx, *cotangents):
            Pair.cotangents.append(cotangents)
            return 2 * cotangents[0]

    return Pair


def test_marked_output_carries_no_gradient(Function):
    """E01, L39: no requires_grad, no grad_fn, and it can be used downstream."""
    x = torch.ones(2, requires_grad=True)
    first, second = make_pair(Function, marked=[0, 1]).apply(x)
    used = (first + second) * x
    (gx,) = grad(used.sum(), x)

    assert [first.requires_grad, second.requires_grad] == [False, False]
    assert [first.grad_fn, second.grad_fn] == [None, None]
    assert gx.tolist() == [4.0, 4.0]


def test_marked_beside_unmarked_gets_zeros(Function):
    """E02, L39: one gradient per output still, zeros for the marked one."""
    Pair = make_pair(Function, marked=[1])
    x = torch.ones(2, requires_grad=True)
    first, second = Pair.apply(x)
    (gx,) = grad((first * second).sum(), x)
    (cotangents,) = Pair.cotangents

    assert [first.requires_grad, second.requires_grad] == [True, False]
    assert cotangents[0].tolist() == [2.0, 2.0]
    assert torch.equal(cotangents[1], torch.zeros(2))
    assert gx.tolist() == [4.0, 4.0]


def test_marked_output_alone_never_runs_backward(Function):
    """E03: backward, which could not even return a legal result, is not called."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            outputs = 2 * x, x + 1
            ctx.mark_non_differentiable(outputs[1])
            return outputs

        @staticmethod
        def backward(ctx, *cotangents):
            raise AssertionError("backward was called")

    x = torch.ones(2, requires_grad=True)
    _, second = Pair.apply(x)

    assert grad((second * x).sum(), x)[0].tolist() == [2.0, 2.0]


def test_marked_output_does_not_block_the_next(Function):
    """E04: through an op into a second Function; gradient flows along the unmarked path."""
    needed = []

    class Product(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            needed.append(ctx.needs_input_grad[1])
            return g * b, g * a

    Pair = make_pair(Function, marked=[1])
    x = torch.ones(2, requires_grad=True)
    first, second = Pair.apply(x)
    (gx,) = grad(Product.apply(first, second.neg()).sum(), x)

    assert needed == [False]
    assert len(Pair.cotangents) == 1
    assert gx.tolist() == [-4.0, -4.0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_integral_output_needs_no_mark(Function, dtype):
    """E05, L40: an output of integral type never requires grad, others do by default."""

    class Rounds(Function):
        @staticmethod
        def forward(ctx, x):
            return x.to(dtype), x * 2

        @staticmethod
        def backward(ctx, gi, g):
            return 2 * g

    x = torch.ones(2, requires_grad=True)
    rounded, double = Rounds.apply(x)

    assert not rounded.requires_grad
    assert double.requires_grad
    assert grad(double.sum(), x)[0].tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("calls", [[], [[0]], [[0, 1]], [[0], [1]], [[0, 1], [1]]])
def test_marked_tensors_are_what_was_named(calls):
    """E06: get_non_differentiable returns what the last call named."""
    seen = []

    class Pair(pb.Function):
        @staticmethod
        def forward(ctx, x):
            outputs = 2 * x, x + 1
            for named in calls:
                ctx.mark_non_differentiable(*(outputs[i] for i in named))
            marked = ctx.get_non_differentiable()
            seen.append([i for i in (0, 1) if any(outputs[i] is m for m in marked)])
            seen.append(len(marked))
            return outputs

        @staticmethod
        def backward(ctx, *cotangents):
            return 2 * cotangents[0]

    Pair.apply(torch.ones(2, requires_grad=True))
    expected = calls[-1] if calls else []

    assert seen == [expected, len(expected)]


@pytest.mark.filterwarnings("ignore")
def test_second_mark_replaces_the_first(Function):
    """E06: so does the effect: the output named first is differentiable."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            outputs = 2 * x, x + 1
            ctx.mark_non_differentiable(outputs[0])
            ctx.mark_non_differentiable(outputs[1])
            return outputs

        @staticmethod
        def backward(ctx, *cotangents):
            return 2 * cotangents[0]

    outs = Pair.apply(torch.ones(2, requires_grad=True))

    assert [out.requires_grad for out in outs] == [True, False]


def test_marked_input_comes_back_detached(Function):
    """E07: an alias without history; the input itself is not changed."""

    class Returns(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    leaf = torch.ones(2, requires_grad=True)
    x = leaf * 2
    node = x.grad_fn
    out = Returns.apply(x)

    assert out is not x
    assert out.data_ptr() == x.data_ptr()
    assert not out.requires_grad
    assert out.grad_fn is None
    assert x.requires_grad
    assert x.grad_fn is node


def test_mark_from_setup_context(Function):
    """L42: with setup_context the mark is made there, on the output."""

    class Sorts(Function):
        @staticmethod
        def forward(x):
            return tuple(x.sort())

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])

        @staticmethod
        def backward(ctx, g, _):
            (index,) = ctx.saved_tensors
            return torch.zeros_like(g).index_add(0, index, g)

    x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    values, index = Sorts.apply(x)
    weights = torch.tensor([1.0, 10.0, 100.0])

    assert not index.requires_grad
    assert grad((values * weights).sum(), x)[0].tolist() == [100.0, 1.0, 10.0]
