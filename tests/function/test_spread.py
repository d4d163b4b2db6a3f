"""Elements of lists and keyword-only arguments as inputs of their own."""

import pytest
import torch

import pullback as pb
from pullback.errors import BackwardArityError, BatchError, GradientShapeError, GradientTypeError
from tests.function.everywhere.compare import TORCH_TAKES_KEYWORDS


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def place(function):
    return f"test_spread.py:{function.__code__.co_firstlineno}"


class Weighted(pb.Function):
    """`sum(weight * tensor)` of a list, with gradients for every element and the weight."""

    traverse_lists = True

    @staticmethod
    def forward(ctx, tensors, weight):
        ctx.kinds = type(tensors), len(tensors)
        ctx.save_for_backward(*tensors, weight)
        return sum(weight * tensor for tensor in tensors)

    @staticmethod
    def backward(ctx, cotangent):
        *tensors, weight = ctx.saved_tensors
        return [cotangent * weight] * len(tensors), cotangent * sum(tensors)


class WeightedSplit(pb.Function):
    traverse_lists = True

    @staticmethod
    def forward(tensors, weight):
        return sum(weight * tensor for tensor in tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        tensors, weight = inputs
        ctx.kinds = type(tensors), len(tensors)
        ctx.save_for_backward(*tensors, weight)

    @staticmethod
    def backward(ctx, cotangent):
        return Weighted.backward(ctx, cotangent)


styles = pytest.mark.parametrize("function", [Weighted, WeightedSplit], ids=["combined", "split"])


@styles
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_element_gets_its_gradient(function, kind, count):
    weight, tensors = leaf(3.0), [leaf(float(i)) for i in range(count)]
    y = function.apply(kind(tensors), weight)
    found = torch.autograd.grad(y, (*tensors, weight))

    assert [g.item() for g in found] == [3.0] * count + [sum(range(count))]
    assert y.grad_fn.kinds == (kind, count)


@styles
def test_lists_differentiate_twice(function):
    inputs = leaf(0.5), leaf(1.5), leaf(2.0)

    def apply(a, b, weight):
        return function.apply([a, b], weight)

    assert torch.autograd.gradcheck(apply, inputs)
    assert torch.autograd.gradgradcheck(apply, inputs)


@styles
def test_empty_list_is_plain(function):
    weight = leaf(3.0)

    assert function.apply([], weight) == 0


@styles
def test_length_may_change_from_call_to_call(function):
    weight = leaf(3.0)
    for count in (1, 3, 2, 1):
        tensors = [leaf(1.0) for _ in range(count)]
        found = torch.autograd.grad(function.apply(tensors, weight), tensors)

        assert [g.item() for g in found] == [3.0] * count


def test_flags_count_arguments_of_the_user():
    seen = []

    class Asking(Weighted):
        @staticmethod
        def forward(ctx, tensors, weight):
            seen.append(tuple(ctx.needs_input_grad))
            seen.append([ctx.needs_input_grad(i) for i in range(3)])
            return Weighted.forward(ctx, tensors, weight)

    Asking.apply([leaf(1.0), torch.ones(1)], torch.ones(1))

    assert seen == [(True, False), [True, False, False]]


def test_mixed_list_keeps_its_plain_elements():
    class Mixed(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, items):
            ctx.factor = items[1]
            return items[0] * items[1]

        @staticmethod
        def backward(ctx, cotangent):
            return [cotangent * ctx.factor, None]

    x = leaf(1.0)
    Mixed.apply([x, 4.0]).backward()

    assert x.grad.item() == 4.0


def returning(result):
    class Returning(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, tensors, y):
            return sum(tensors) + y

        @staticmethod
        def backward(ctx, cotangent):
            return result(cotangent)

    return Returning


def test_none_for_a_list_means_no_gradient():
    x, y = leaf(1.0), leaf(1.0)
    output = returning(lambda g: (None, g)).apply([x], y)
    found = torch.autograd.grad(output, (x, y), allow_unused=True)

    assert found[0] is None
    assert found[1].item() == 1.0


def test_mapping_may_hold_a_list():
    x, y = leaf(1.0), leaf(1.0)
    output = returning(lambda g: {"tensors": [g * 2]}).apply([x], y)
    found = torch.autograd.grad(output, (x, y), allow_unused=True)

    assert found[0].item() == 2.0
    assert found[1] is None


FAULTS = {
    "too short": (lambda g: ([g], g), BackwardArityError),
    "too long": (lambda g: ([g, g, g], g), BackwardArityError),
    "no list": (lambda g: (g, g), BackwardArityError),
    "too few": (lambda g: ([g, g],), BackwardArityError),
    "too many": (lambda g: ([g, g], g, g), BackwardArityError),
    "type of an element": (lambda g: ([g, 1.0], g), GradientTypeError),
    "shape of an element": (lambda g: ([g, g.repeat(2)[:0]], g), GradientShapeError),
}


@pytest.mark.parametrize(("result", "kind"), FAULTS.values(), ids=FAULTS)
def test_fault_is_told_in_users_words(result, kind):
    function = returning(result)
    x, y, z = leaf(1.0, 2.0), leaf(1.0, 2.0), leaf(1.0, 2.0)
    with pytest.raises(kind) as raised:
        function.apply([x, y], z).sum().backward()

    assert raised.value.facts["at"] == place(function.backward)


def test_fault_names_the_element():
    function = returning(FAULTS["shape of an element"][0])

    with pytest.raises(GradientShapeError, match=r"of the shape of `tensors\[1\]`"):
        function.apply([leaf(1.0, 2.0), leaf(1.0, 2.0)], leaf(1.0, 2.0)).sum().backward()


def test_without_traversal_lists_stay_plain():
    class Plain(Weighted):
        traverse_lists = False

        @staticmethod
        def forward(ctx, tensors, weight):
            Plain.seen = tuple(ctx.needs_input_grad)
            return weight * 1

    Plain.apply([torch.ones(1)], leaf(1.0))

    assert Plain.seen == (False, True)


def test_node_keeps_the_users_name():
    y = Weighted.apply([leaf(1.0)], leaf(1.0))

    assert y.grad_fn.name() == "WeightedBackward"
    assert len(y.grad_fn.next_functions) == 2


def test_lists_under_torch_func():
    class Summing(pb.Function):
        traverse_lists = True
        generate_vmap_rule = True

        @staticmethod
        def forward(tensors, factor):
            return (tensors[0] + tensors[1]) * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            _, ctx.factor = inputs

        @staticmethod
        def backward(ctx, cotangent):
            return [cotangent * ctx.factor] * 2, None

    def total(x, y):
        return Summing.apply([x, y], 3.0).sum()

    x, y = torch.ones(2), torch.ones(2)

    assert [g.tolist() for g in torch.func.grad(total, (0, 1))(x, y)] == [[3.0, 3.0]] * 2
    assert torch.func.vmap(lambda x, y: Summing.apply([x, y], 3.0))(x, y).tolist() == [6.0, 6.0]


def test_keywords_under_torch_func():
    class Scaling(pb.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, *, factor=2.0):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            _, ctx.factor = inputs

        @staticmethod
        def backward(ctx, cotangent):
            return {"x": cotangent * ctx.factor}

    def total(x):
        return Scaling.apply(x, factor=3.0).sum()

    x = torch.ones(2, requires_grad=True)
    total(x).backward()

    assert x.grad.tolist() == [3.0, 3.0]
    assert torch.func.grad(total)(torch.ones(2)).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("base", [torch.autograd.Function, pb.Function])
def test_vmap_rule_sees_the_dims_of_positional_inputs_alone(base):
    if base is torch.autograd.Function and not TORCH_TAKES_KEYWORDS:
        pytest.skip("torch.autograd.Function takes keywords from PyTorch 2.13 on")

    class Scaling(base):
        @staticmethod
        def forward(x, *, factor=2.0):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x, factor):
            (dim,) = in_dims  # as PyTorch gives it
            return x * factor, dim

    given = torch.func.vmap(Scaling.apply, in_dims=1, out_dims=1)(torch.ones(2, 3), factor=3.0)
    default = torch.func.vmap(Scaling.apply)(torch.ones(2))

    assert given.tolist() == [[3.0] * 3] * 2
    assert default.tolist() == [2.0, 2.0]


def test_batched_keyword_is_refused_where_a_rule_could_not_tell():
    class Scaling(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(x, *, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x, factor):
            return x * factor, 0

    def batched(x, factor):
        return Scaling.apply(x, factor=factor)

    with pytest.raises(BatchError, match="`factor` unbatched"):
        torch.func.vmap(batched)(torch.ones(2), torch.ones(2))
    assert torch.func.vmap(batched, (0, None))(torch.ones(2), torch.tensor(3.0)).tolist() == [3, 3]


def test_keyword_fault_is_told_in_users_words():
    class Scaling(pb.Function):
        @staticmethod
        def forward(ctx, x, *, factor):
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent[:1], None

    with pytest.raises(GradientShapeError, match="of the shape of `x`") as raised:
        Scaling.apply(leaf(1.0, 2.0), factor=2.0).sum().backward()

    assert raised.value.facts["at"] == place(Scaling.backward)
