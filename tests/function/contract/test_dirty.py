"""Section D: inputs that `forward` changes in place."""

import pytest
import torch
from torch.autograd import grad

import pullback as pb
from pullback import errors


def make_double_in_place(Function):
    """Doubles its input behind the dispatcher's back, and says so."""

    class DoubleInPlace(Function):
        @staticmethod
        def forward(ctx, x):
            x.detach().numpy()[:] *= 2
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    return DoubleInPlace


def make_marking(Function, marks, outputs):
    """Doubles x in place; marks and returns what is asked; the gradients are those of 2x + y."""

    class Marking(Function):
        @staticmethod
        def forward(ctx, x, y):
            x.mul_(2)
            ctx.mark_dirty(*marks(x, y))
            return outputs(x, y)

        @staticmethod
        def backward(ctx, *cotangents):
            return 2 * sum(cotangents), sum(cotangents)

    return Marking


def pair():
    """Two tensors that are not leaves, and require grad."""
    return (torch.tensor([1.0, 3.0], requires_grad=True).clone() for _ in range(2))


def test_dirty_input_is_the_output(Function):
    """D01: the very same tensor comes out, and backward works."""
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    y = x.clone()
    out = make_double_in_place(Function).apply(y)
    (gx,) = grad((out * 5).sum(), x)

    assert out is y
    assert y.tolist() == [2.0, 6.0]
    assert y.grad_fn.name() == "DoubleInPlaceBackward"
    assert gx.tolist() == [10.0, 10.0]


def test_dirty_mark_bumps_the_version(Function):
    """D01, L38: even if the change bypassed the dispatcher."""
    y = torch.ones(2, requires_grad=True).clone()
    before = y._version
    make_double_in_place(Function).apply(y)

    assert y._version == before + 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_mark_before_or_after_the_change(Function, when):
    """L37: mark_dirty before or after the change does not matter."""

    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            if when == "before":
                ctx.mark_dirty(x)
            x.mul_(2)
            if when == "after":
                ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = torch.ones(2, requires_grad=True)
    y = x.clone()
    out = Twice.apply(y)

    assert out is y
    assert grad(out.sum(), x)[0].tolist() == [2.0, 2.0]


def test_dirty_mark_from_setup_context(Function):
    """L37, L42: with setup_context the mark is made there."""

    class Twice(Function):
        @staticmethod
        def forward(x):
            return x.mul_(2)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = torch.ones(2, requires_grad=True)
    y = x.clone()
    out = Twice.apply(y)

    assert out is y
    assert grad(out.sum(), x)[0].tolist() == [2.0, 2.0]


def test_dirty_leaf_is_an_error(Function):
    """D02: a leaf that requires grad may not be changed in place."""
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        make_double_in_place(Function).apply(torch.ones(2, requires_grad=True))


def test_dirty_input_takes_on_requires_grad(Function):
    """D03: when another input requires grad, and the gradient flows to that one."""
    Marking = make_marking(Function, lambda x, y: (x,), lambda x, y: x.add_(y))
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    out = Marking.apply(x, y)

    assert out is x
    assert x.requires_grad
    assert x.tolist() == [3.0, 3.0]
    assert grad((x * 4).sum(), y)[0].tolist() == [4.0, 4.0]


def test_dirty_input_in_two_positions(Function):
    """D04: a dirty input may be returned twice; the two are equal."""
    Marking = make_marking(Function, lambda x, y: (x,), lambda x, y: (x, x))
    leaf = torch.ones(2, requires_grad=True)
    x = leaf.clone()
    first, second = Marking.apply(x, torch.ones(2))

    assert torch.equal(first, second)
    assert first.tolist() == [2.0, 2.0]
    assert grad((first + second).sum(), leaf)[0].tolist() == [4.0, 4.0]


def test_dirty_view_must_be_alone(Function):
    """D04: a dirty view may not share its Function with a second output."""
    Marking = make_marking(Function, lambda x, y: (x,), lambda x, y: (x, y * 1))
    base = torch.ones(4, requires_grad=True).clone()

    with pytest.raises(RuntimeError, match="view"):
        Marking.apply(base[:2], torch.ones(2, requires_grad=True))


