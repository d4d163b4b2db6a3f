"""How an emitted op is called: defaults, inputs without grad, autocast, other sizes, names."""

import pytest
import torch
import torch.nn.functional as F

from pullback.emit.compiled import build_file
from pullback.emit.cpp.library import NAMESPACE
from pullback.emit.cpp.op import emit_cpp
from pullback.emit.subject import subject_of
from pullback.errors import BuildError
from tests.emit.cpp.cases import differences, emit_together, pulled, tensors_of

GENERATOR = torch.Generator().manual_seed(0)


def row(*shape):
    made = torch.linspace(-1, 2, torch.Size(shape).numel()).reshape(shape)
    return made.double().requires_grad_()


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64).requires_grad_()


def scaled(
    x, scale=0.75, power=2, mode="mean", dims=(0,), flags=(True,), dtype=None, ceiling=torch.inf
):
    """Parameters of every kind; only `scale` is a mere number."""
    made = x.sin() ** power * scale
    made = made.mean(dims) if mode == "mean" else made.sum(dims)
    return made.to(dtype or x.dtype).clamp(max=ceiling)


def by_name(x, *, eps=0.125, wide: "torch.dtype | None" = None):
    return x / (x.abs() + eps)


def around(x, act=torch.tanh, shift=0.25):
    """A default that no schema can hold, and one behind it."""
    return act(x) + shift


class ShortBackward(torch.autograd.Function):
    """Gives a gradient for the argument that it is called with, and for no other."""

    @staticmethod
    def forward(ctx, x, slope=0.25):
        ctx.slope = slope
        return x * slope

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slope


def apart(a, b):
    """Results of one input each, of both, of a constant, and one with a gradient of zero."""
    return a.sin(), b.cos(), a * b, (a * b).detach(), torch.sign(b)


def mlp(x, weight, bias, gain):
    return F.layer_norm(F.linear(x, weight, bias).tanh(), (4,), gain).softmax(-1)


def chunked(x):
    return torch.cat([part.cumsum(0) for part in x.split(2)])


def looped(x):
    total = x[0] * 0
    for i in range(x.shape[0]):
        total = total + x[i] ** (i + 1)
    return total


def divided(x):
    return x.sin() / x.shape[0]


