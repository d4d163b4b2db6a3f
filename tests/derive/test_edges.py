"""Programs at the edges: numbers with an imaginary part, no dimensions, nothing in a tensor."""

import pytest
import torch

import pullback as pb
from tests.derive.agreement import assert_agrees, made_of, results_of

DTYPES = [torch.float64, torch.float32, torch.complex128]

IMAGINARY = {
    "times": lambda x: x * 1j,
    "over": lambda x: x / 2j,
    "under": lambda x: 1j / x,
    "plus": lambda x: (x - 1j) * (2 + 1j),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", IMAGINARY)
def test_imaginary_number_is_conjugated(name, dtype):
    assert_agrees(IMAGINARY[name], torch.randn(3, dtype=dtype, requires_grad=True))


NUMBERS = {
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": lambda x: x.sum(0),
    "kept": lambda x: x.sum(-1, keepdim=True) * x,
    "mean": lambda x: x.mean(0),
    "cumsum": lambda x: x.cumsum(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": lambda x: x / (x**2).sum(0),
    "largest": lambda x: x.amax(0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_number_has_a_dimension_to_name(name):
    assert_agrees(NUMBERS[name], torch.tensor(0.7, dtype=torch.float64, requires_grad=True))


EMPTY = [
    ((0, 3), (0, 7, 1)),
    ((2, 3, 0), (0, 0)),
    ((2, 3, 0), (3, 0)),
    ((0, 2, 0), (0, 6)),
    ((2, 0, 3), (0, 5)),
    ((2, 0, 3), (0,)),
]


@pytest.mark.parametrize(("before", "after"), EMPTY)
def test_empty_tensor_takes_the_shape_it_is_given(before, after):
    assert_agrees(
        lambda x: x.reshape(after) * 2, torch.randn(before, dtype=torch.float64, requires_grad=True)
    )


def test_text_of_imaginary_number_is_short():
    text = pb.derive(lambda x: x * 1j, torch.randn(3, requires_grad=True)).source()

    assert "(grad_out * -1j).real" in text


REPEATED = {
    "rows": lambda: torch.randn(1, 2, dtype=torch.float64).expand(3, 2),
    "columns": lambda: torch.randn(3, 1, dtype=torch.float64).expand(3, 2),
    "both": lambda: torch.randn((), dtype=torch.float64).expand(3, 2),
    "middle": lambda: torch.randn(2, 3, 1, dtype=torch.float64).transpose(0, 1).expand(3, 2, 2),
}
VIEWS = {
    "product": lambda x: (x * 1).view(-1).sin(),
    "copy": lambda x: x.clone().contiguous().view(-1).sin(),
    "pairs": lambda x: torch.view_as_complex((x * 1).contiguous()).abs(),
}


# PyTorch's own product of "middle" has no view of one dimension.
LAID_OUT = [(n, p) for n in REPEATED for p in VIEWS if (n, p) != ("middle", "product")]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "program"), LAID_OUT)
def test_repeated_numbers_are_laid_out_as_pytorch_does(name, program):
    x = REPEATED[name]().requires_grad_()
    dense = torch.randn(x.shape, dtype=x.dtype, requires_grad=True)

    # The text has no `contiguous()`, which does nothing to the example: see the limits of derive.
    assert_agrees(VIEWS[program], x, text=program != "pairs")
    assert_agrees(VIEWS[program], dense, at=[x], text=False)


def test_complex_half_numbers_are_compared():
    x = torch.randn(3).to(torch.complex32).requires_grad_()

    for made in (pb.derive(lambda x: x * x, x), pb.combine(lambda x: x * x, x, backend="eager")):
        y = made.apply(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))

        assert torch.allclose(gradient.to(torch.complex64), (2 * x).conj().to(torch.complex64))


IDLE = {
    "unused": lambda x, z: z * 2,
    "detached": lambda x, z: z * x.detach(),
    "compared": lambda x, z: z * (x > 0),
    "counted": lambda x, z: (x.argmax(), z * 3),
}


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("name", IDLE)
def test_hook_of_tensor_without_gradient_is_not_called(name, is_leaf):
    def called(function):
        leaves = [torch.randn(3, requires_grad=True) for _ in range(2)]
        x, z = leaves if is_leaf else [leaf * 1 for leaf in leaves]
        calls = []
        x.register_hook(lambda g: calls.append("x"))
        z.register_hook(lambda g: calls.append("z"))
        outputs = function(x, z)
        last = outputs[-1] if isinstance(outputs, tuple) else outputs
        last.sum().backward()
        return calls, x.requires_grad and last.requires_grad

    leaves = [torch.randn(3, requires_grad=True) for _ in range(2)]
    program = IDLE[name]
    made = [
        pb.derive(program, *leaves).apply,
        pb.combine(program, *leaves, backend="eager").apply,
    ]
    assert [called(function) for function in made] == [called(program)] * 2 == [(["z"], True)] * 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "area"])
