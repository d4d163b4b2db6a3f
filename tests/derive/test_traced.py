"""Under `torch.compile` a derived Function is its program: traced whole, and for every call."""

import pytest
import torch
from torch import nn
from torch.autograd import grad

import pullback as pb
from pullback.derive.backward import derive_function
from tests.derive.functions import CASES, derived, differences


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def compiled(function, **options):
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


def scaled(x, gain=2.0, rows=1):
    return (x * gain).sin()[:rows].sum(0), x.shape[0]


def test_sizes_and_values_are_not_baked():
    D = derive_function(scaled, normal(4, 3), 2.0, 1)
    function = compiled(lambda x, gain, rows: D.apply(x, gain, rows=rows))
    for rows, gain, taken in [(4, 2.0, 1), (4, 3.0, 1), (6, 3.0, 2), (1, 0.5, 1)]:
        x = normal(rows, 3)
        got, expected = function(x, gain, taken), scaled(x, gain, taken)

        assert differences(got, expected) == []
        assert differences(grad(got[0].sum(), x), grad(expected[0].sum(), x)) == []


@pytest.mark.parametrize(
    "call",
    [lambda D: D.apply, lambda D: lambda *args: D.apply(*args)],
    ids=["alias", "attribute"],
)
def test_every_spelling_of_the_call_is_traced(call):
    D, x = derived("swish"), normal(4, 3)
    function = compiled(call(D))

    assert differences(grad(function(x).sum(), x), grad(D.apply(x).sum(), x)) == []


def test_one_graph_holds_the_ops():
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    torch.compile(derived("swish").apply, backend=backend, fullgraph=True)(normal(4, 3))

    assert len(graphs) == 1
    assert "sigmoid" in graphs[0].code


class Double(pb.Function):
    """Wrong by a factor, so that it shows whose backward runs."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 7 * cotangent


class TorchDouble(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 7 * cotangent


@pytest.mark.parametrize("inner", [Double, TorchDouble])
def test_hand_written_backward_inside_stays(inner):
    def program(x):
        return inner.apply(x) * 3

    x = normal(3)
    D = derive_function(program, x)

    assert differences(grad(D.apply(x).sum(), x), [torch.full_like(x, 21)]) == []
    assert differences(grad(compiled(D.apply)(x).sum(), x), [torch.full_like(x, 21)]) == []


def test_parameters_around_get_gradients():
    module = nn.Linear(3, 2).double()
    x = normal(4, 3)
    D = derive_function(module, x)
    wanted = (x, *module.parameters())

    got = grad(compiled(lambda x: D.apply(x))(x).sum(), wanted)

    assert differences(got, grad(module(x).sum(), wanted)) == []


def test_outputs_without_gradient_have_none():
    def program(x):
        return x.sin(), x.detach(), x.argmax()

    x = normal(3)
    got = compiled(derive_function(program, x).apply)(x)

    assert [y.requires_grad for y in got] == [True, False, False]


def test_graph_break_inside_a_call_is_fine():
    def program(x):
        return x.sin() * 2

    D, x = derive_function(program, normal(3)), normal(3)

    def around(x):
        y = D.apply(x)
        torch._dynamo.graph_break()
        return D.apply(y)

    function = torch.compile(around, backend="aot_eager")

    assert differences(grad(function(x).sum(), x), grad(around(x).sum(), x)) == []


def test_eager_calls_are_one_node():
    out = derived("swish").apply(normal(3))

    assert type(out.grad_fn).__name__ == "SwishBackward"


def test_export_holds_the_ops():
    Swish = derived("swish")

    class Module(nn.Module):
        def forward(self, x):
            return Swish.apply(x)

    x = CASES["swish"].arguments()[0].detach()
    program = torch.export.export(Module(), (x,), strict=True)

    assert "sigmoid" in program.graph_module.code
    assert differences(program.module()(x), CASES["swish"].program(x)) == []
