"""Section I: absent tensors, and lists of tensors."""

from typing import ClassVar

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

import pullback as pb


def make_affine(Function, *, gradient_of_absent=None):
    """`x * scale + shift`, with scale and shift optional."""

    class Affine(Function):
        seen: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x, scale=None, shift=None):
            Affine.seen.append((scale is None, shift is None))
            ctx.save_for_backward(x, scale)
            ctx.has_shift = shift is not None
            out = x if scale is None else x * scale
            return out * 1 if shift is None else out + shift

        @staticmethod
        def backward(ctx, g):
            x, scale = ctx.saved_tensors
            absent = gradient_of_absent
            return (
                g if scale is None else g * scale,
                absent if scale is None else g * x,
                g if ctx.has_shift else None,
            )

    return Affine


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("shift", [False, True])
def test_optional_tensor_may_be_absent(Function, scale, shift):
    """I01, L52: forward sees None; a tensor that is present is registered."""
    Affine = make_affine(Function)
    x, a, b = (torch.randn(3, requires_grad=True) for _ in range(3))
    given = [x, a if scale else None, b if shift else None]
    present = [t for t in given if t is not None]
    out = Affine.apply(*given)

    assert Affine.seen == [(not scale, not shift)]
    assert len(out.grad_fn.next_functions) == len(present)
    assert len(grad(out.sum(), present)) == len(present)
    assert gradcheck(Affine.apply, given)
    assert gradgradcheck(Affine.apply, given)


def test_gradient_of_absent_tensor_is_error(Function):
    """I01: its gradient must be undefined."""
    Affine = make_affine(Function, gradient_of_absent=torch.ones(3))
    x = torch.randn(3, requires_grad=True)

    with pytest.raises(RuntimeError, match=r"(?i)gradient"):
        Affine.apply(x, None, None).sum().backward()


# ---- lists ----


@pytest.mark.filterwarnings("ignore")
def test_list_is_not_traversed_by_default(Function):
    """I02, L03: a list is one plain argument, and its gradient must be undefined."""
    seen = []

    class Total(Function):
        @staticmethod
        def forward(ctx, parts, y):
            seen.append(tuple(ctx.needs_input_grad))
            return parts[0] + parts[1] + y

        @staticmethod
        def backward(ctx, g):
            return None, g

    a, b, y = (torch.ones(2, requires_grad=True) for _ in range(3))
    out = Total.apply([a, b], y)

    assert seen == [(False, True)]
    assert len(out.grad_fn.next_functions) == 1
    assert grad(out.sum(), (a, b, y), allow_unused=True)[:2] == (None, None)


class Weighted(pb.Function):
    """The sum over i of `(i + 1) * parts[i] * factor * y`, with the list taken apart."""

    traverse_lists = True

    @staticmethod
    def forward(ctx, parts, factor, y):
        ctx.factor = factor
        ctx.save_for_backward(*parts, y)
        return sum((i + 1) * part for i, part in enumerate(parts)) * factor * y

    @staticmethod
    def backward(ctx, g):
        *parts, y = ctx.saved_tensors
        total = sum((i + 1) * part for i, part in enumerate(parts))
        weights = [(i + 1) * ctx.factor * y for i in range(len(parts))]
        return [g * weight for weight in weights], None, g * total * ctx.factor


@pytest.mark.parametrize("sequence", [list, tuple])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_traversed_list_gets_gradient_per_element(sequence, length):
    """I02: every element is a tracked input, backward returns one gradient for each."""
    parts = [torch.randn(3, requires_grad=True) for _ in range(length)]
    y = torch.randn(3, requires_grad=True)

    def call(*given):
        return Weighted.apply(sequence(given[:-1]), 2.0, given[-1])

    gradients = grad(call(*parts, y).sum(), parts)

    assert len(call(*parts, y).grad_fn.next_functions) == length + 1
    assert [torch.equal(g, (i + 1) * 2.0 * y) for i, g in enumerate(gradients)] == [True] * length
    assert gradcheck(call, (*parts, y))
    assert gradgradcheck(call, (*parts, y))


def test_forward_sees_the_list_as_given():
    """I02: forward gets a list where a list was passed, with the tensors in it."""
    seen = []

    class Sees(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, parts, pair):
            seen.append((type(parts), len(parts), type(pair), len(pair)))
            return parts[0] + pair[1]

        @staticmethod
        def backward(ctx, g):
            return [g], [None, g]

    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    ga, gb, gc = grad(Sees.apply([a], (b, c)).sum(), (a, b, c), allow_unused=True)

    assert seen == [(list, 1, tuple, 2)]
    assert ga.tolist() == gc.tolist() == [1.0, 1.0]
    assert gb is None


def test_traversed_list_may_mix_kinds():
    """I02: an element that needs no gradient, or is no tensor, takes None in its place."""

    class Mixed(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, parts):
            ctx.save_for_backward(parts[0], parts[2])
            ctx.factor = parts[1]
            return parts[0] * parts[1] * parts[2]

        @staticmethod
        def backward(ctx, g):
            _, last = ctx.saved_tensors
            return [g * ctx.factor * last, None, None]

    x = torch.tensor([2.0], requires_grad=True)
    (gx,) = grad(Mixed.apply([x, 3.0, torch.tensor([5.0])]), x)

    assert gx.tolist() == [15.0]


def test_single_list_argument_may_be_traversed():
    """I02: with the list as only argument backward returns the list of its gradients."""

    class Stack(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, parts):
            return torch.stack(parts)

        @staticmethod
        def backward(ctx, g):
            return list(g.unbind())

    parts = [torch.randn(2, requires_grad=True) for _ in range(3)]
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    gradients = grad((Stack.apply(parts) * weights).sum(), parts)

    assert [g.tolist() for g in gradients] == weights.tolist()


@pytest.mark.parametrize("counts", [(1, 1), (3, 1), (1, 2), (2, 0)])
def test_each_list_needs_its_own_count(counts):
    """I02: as many gradients as elements in each list; a sum that fits by chance does not do."""

    class Total(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, parts, rest):
            return sum(parts) + sum(rest)

        @staticmethod
        def backward(ctx, g):
            return [g] * counts[0], [g] * counts[1]

    a, b, c = (torch.randn(2, requires_grad=True) for _ in range(3))

    with pytest.raises(RuntimeError, match=r"(?s)expected.*got"):
        Total.apply([a, b], [c]).sum().backward()


def test_elements_count_as_tensor_inputs():
    """I02: needs_input_grad(i) counts the elements, as in C++."""
    seen = []

    class Total(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, parts, y):
            return sum(parts) * y

        @staticmethod
        def backward(ctx, g):
            seen.append([ctx.needs_input_grad(i) for i in range(4)])
            return [g] * 3, None

    parts = [torch.randn(2, requires_grad=True) for _ in range(3)]
    y = torch.ones(2)
    grad(Total.apply(parts, y).sum(), parts[1])

    assert seen == [[False, True, False, False]]