def test_size_is_a_fraction_of_another(mode):
    def resized(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode)

    x = torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    larger = torch.randn(2, 3, 8, 9, dtype=torch.float64, requires_grad=True)

    assert_agrees(resized, x)
    if mode != "area":  # its windows are as many as the sizes say
        assert_agrees(resized, x, at=[larger])


def test_text_multiplies_no_numbers_past_their_range():
    x = torch.tensor([1e-35], requires_grad=True)

    assert_agrees(lambda x: (x * 1e30) * 1e30, x)
    assert_agrees(lambda x: (x * 1e-30) * 1e-30, torch.tensor([1e35], requires_grad=True))


def test_all_labels_may_be_ignored():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 0])

    assert_agrees(torch.nn.functional.cross_entropy, x, labels, at=[x, torch.full((4,), -100)])


@pytest.mark.parametrize("name", ["elu", "celu", "selu", "hardtanh", "relu6", "hardswish"])
def test_text_agrees_at_nan(name):
    x = torch.full((19,), float("nan"), dtype=torch.float64)
    x[::3] = torch.linspace(-7, 7, 7, dtype=torch.float64)
    function = getattr(torch.nn.functional, name)
    text = made_of(function, torch.randn(19, dtype=torch.float64, requires_grad=True))["text"]

    torch.testing.assert_close(
        results_of(text, [x.requires_grad_()])["gradients"],
        results_of(function, [x])["gradients"],
        equal_nan=True,
    )


def test_program_that_views_repeated_numbers_is_derived():
    """The views of `cartesian_prod` are possible because of the strides of 0."""
    x, y = (torch.full((1,), 0.5 + n, dtype=torch.float64).expand(n) for n in (3, 4))
    leaves = [t.detach().requires_grad_() for t in (x, y)]
    D = pb.derive(torch.cartesian_prod, *leaves)
    got, expected = (call(*leaves) for call in (D.apply, torch.cartesian_prod))

    assert torch.equal(got, expected)
    assert got.stride() == expected.stride()
    for a, b in zip(
        *(torch.autograd.grad(out.sum(), leaves) for out in (got, expected)), strict=True
    ):
        assert torch.equal(a, b)


def test_text_whose_kernel_needs_contiguous_inputs_says_so():
    """`pdist` calls `contiguous()`, which does nothing for the example and is not in its graph."""
    D = pb.derive(torch.nn.functional.pdist, torch.randn(4, 3, requires_grad=True))
    space = {}
    exec(D.source(), space)
    turned = torch.randn(3, 4).t()

    with pytest.raises(ValueError, match="must be contiguous"):
        space[D.__name__].apply(turned)
    assert torch.equal(D.apply(turned), torch.nn.functional.pdist(turned))


def test_ties_of_repeated_numbers_are_sorted_as_they_lie():
    """An unstable sort of equal numbers goes by their strides: both sides must have the same."""
    x = torch.ones(1, dtype=torch.float64).expand(8000).detach().requires_grad_()
    D = pb.derive(torch.sort, torch.randn(8000, dtype=torch.float64, requires_grad=True))

    assert torch.equal(D.apply(x)[1], torch.sort(x)[1])
