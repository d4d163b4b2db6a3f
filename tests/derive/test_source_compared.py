"""A printed text is compared with its program when it is written: it is right, or it is refused."""

import math
import random
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from pullback.compose import combine
from pullback.derive import recipe
from pullback.derive.backward import derive_function
from pullback.emit import emit
from pullback.errors import DifferingTextError
from pullback.graph import simplify as simplifying
from pullback.graph.patterns import call, tensors
from pullback.graph.rewrite import RewriteRule
from pullback.graph.values import aten
from pullback.judge import comparison


def printed(program, *examples, save="auto"):
    """The class that the text of a program makes, and the text."""
    derived = derive_function(program, *examples, save=save)
    text = derived.source()
    space = {}
    exec(text, space)
    return space[derived.__name__], text


def leaf(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def results(call, inputs):
    """Outputs, which of them require grad, and gradients for each output alone."""
    outputs = call(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    outputs = [y for y in outputs if isinstance(y, torch.Tensor)]
    found = [(y.detach(), y.requires_grad) for y in outputs]
    for y in (y for y in outputs if y.requires_grad):
        cotangent = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
        found += torch.autograd.grad(
            y, inputs, cotangent, retain_graph=True, materialize_grads=True
        )
    return found


def assert_same(program, function, *inputs):
    expected, got = results(program, inputs), results(function.apply, inputs)

    for a, b in zip(got, expected, strict=True):
        if isinstance(a, tuple):
            assert a[1] == b[1]
            a, b = a[0], b[0]
        torch.testing.assert_close(a, b, equal_nan=True)


# ---- constants ----


def one_dead(x):
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    _ = x * b
    return x * a


def both_live(x):
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    return x * a + (x * b).sin()


def taken_name(constant):
    return constant * torch.tensor([1.0, 2.0, 3.0])


def taken_twice(constant, constant_1):
    constant_2 = constant * torch.tensor([1.0, 2.0, 3.0])
    return constant_2 + constant_1 * torch.tensor([4.0, 5.0, 6.0])


@pytest.mark.parametrize("program", [one_dead, both_live, taken_name])
def test_constants_have_names_of_their_own(program):
    x = leaf(3)
    function, _ = printed(program, x)

    assert_same(program, function, x)


def test_constants_leave_the_names_of_arguments():
    x, y = leaf(3), leaf(3, seed=1)
    function, _ = printed(taken_twice, x, y)

    assert_same(taken_twice, function, x, y)


def test_indices_in_two_places_are_two_constants():
    def program(x):
        return 2 * x[:, [0, 1], :, [1, 2]]

    x = leaf(2, 3, 4, 3)
    function, _ = printed(program, x)

    assert_same(program, function, x)


def test_constants_that_are_not_finite_or_have_no_element():
    def program(x):
        edge = torch.tensor([float("inf"), -0.0, float("-inf")])
        wide = torch.tensor([complex(float("inf"), 0), 2j, 1])
        none = torch.empty(0, 3) * torch.empty(0, 3)
        return torch.cat([none, torch.minimum(x, edge).unsqueeze(0)]), wide.isinf() | (x > edge)

    x = leaf(3)
    function, _ = printed(program, x)

    assert_same(program, function, x)


def test_text_beside_an_infinite_slope_says_why_it_is_refused():
    def program(x):
        return x.sqrt(), x * 2

    with pytest.raises(DifferingTextError, match="zero times an infinite slope is NaN"):
        printed(program, torch.ones(3, requires_grad=True))


def test_literal_targets_are_a_constant():
    def program(x):
        return F.cross_entropy(x * torch.tensor([1.0, 0.5, 2.0, 1.0]), torch.tensor([0, 2, 1]))

    x = leaf(3, 4)
    function, _ = printed(program, x)

    assert_same(program, function, x)


# ---- one tensor returned twice ----


def with_detached(x):
    y = x.sin()
    return y, y.detach()


def same_twice(x):
    y = x.sin()
    return y, y


def input_detached(x):
    return x, x.detach(), x.sin()


def detached_twice(x):
    y = x * x
    y_detached = y.detach()
    return y_detached, y, y.detach(), y_detached * y


@pytest.mark.parametrize("program", [with_detached, same_twice, input_detached, detached_twice])
def test_tensor_returned_twice_keeps_its_gradient(program):
    x = leaf(4)
    function, _ = printed(program, x)

    assert_same(program, function, x)


# ---- sizes ----


def by_chunks(x):
    total = 0
    for start in range(0, x.shape[0], 2):
        total = total + x[start : start + 2].sin().sum() * (start + 1)
    return total


def by_chunks_in_place(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for start in range(0, x.shape[0], 2):
        out[start : start + 2] = x[start : start + 2].sin().sum(1)
    return out


def by_root(x):
    return x / math.sqrt(x.shape[0])


@pytest.mark.parametrize("program", [by_chunks, by_chunks_in_place, by_root])
def test_size_made_a_number_is_checked(program):
    function, text = printed(program, leaf(6, 3))

    assert "Written for sizes with x.shape[0] == 6." in text
    assert_same(program, function, leaf(6, 5))
    for count in (1, 4, 7, 12):
        with pytest.raises(ValueError, match=rf"x\.shape\[0\] must be 6, got {count}"):
            function.apply(leaf(count, 3))


class MeanByNumel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count, ctx.shape = float(x.numel()), x.shape
        return x.mean()

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape) / ctx.count


def test_number_of_elements_in_a_backward_is_checked():
    function, text = printed(MeanByNumel.apply, leaf(6, 3))

    assert "x.shape[0] * x.shape[1] == 18" in text
    assert_same(MeanByNumel.apply, function, leaf(3, 6))
    with pytest.raises(ValueError, match=r"x\.shape\[0\] = 7, x\.shape\[1\] = 3"):
        function.apply(leaf(7, 3))


def branching(x):
    return x.sin() if x.shape[0] > 4 else x.cos()


def test_branch_by_size_is_checked():
    function, text = printed(branching, leaf(6, 3))

    assert "Written for sizes with x.shape[0] > 4." in text
    assert_same(branching, function, leaf(9, 2))
    with pytest.raises(ValueError, match=r"x\.shape\[0\] > 4 must hold, got x\.shape\[0\] = 3"):
        function.apply(leaf(3, 3))


def pieces(x):
    return torch.stack([part.sum() * (i + 1) for i, part in enumerate(x.split(2))])


def rows(x):
    return torch.stack([row.sum() * (i + 1) for i, row in enumerate(x)])


@pytest.mark.parametrize(("program", "served"), [(pieces, (5, 6)), (rows, (6,))])
def test_count_of_pieces_is_checked(program, served):
    function, _ = printed(program, leaf(6, 3))

    for count in (3, 5, 6, 7, 12):
        if count in served:
            assert_same(program, function, leaf(count, 3))
        else:
            with pytest.raises(ValueError, match=rf"x\.shape\[0\].* got .*{count}"):
                function.apply(leaf(count, 3))


def kept_part(x):
    return x.topk(int(x.shape[-1] * 0.5)).values


def kept_part_rounded_up(x):
    return x.topk(math.ceil(x.shape[-1] * 0.4)).values


def kept_part_rounded(x):
    return x.topk(round(x.shape[-1] * 0.4)).values


def without_a_part(x):
    count = int(x.shape[-1] * 0.3)
    return x[:, count:] if count > 0 else x * 2


@pytest.mark.parametrize(
    ("program", "served"),
    [
        (kept_part, (6, 7)),
        (kept_part_rounded_up, (1, 4, 6, 7, 9, 14)),
        (kept_part_rounded, (1, 4, 6, 7, 9, 14)),
        (without_a_part, (4, 6)),
    ],
)
def test_part_of_a_size_is_open_or_checked(program, served):
    """What makes sizes of fractions of others: `int`, `math.ceil`, `round`."""
    function, text = printed(program, leaf(3, 6))

    assert "math" not in text
    for count in (1, 4, 6, 7, 9, 14):
        if count in served:
            assert_same(program, function, leaf(3, count))
        else:
            with pytest.raises(ValueError, match=rf"must hold, got x\.shape\[1\] = {count}"):
                function.apply(leaf(3, count))


def test_batch_of_one_is_right_or_refused():
    def program(x):
        return (x * x.shape[0]).sum(1)

    function, _ = printed(program, leaf(1, 3))
    x = leaf(4, 3)

    with pytest.raises(ValueError, match=r"x\.shape\[0\] must be 1, got 4"):
        function.apply(x)


def test_size_that_no_tensor_has_is_made_of_those_that_are_there():
    """The gradient of the convolution has the sizes of the padded image, which is not saved."""

    def blurred(x):
        kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
        padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.conv2d(padded, kernel.expand(2, 1, 3, 3), groups=2)

    examples = [leaf(*shape, dtype=torch.float32) for shape in ((1, 2, 3, 4), (2, 2, 6, 5))]
    derived = derive_function(blurred, examples[0])
    function, _ = printed(blurred, examples[0])

    for x in examples:
        assert_same(blurred, derived, x)
        assert_same(blurred, function, x)


def test_sizes_stay_open_where_the_program_is():
    def program(x):
        return (x - x.mean(0)).pow(2).sum() / x.shape[0]

    function, text = printed(program, leaf(6, 3))

    assert "Written for sizes" not in text
    for shape in ((1, 3), (6, 1), (7, 2), (12, 9)):
        assert_same(program, function, leaf(*shape))


def test_text_that_is_wrong_for_other_numbers_of_dimensions_checks_them():
    def mean_of_squares(x, y):
        return (x - y).square().mean()

    function, text = printed(mean_of_squares, leaf(3), leaf(3, seed=1))

    assert "x.dim() == 1" in text
    with pytest.raises(ValueError, match=r"`MeanOfSquares`: x\.dim\(\) must be 1, got 2"):
        function.apply(leaf(2, 3), leaf(2, 3, seed=1))


def test_text_that_is_right_for_other_numbers_of_dimensions_takes_them():
    def scaled(x, y):
        return (x.softmax(-1) * 2).sin() * y.sum()

    function, text = printed(scaled, leaf(3, 4), leaf(3, 4, seed=1))

    assert "dim()" not in text
    for other in ((5,), (2, 3, 4)):
        assert_same(scaled, function, leaf(*other), leaf(3, 4, seed=1))


def test_loss_that_is_broadcast_is_refused():
    def program(x, y):
        return ((x - y) ** 2).mean()

    function, text = printed(program, leaf(4, 3), leaf(4, 3, seed=1))

    assert "Written for sizes with y.shape == x.shape." in text
    assert_same(program, function, leaf(1, 2), leaf(1, 2, seed=1))
    with pytest.raises(ValueError, match=r"must be x\.shape, got \(4, 3\) and \(1, 3\)"):
        function.apply(leaf(1, 3), leaf(4, 3))


# ---- second order ----


def second(call, x):
    (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def padded_fft(x):
    return torch.fft.irfft(torch.fft.rfft(x, n=9), n=5)


def put_first(x):
    t = x * 1
    t[0] = x[1].sin()
    return t * t


def logits(x):
    return torch.logit(x.sigmoid()).sin()


def products(x):
    return x.cumprod(0)


@pytest.mark.parametrize("program", [padded_fft, put_first, logits, products, torch.prod])
def test_second_derivative_is_right_or_refused(program):
    function, text = printed(program, leaf(5))
    for x in (leaf(5), torch.tensor([0.5, 0.0, 2.0, 0.0, -1.0], dtype=torch.float64)):
        x = x.detach().requires_grad_()
        if "is differentiable once" in text:
            with pytest.raises(RuntimeError, match="is differentiable once"):
                second(function.apply, x)
        else:
            torch.testing.assert_close(second(function.apply, x), second(program, x))


# ---- named and nested results ----


@pytest.mark.parametrize("program", [lambda x: x.max(0), lambda x: x.sort(0), torch.linalg.qr])
def test_named_results_are_a_plain_tuple(program):
    x = leaf(4, 3)
    function, text = printed(program, x)

    assert "Returns a plain tuple: " in text
    assert_same(program, function, x)


def test_nested_results_are_a_flat_tuple():
    def program(x):
        return {"a": x.sin(), "b": [x, (2 * x, None)]}

    x = leaf(3)
    function, text = printed(program, x)

    assert "Returns a flat tuple: ['a'], ['b'][0], ['b'][1][0], ['b'][1][1]." in text
    assert function.apply(x)[3] is None
    assert_same(lambda x: (x.sin(), x, 2 * x), function, x)


@pytest.mark.parametrize(
    "rest",
    [(), (None,), (3, None), ("words", 0.5, True), (torch.float32, math.inf, 3j)],
    ids=str,
)
def test_what_is_no_tensor_is_returned_as_by_the_program(rest):
    def program(x):
        return (x.sin(), *rest)

    x = leaf(3)
    function, _ = printed(program, x)
    returned = function.apply(x)

    assert isinstance(returned, tuple)
    assert returned[1:] == rest
    assert_same(program, function, x)


def test_row_of_one_stays_one_in_a_module(run_python, tmp_path):
    def program(x):
        return (x.sin() * x.exp(), None)

    text = emit(derive_function(program, leaf(3)))
    (tmp_path / "one.py").write_text(text)
    done = run_python("one.py", folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert ", None" in text


SMALL = {
    "slice": (lambda x: x[:2].sin(), 1),
    "slice from the end": (lambda x: x[-2:].sin(), 1),
    "variance": (lambda x: x.var(0, correction=0), 1),
    "sum of an empty row": (lambda x: x.cumsum(0) * 2, 0),
    "product of an empty row": (lambda x: x @ x.T, 0),
    "mean of an empty row": (lambda x: x.mean(0), 0),
    "chunk": (lambda x: x.chunk(2)[0].sin(), 2),
}


@pytest.mark.parametrize("name", SMALL)
def test_example_of_few_rows_is_no_rule_for_many(name):
    """A capture of size 0 or 1 is of that size alone: the text says so."""
    program, rows = SMALL[name]
    function, _ = printed(program, leaf(rows, 3))
    for many in {1, 2, 4, 5} - {rows}:
        with pytest.raises(ValueError, match=rf"x.shape\[0\] must be {rows}, got {many}"):
            function.apply(leaf(many, 3))
    assert_same(program, function, leaf(rows, 3))


def test_every_size_of_a_text_that_holds_numbers_is_checked():
    """Sizes of two inputs that are equal by chance are told apart."""
    x, y = leaf(2, 3), leaf(3, 2, seed=1)
    function, _ = printed(torch.kron, x, y)

    assert_same(torch.kron, function, x, y)
    for shape in [(4, 2), (3, 5)]:
        with pytest.raises(ValueError, match=r"must be \d, got \d"):
            function.apply(x, leaf(*shape))


class Parts(NamedTuple):
    left: object
    right: object


def test_results_in_a_named_tuple_of_the_user_are_a_plain_tuple():
    x = leaf(3)
    function, text = printed(lambda x: Parts(x.sin(), 2 * x), x)

    assert "Returns a plain tuple: left, right." in text
    assert_same(lambda x: (x.sin(), 2 * x), function, x)


# ---- layouts ----


def attended(x):
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


def test_kernel_that_ends_the_process_at_a_size_of_zero_is_not_reached():
    function, _ = printed(attended, leaf(3, 4))

    for shape in ((0, 4), (3, 0)):
        with pytest.raises(ValueError, match=r"must be at least 1, got 0"):
            function.apply(leaf(*shape))


def changed_through_a_view(x):
    y = x.clone()
    y.mT.mul_(1.5)
    return y * x


@pytest.mark.parametrize("program", [attended, changed_through_a_view])
def test_text_is_right_for_other_strides_than_the_example(program):
    x = leaf(4, 4)
    function, _ = printed(program, x)

    assert_same(program, function, x.detach().mT.requires_grad_())
    assert_same(program, function, torch.stack([x, x], -1)[..., 1].detach().requires_grad_())


def changed_through_what_may_be_a_copy(x):
    y = x.clone()
    y.flatten()[::2].mul_(2)
    return y.sin()


def test_text_that_goes_by_the_layout_refuses_another_one():
    x = leaf(4, 3)
    function, _ = printed(changed_through_what_may_be_a_copy, x)

    assert_same(changed_through_what_may_be_a_copy, function, x)
    with pytest.raises(ValueError, match="x must be contiguous: pass a copy"):
        function.apply(x.mT)


def test_argument_that_no_gradient_reaches_has_no_second_one():
    x, y = leaf(3), leaf(3)
    function, _ = printed(lambda x, y: x.sin() * y.detach(), x, y)
    (first,) = torch.autograd.grad(function.apply(x, y).sum(), x, create_graph=True)

    (second,) = torch.autograd.grad(first.sum(), y, allow_unused=True)

    assert second is None


# ---- a wrong pass ----


def sine(x):
    return x.sin() * x


(a,) = tensors("a")
SPOILED = RewriteRule.of(
    "spoiled", call(aten.cos.default, a), lambda a: a * a, why="wrong, on purpose"
)


def test_wrong_readable_rule_is_left_out(monkeypatch):
    expected = derive_function(sine, leaf(4)).source()
    monkeypatch.setattr(recipe, "READABLE", (SPOILED, *simplifying.READABLE))
    function, text = printed(sine, leaf(4))

    assert "x.cos()" in expected
    assert "x.cos()" in text
    assert_same(sine, function, leaf(7))


def test_rule_that_hides_nan_is_left_out(monkeypatch):
    """Right for every number, and for NaN it is not."""
    hiding = RewriteRule.of(
        "hiding", call(aten.cos.default, a), lambda a: a.clamp(-99.0, 99.0).nan_to_num(0.0).cos(),
        why="wrong, on purpose",
    )  # fmt: skip
    monkeypatch.setattr(recipe, "READABLE", (hiding, *simplifying.READABLE))
    function, text = printed(lambda x: x.cos() * 2, leaf(4))

    assert "nan_to_num" not in text
    assert function.apply(torch.tensor([torch.nan], dtype=torch.float64)).isnan().all()


def test_rule_that_raises_is_left_out(monkeypatch):
    def raising(a):
        raise IndexError("a rule that does not know this")

    broken = RewriteRule.of("broken", call(aten.cos.default, a), raising, why="wrong, on purpose")
    monkeypatch.setattr(recipe, "READABLE", (broken, *simplifying.READABLE))
    function, _ = printed(sine, leaf(4))

    assert_same(sine, function, leaf(4))


def test_wrong_exact_rule_is_refused(monkeypatch):
    derived = derive_function(sine, leaf(4))
    monkeypatch.setattr(recipe, "READABLE", (SPOILED, *simplifying.READABLE))
    monkeypatch.setattr(recipe, "EXACT", (SPOILED, *simplifying.EXACT))

    with pytest.raises(DifferingTextError) as raised:
        derived.source()

    said = str(raised.value)
    assert said.startswith("E306 differing-text: the text of `sine` must compute what `sine`")
    assert "the gradient of `x` by all outputs, for the example" in said


# ---- it leaves no trace ----


def test_comparison_leaves_no_trace():
    x = leaf(4, dtype=torch.float32)
    derived = derive_function(lambda x: torch.dropout(x, 0.5, True) * x, x)
    before = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    with torch.no_grad():
        text = derived.source()
    with torch.inference_mode():
        assert derived.source() == text

    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), torch.get_default_dtype()) == before[1:]
    assert x.grad is None


def test_large_example_is_compared_at_small_sizes(monkeypatch):
    sizes = []
    original = comparison.observed

    def observed(call, row, wanted):
        sizes.append(sum(t.numel() for t in row))
        return original(call, row, wanted)

    monkeypatch.setattr(comparison, "observed", observed)
    derive_function(sine, torch.zeros(3000, 1000, requires_grad=True)).source()

    assert sizes
    assert max(sizes) < 100_000


def test_integers_are_those_of_the_example():
    seen = set()

    def program(x, index):
        if type(index) is torch.Tensor:
            seen.update(index.tolist())
        return x[index].sin()

    derived = derive_function(program, leaf(9), torch.tensor([7, 2, 7, 5]))
    seen.clear()
    derived.source()

    assert seen == {7, 2, 5}


# ---- outputs without a gradient ----

DETACHED = {
    "a view of an input": lambda x: (x * x, x.detach()[0]),
    "a view of an output": lambda x: ((y := x * x), y.detach().view(-1)),
    "transposed": lambda x: ((y := x * x), y.detach().t(), x.detach().t()),
    "expanded": lambda x: (x * x, x.detach().expand(2, 3, 4)),
    "nothing else": lambda x: x.detach().view(-1),
    "itself": lambda x: (x.detach(), x * 2),
    "a part": lambda x: (x.detach().split(2)[0], x.sin()),
    "integers": lambda x: (x.max(1).indices, x.max(1).values),
}


@pytest.mark.parametrize("name", DETACHED)
def test_detached_view_requires_no_grad(name):
    program, x = DETACHED[name], leaf(3, 4)

    assert_same(program, printed(program, x)[0], x)
    assert_same(program, derive_function(program, x), x)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", ["inductor", "native"])
@pytest.mark.parametrize("name", ["a view of an input", "a view of an output"])
def test_detached_view_of_a_compiled_node_requires_no_grad(name, backend):
    program, x = DETACHED[name], leaf(3, 4)

    assert_same(program, combine(program, x, backend=backend), x)