def test_dirty_view_alone_rewrites_its_base(Function):
    """D04: alone it may, and the base takes part in the gradient."""
    leaf = torch.ones(4, requires_grad=True)
    base = leaf.clone()
    make_double_in_place(Function).apply(base[:2])

    assert base.tolist() == [2.0, 2.0, 1.0, 1.0]
    assert grad(base.sum(), leaf)[0].tolist() == [2.0, 2.0, 1.0, 1.0]


def test_dirty_input_must_be_returned(Function):
    """D05: a dirty input that is not among the outputs is an error."""
    Marking = make_marking(Function, lambda x, y: (x,), lambda x, y: x + y)

    with pytest.raises(RuntimeError, match=r"(?s)dirty.*return|return.*dirty"):
        Marking.apply(*pair())


def test_unreturned_dirty_input_has_its_class():
    """D05: our error for it names the Function and the input."""
    Marking = make_marking(pb.Function, lambda x, y: (x,), lambda x, y: x + y)

    with pytest.raises(errors.DirtyNotReturnedError, match=r"(?s)`Marking.*`x`"):
        Marking.apply(*pair())


def test_earlier_save_becomes_unusable(Function):
    """D06, L38: the earlier op's backward raises instead of using changed values."""
    x = torch.ones(2, requires_grad=True).clone()
    square = x * x
    make_double_in_place(Function).apply(x)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_bumping_returns_what_is_marked():
    """D07: get_and_bump_dirty gives exactly the marked tensors, one version up per call."""
    seen = []

    class Bumps(pb.Function):
        @staticmethod
        def forward(ctx, x, y, z):
            ctx.mark_dirty(x, z)
            before = x._version, y._version, z._version
            marked = [ctx.get_and_bump_dirty() for _ in range(3)][-1]
            after = x._version, y._version, z._version
            seen.append([new - old for old, new in zip(before, after, strict=True)])
            seen.append([any(tensor is m for m in marked) for tensor in (x, y, z)])
            seen.append(len(marked))
            return x, z

        @staticmethod
        def backward(ctx, gx, gz):
            return gx, None, gz

    Bumps.apply(*(torch.ones(2, requires_grad=True).clone() for _ in range(3)))

    assert seen == [[3, 0, 3], [True, False, True], 2]


def test_bumping_without_marks_gives_nothing():
    """D07: with nothing marked the answer is empty."""
    seen = []

    class Bumps(pb.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(len(ctx.get_and_bump_dirty()))
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    Bumps.apply(torch.ones(2, requires_grad=True))

    assert seen == [0]


def make_marking_twice(Function):
    """Marks x, then y; changes and returns only y."""

    class MarksTwice(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.mark_dirty(x)
            y.mul_(2)
            ctx.mark_dirty(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return None, 2 * g

    return MarksTwice


@pytest.mark.filterwarnings("ignore")
def test_second_mark_replaces_the_first(Function):
    """D08: the tensor named first is not dirty: it need not be returned, nor is it bumped."""
    x, y = pair()
    version = x._version
    out = make_marking_twice(Function).apply(x, y)

    assert out is y
    assert x._version == version
    assert x.grad_fn.name().startswith("CloneBackward")


@pytest.mark.filterwarnings("ignore")
def test_bumping_knows_only_the_last_mark():
    """D08: get_and_bump_dirty gives what the second call named."""
    seen = []

    class MarksTwice(pb.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.mark_dirty(x)
            ctx.mark_dirty(y)
            seen.extend(tensor is y for tensor in ctx.get_and_bump_dirty())
            return y

        @staticmethod
        def backward(ctx, g):
            return None, g

    MarksTwice.apply(*pair())

    assert seen == [True]


def test_dirty_mark_takes_tensors_only(Function):
    """L42: something else than a tensor is refused."""

    class Marks(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(3)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    with pytest.raises((RuntimeError, TypeError), match="mark_dirty"):
        Marks.apply(torch.ones(2, requires_grad=True))
