"""A printed text is right for inputs of other dtypes than the example's, or says that it is not."""

import re

import pytest
import torch
import torch.nn.functional as F

import pullback as pb
from pullback.derive.backward import derive_function

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def leaf(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def printed(program, *examples):
    derived = derive_function(program, *examples)
    text = derived.source()
    space = {}
    exec(text, space)
    return space[derived.__name__].apply, text


def results(call, inputs):
    output = call(*inputs)
    return [output.detach(), *torch.autograd.grad(output, inputs, torch.ones_like(output))]


def assert_same(program, function, inputs):
    for got, expected in zip(results(function, inputs), results(program, inputs), strict=True):
        torch.testing.assert_close(got, expected)


def in_dtype(examples, dtype):
    return [x.detach().to(dtype).requires_grad_() for x in examples]


# ---- casts that the example hides ----


def rms_norm(x, w):
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * rstd).to(x.dtype) * w


def in_single(x):
    return x.float().exp()


def sum_in_double(x):
    return x.double().exp().sum(-1).to(x.dtype)


def softmax_in_single(x):
    return F.softmax(x, -1, dtype=torch.float32).to(x.dtype)


def with_stated_zeros(x):
    return (x.sum(1) + torch.zeros(x.shape[0], dtype=torch.float32)).exp()


def as_other(x, w):
    return x * w.to(x.dtype)


def single_as_other(x, w):
    return (x.float() ** 2).to(w.dtype) * w


STATED = {
    "rms_norm": (rms_norm, [(3, 8), (8,)], "h = x.to(torch.float32)"),
    "in_single": (in_single, [(3, 4)], "x.to(torch.float32)"),
    "sum_in_double": (sum_in_double, [(3, 4)], ".to(x.dtype)"),
    "softmax_in_single": (softmax_in_single, [(3, 4)], "x.to(torch.float32)"),
    "with_stated_zeros": (with_stated_zeros, [(3, 4)], "dtype=torch.float32"),
    "as_other": (as_other, [(4,), (4,)], "w.to(x.dtype)"),
    "single_as_other": (single_as_other, [(4,), (4,)], ".to(w.dtype)"),
}


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("example", [torch.float32, torch.bfloat16])
def test_cast_of_the_program_is_in_the_text(name, example):
    program, shapes, said = STATED[name]
    examples = [leaf(*shape, dtype=example, seed=i) for i, shape in enumerate(shapes)]

    function, text = printed(program, *examples)

    assert said in text
    assert "dtype must" not in text
    for dtype in FLOATS:
        assert_same(program, function, in_dtype(examples, dtype))


def test_half_precision_is_summed_in_single_as_the_program_says():
    def mean_square(x):
        return x.float().pow(2).mean(-1).to(x.dtype)

    function, _ = printed(mean_square, leaf(3, 8))
    x = leaf(3, 8, dtype=torch.bfloat16)

    assert all(map(torch.equal, results(function, [x]), results(mean_square, [x])))


@pytest.mark.parametrize("dtypes", [(0, 1), (1, 0), (2, 1), (1, 2), (0, 2)])
@pytest.mark.parametrize("program", [as_other, single_as_other, torch.mul])
def test_inputs_may_be_of_several_dtypes(program, dtypes):
    function, _ = printed(program, leaf(4), leaf(4, seed=1))

    given = [leaf(4, dtype=FLOATS[one], seed=i) for i, one in enumerate(dtypes)]

    assert_same(program, function, given)


def test_examples_of_several_dtypes_serve_for_one():
    def scaled(x, w):
        return x.float() * w

    function, text = printed(scaled, leaf(3, 4, dtype=torch.bfloat16), leaf(4))

    assert "dtype must" not in text
    for dtype in FLOATS:
        assert_same(scaled, function, [leaf(3, 4, dtype=dtype), leaf(4, dtype=dtype)])


def test_complex_beside_real_is_right_in_double_precision():
    def turned(x, z):
        return (x * z.abs() + (z * 1j).real).float()

    function, _ = printed(turned, leaf(4), leaf(4, dtype=torch.complex64, seed=1))
    x, z = leaf(4, dtype=torch.float64), leaf(4, dtype=torch.complex128, seed=1)

    assert_same(turned, function, [x, z])
    assert_same(turned, function, [x, leaf(4, dtype=torch.complex64, seed=1)])