class Mean(torch.autograd.Function):
    """Divides by the number of elements, in a backward by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.count = x.numel()
        ctx.shape = x.shape
        return x.mean()

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape) / ctx.count


EXAMPLES = {
    scaled: (row(4, 3),),
    by_name: (row(4),),
    around: (row(4),),
    ShortBackward: (row(4),),
    apart: (row(3), row(3)),
    mlp: (normal(2, 3), normal(4, 3), normal(4), normal(4)),
    chunked: (row(6, 2),),
    looped: (row(3, 2),),
    divided: (row(6, 2),),
    Mean: (row(6, 2),),
}


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    """Each of them as an op."""
    folder = tmp_path_factory.mktemp("calls")
    file = folder / "calls.cpp"
    subjects = [subject_of(thing, examples) for thing, examples in EXAMPLES.items()]
    file.write_text(emit_together(subjects), encoding="utf-8")
    return build_file(file, cache=folder / "cache", flags=["-O0"])


pytestmark = [pytest.mark.needs_compiler, pytest.mark.slow]


# ---- defaults ----

SCHEMAS = {
    "scaled": '(Tensor x, float scale=0.75, int power=2, str mode="mean", int[] dims=[0], '
    "bool[] flags=[True], Tensor? dtype=None, float? ceiling=None)",
    "by_name": "(Tensor x, *, float eps=0.125, ScalarType? wide=None)",
    "around": "(Tensor x, *, float shift=0.25)",
    "short_backward": "(Tensor x, float slope=0.25)",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_defaults_of_the_program_are_those_of_the_op(name, ops):
    schema = str(getattr(ops, name).default._schema)

    assert schema == f"{NAMESPACE}::{name}{SCHEMAS[name]} -> Tensor"


def test_argument_left_at_its_default_may_be_given(ops):
    (x,) = EXAMPLES[scaled]
    calls = [(lambda x, f=f, s=s: f(x, scale=s)) for f in (ops.scaled, scaled) for s in (0.75, 2.0)]
    named = [(lambda x, f=f: f(x, eps=0.5)) for f in (ops.by_name, by_name)]

    assert differences(pulled(calls[1], [x]), pulled(calls[3], [x])) == []
    assert differences(pulled(calls[0], [x]), pulled(calls[2], [x])) == []
    assert differences(pulled(named[0], [x]), pulled(named[1], [x])) == []
    assert torch.equal(ops.around(x, shift=0.5), around(x, shift=0.5))


@pytest.mark.parametrize(
    "other",
    [{"power": 3}, {"mode": "sum"}, {"dims": [1]}, {"flags": [False]}, {"ceiling": 1.0}],
    ids=str,
)
def test_argument_that_is_baked_in_is_refused(other, ops):
    ((name, _),) = other.items()
    with pytest.raises(RuntimeError, match=f"Scaled: emitted for {name} = .* alone, got "):
        ops.scaled(*EXAMPLES[scaled], **other)


def test_infinite_number_may_be_given(ops):
    (x,) = EXAMPLES[scaled]

    assert torch.equal(ops.scaled(x, ceiling=torch.inf), scaled(x))


def by_norm(x, order=torch.inf):
    return torch.linalg.vector_norm(x, order)


def test_infinite_number_is_not_free():
    text = next(iter(emit_cpp(subject_of(by_norm, (row(3),))).values()))

    assert "ByNorm: emitted for order = inf alone, got " in " ".join(text.split())


# ---- which outputs require grad ----


@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True), (False, False)])
def test_output_requires_grad_where_that_of_the_program_does(needs, ops):
    given = [t.detach().requires_grad_(n) for t, n in zip(EXAMPLES[apart], needs, strict=True)]
    found = [y.requires_grad for y in ops.apart(*given)]

    assert found == [y.requires_grad for y in apart(*given)]
    if any(needs):
        assert differences(pulled(ops.apart, given), pulled(apart, given)) == []


def test_output_without_history_is_so_under_compile(ops):
    a, b = (t.detach() for t in EXAMPLES[apart])
    compiled = torch.compile(lambda a, b: ops.apart(a, b), fullgraph=True, backend="aot_eager")
    found = compiled(a.requires_grad_(), b)

    assert [y.requires_grad for y in found] == [True, False, True, False, False]


# ---- autocast ----


@pytest.mark.parametrize("lower", [(), (0,), (0, 1, 2, 3), (1,)])
def test_op_runs_under_autocast_as_the_program_does(lower, ops):
    plain = [t.detach().float() for t in EXAMPLES[mlp]]
    given = [t.bfloat16() if i in lower else t for i, t in enumerate(plain)]
    given = [t.requires_grad_() for t in given]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, expected = ops.mlp(*given), mlp(*given)
        inside = torch.autograd.grad(out.float().square().sum(), given, retain_graph=True)
    outside = torch.autograd.grad(out.float().square().sum(), given)
    wanted = torch.autograd.grad(expected.float().square().sum(), given)

    assert torch.allclose(out.float(), expected.float(), atol=0.05)
    for a, b, c, t in zip(inside, outside, wanted, given, strict=True):
        assert a.dtype == t.dtype
        assert torch.equal(a, b)
        assert torch.allclose(a.float(), c.float(), rtol=0.1, atol=0.1)


def test_casts_under_autocast_are_those_of_the_inputs(ops):
    given = [t.detach().float() for t in EXAMPLES[mlp]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = ops.mlp(given[0].bfloat16(), *given[1:])
        low = ops.mlp(*(t.bfloat16() for t in given))

    assert (mixed.dtype, low.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(mixed, ops.mlp(given[0].bfloat16().float(), *given[1:]))


# ---- sizes ----

SIZES = {"chunked": chunked, "looped": looped, "divided": divided, "mean": Mean.apply}


SERVED = {
    "chunked": [(6, 2), (5, 3), (6, 1)],
    "looped": [(3, 2), (3, 1), (3, 5)],
    "divided": [(6, 2), (1, 2), (7, 3), (6, 1)],
    "mean": [(6, 2), (1, 2), (7, 3), (6, 1)],
}
REFUSED = {
    "chunked": [(4, 2), (7, 2), (9, 1)],
    "looped": [(1, 2), (2, 2), (4, 2)],
}


def pairs(shapes):
    return [(name, shape) for name, row in shapes.items() for shape in row]


@pytest.mark.parametrize(("name", "shape"), pairs(SERVED))
def test_other_size_is_right(name, shape, ops):
    op, program, x = getattr(ops, name), SIZES[name], row(*shape)

    assert differences(tensors_of(op(x)), tensors_of(program(x))) == []
    assert differences(pulled(op, [x]), pulled(program, [x])) == []


@pytest.mark.parametrize(("name", "shape"), pairs(REFUSED))
def test_other_size_is_refused_in_words(name, shape, ops):
    words = "size 0 of x must be 3, got" if name == "looped" else "split of x must give 3 tensors"
    with pytest.raises(RuntimeError, match=f"{name.capitalize()}: {words}"):
        getattr(ops, name)(row(*shape))


# ---- two ops of one name ----


@pytest.mark.slow
def test_second_op_of_a_name_is_refused_in_words(ops, tmp_path):
    def divided(x):
        return x * 2

    file = tmp_path / "other.cpp"
    file.write_text(emit_together([subject_of(divided, (row(3),))]), encoding="utf-8")
    with pytest.raises(BuildError) as caught:
        build_file(file, cache=tmp_path / "cache", flags=["-O0"])

    assert caught.value.rule == "`emitted::divided` must not be registered twice in one process"
    assert "another name" in caught.value.facts["fix"]