# ---- what follows its inputs anyway ----


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x.sin() * y,
        lambda x, y: x * torch.tensor([0.5, 2.0, 3.0, 4.0]) + y,
        lambda x, y: F.layer_norm(x, (4,), y),
        lambda x, y: (x @ y) ** 2 + torch.full((1,), 0.5, dtype=x.dtype),
        lambda x, y: x.exp().to(torch.int32).to(x.dtype) * y + x,
    ],
)
def test_program_that_follows_its_inputs_gets_no_check(program):
    function, text = printed(program, leaf(4), leaf(4, seed=1))

    assert "dtype must" not in text
    for dtype in FLOATS[:3]:
        given = [leaf(4, dtype=dtype), leaf(4, dtype=dtype, seed=1)]
        for got, expected in zip(results(function, given), results(program, given), strict=True):
            rough = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
            torch.testing.assert_close(got, expected, **rough)


# ---- what is different work in another dtype ----


def branched(x):
    h = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return h.exp()


def with_constant(x):
    return x * torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=x.dtype)


def under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x).float()


def test_branch_by_dtype_is_checked():
    function, text = printed(branched, leaf(3))

    assert "Written for inputs with x.dtype in (torch.float32, torch.float64)." in text
    assert_same(branched, function, [leaf(3, dtype=torch.float64)])
    said = "`Branched`: x.dtype must be torch.float32 or torch.float64, got torch.bfloat16"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        function(leaf(3, dtype=torch.bfloat16))


@pytest.mark.parametrize(("program", "shape"), [(with_constant, (4,)), (under_autocast, (4, 4))])
def test_dtype_that_is_a_part_of_the_text_is_checked(program, shape):
    function, _ = printed(program, leaf(*shape))

    for got, expected in zip(
        results(function, [leaf(*shape)]), results(program, [leaf(*shape)]), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)  # it rounds to bfloat16
    with pytest.raises(ValueError, match=r"x\.dtype must be torch\.float32, got torch\.float64"):
        function(leaf(*shape, dtype=torch.float64))


def test_another_dtype_costs_no_second_derivative():
    # In half precision the formula is too coarse, and PyTorch's own op has no second derivative.
    x = torch.tensor([-3.0, 4.0, -7.0, 8.0], dtype=torch.float64, requires_grad=True)
    derived = derive_function(F.mish, x)
    space: dict = {}
    exec(derived.source(), space)
    function = next(v for v in space.values() if isinstance(v, type))

    assert torch.autograd.gradgradcheck(function.apply, x)
    with pytest.raises(ValueError, match=r"dtype must be .*got torch\.float16"):
        function.apply(x.detach().half())


def test_checked_text_is_still_differentiable_twice():
    function, _ = printed(with_constant, leaf(4))
    x = leaf(4)

    (first,) = torch.autograd.grad(function(x).pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)

    constant = torch.tensor([0.1, 0.2, 0.3, 0.4])
    torch.testing.assert_close(second, 2 * constant**2)


# ---- the Function itself, modules, hybrids, C++ ----


@pytest.mark.parametrize("name", STATED)
def test_derived_function_is_captured_again_for_another_dtype(name):
    program, shapes, _ = STATED[name]
    examples = [leaf(*shape, seed=i) for i, shape in enumerate(shapes)]
    derived = derive_function(program, *examples)

    for dtype in FLOATS:
        given = in_dtype(examples, dtype)
        assert all(map(torch.equal, results(derived, given)[:1], results(program, given)[:1]))
        assert_same(program, derived, given)


def test_module_has_the_cast_and_compares_gradients():
    x, w = leaf(3, 8), leaf(8, seed=1)

    text = pb.emit(rms_norm, examples=(x, w))

    assert "h = x.to(torch.float32)" in text
    assert "Not compared" not in text
    space = {"__name__": "module"}
    exec(text, space)
    space["self_test"]()
    for dtype in FLOATS:
        assert_same(rms_norm, space["RmsNorm"].apply, in_dtype((x, w), dtype))


def test_hybrid_whose_calls_hide_a_cast_checks_the_dtype():
    x, w = leaf(3, 8), leaf(8, seed=1)
    groups = [(0, 1, 2, 3), (5, 6)]

    text = pb.emit(pb.hybrid(rms_norm, x, w, groups=groups, backend="eager"))

    space = {"__name__": "module"}
    exec(text, space)
    assert_same(rms_norm, space["rms_norm"], [x, w])
    with pytest.raises(ValueError, match=r"x\.dtype must be torch\.float32"):
        space["rms_norm"](*in_dtype((x, w), torch.bfloat16))


@pytest.mark.parametrize(
    ("program", "is_open"),
    [
        (lambda x, w: (x.float() * w).to(x.dtype), False),
        (lambda x, w: x.sin() * w, True),
    ],
)
def test_op_in_cpp_takes_the_dtypes_in_which_it_casts_as_the_program(program, is_open):
    text = pb.emit(program, "cpp", examples=(leaf(3, 8), leaf(8, seed=1)), verify=False)

    assert ("x must be float32, got" in text) is not is_open
    assert ("x.is_floating_point()" in text) is is_open
