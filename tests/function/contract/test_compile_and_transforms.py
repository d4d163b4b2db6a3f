"""Section J: compiled autograd and torch.compile, and the three transforms of torch.func."""

import contextlib

import pytest
import torch
from torch.autograd import grad
from torch.func import jvp, vmap

import pullback as pb

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def make_scale(Function):
    """`sin(x) * factor`, its input saved and its number kept on ctx."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x.sin() * factor

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * ctx.factor, None

    return Scale


class ScaleByName(pb.Function):
    """The same in the C++ spelling, and it asks which gradients are needed."""

    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.save_for_backward(x, y)
        ctx.saved_data["factor"] = factor
        return x.sin() * factor * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.get_saved_variables()
        factor = ctx.saved_data["factor"]
        gx = g * x.cos() * factor * y if ctx.needs_input_grad(0) else None
        gy = g * x.sin() * factor if ctx.needs_input_grad(1) else None
        return gx, None, gy


# ---- compiled autograd ----


@contextlib.contextmanager
def compiled_autograd(*, fullgraph=False):
    """Backwards run inside are captured, and compiled: in one piece if asked."""
    compiler = torch.compile(backend="eager", fullgraph=fullgraph)
    with torch._dynamo.compiled_autograd._enable(compiler):
        yield


def captures():
    """How many backward graphs compiled autograd has captured in this test."""
    return torch._dynamo.utils.counters["compiled_autograd"]["captures"]


def test_repeated_use_is_captured_once(Function):
    """J01, L64: gives the eager gradients, captured one time."""
    Scale = make_scale(Function)
    x = torch.randn(3, requires_grad=True)

    def pull():
        return grad(Scale.apply(Scale.apply(Scale.apply(x, 2.0), 2.0), 2.0).sum(), x)[0]

    expected = pull()
    with compiled_autograd(fullgraph=True):
        got = [pull() for _ in range(3)]

    assert [torch.equal(g, expected) for g in got] == [True] * 3
    assert captures() == 1


def test_equal_classes_are_captured_apart(Function):
    """J02, L65: same name, same code, two classes; going back captures nothing anew."""

    def make(factor):
        class Twin(Function):
            @staticmethod
            def forward(ctx, x):
                return x * factor

            @staticmethod
            def backward(ctx, g):
                return g * factor

        return Twin

    first, second = make(2.0), make(3.0)
    x = torch.ones(3, requires_grad=True)
    got = []
    with compiled_autograd(fullgraph=True):
        for Twin in (first, second, first, second):
            got.append(grad(Twin.apply(x).sum(), x)[0][0].item())

    assert got == [2.0, 3.0, 2.0, 3.0]
    assert captures() == 2


def test_changing_shapes_and_numbers_are_right(Function):
    """J03, L65: under compiled autograd as in eager."""
    Scale = make_scale(Function)
    got, expected = [], []
    with compiled_autograd(fullgraph=True):
        for size, factor in [(3, 2.0), (5, 2.0), (7, 4.0), (7, 0.5), (2, 3.0)]:
            x = torch.randn(size, requires_grad=True)
            got += grad(Scale.apply(x, factor).sum(), x)
            expected.append((x.cos() * factor).detach())

    assert [torch.allclose(a, b) for a, b in zip(got, expected, strict=True)] == [True] * 5


class Fold(pb.Function):
    """`x` times everything found in saved_data, whatever it is."""

    @staticmethod
    def forward(ctx, x, data):
        ctx.saved_data.update(data)
        return x * Fold.weight(data)

    @staticmethod
    def backward(ctx, g):
        return g * Fold.weight(ctx.saved_data), None

    @staticmethod
    def weight(data):
        """One number, or tensor, out of all the values."""
        total = 1.0
        if "number" in data:
            total = total * data["number"]
        if data.get("flag", False):
            total = total * 3.0
        if data.get("text", "") == "double":
            total = total * 2.0
        if "list" in data:
            total = total * (data["list"][0] + data["list"][1])
        if "dict" in data:
            total = total * data["dict"]["inner"]
        if "tensor" in data:
            total = total * data["tensor"]
        return total


DATA = {
    "int": [{"number": 2}, {"number": 3}, {"number": 2}],
    "float": [{"number": 2.5}, {"number": 0.5}, {"number": 2.5}],
    "bool": [{"flag": True}, {"flag": False}, {"flag": True}],
    "str": [{"text": "double"}, {"text": "single"}, {"text": "double"}],
    "list": [{"list": [1.0, 2.0]}, {"list": [3.0, 2.0]}],
    "dict": [{"dict": {"inner": 2.0}}, {"dict": {"inner": 7.0}}],
    "tensor": [{"tensor": torch.arange(3.0)}, {"tensor": torch.ones(3)}],
    "key in some calls": [{"number": 2.0}, {"number": 2.0, "flag": True}, {}],
}


@pytest.mark.parametrize("kind", DATA)
def test_saved_data_under_compiled_autograd(kind):
    """J04: whatever saved_data holds gives the eager gradients."""
    x = torch.randn(3, requires_grad=True)
    expected = [grad(Fold.apply(x, data).sum(), x)[0] for data in DATA[kind]]
    with compiled_autograd():
        got = [grad(Fold.apply(x, data).sum(), x)[0] for data in DATA[kind]]

    assert [g.tolist() for g in got] == [g.tolist() for g in expected]
    assert captures() >= 1


class Telltale(pb.Function):
    """`x * y`, whose gradients are a thousand off while the other one is not needed."""

    @staticmethod
    def forward(ctx, x, number, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.get_saved_variables()
        gx = g * y + (0 if ctx.needs_input_grad(1) else 1000)
        gy = g * x + (0 if ctx.needs_input_grad(0) else 1000)
        return gx, None, gy


@pytest.mark.parametrize(
    ("asked", "expected"), [([0], [1003.0]), ([1], [1002.0]), ([0, 1], [3.0, 2.0])]
)
def test_needed_inputs_under_compiled_autograd(asked, expected):
    """J05: needs_input_grad(i) answers for the backward under way, as in eager."""
    inputs = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)

    def pull():
        gradients = grad(Telltale.apply(inputs[0], 7, inputs[1]), [inputs[i] for i in asked])
        return [g.item() for g in gradients]

    assert pull() == expected
    with compiled_autograd():
        assert pull() == expected
    assert captures() == 1


def test_each_compiled_backward_is_judged_alone():
    """J05: one class, one capture after another, each with its own answer."""
    x, y = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    got = []
    with compiled_autograd():
        for asked in ([x], [y], [x, y], [x]):
            got.append([g.item() for g in grad(Telltale.apply(x, 7, y), asked)])

    assert got == [[1003.0], [1002.0], [3.0, 2.0], [1003.0]]


def test_hooks_are_captured_after_graph_breaks(Function):
    """L64: hooks and custom backward are one capture, though forward was compiled in pieces."""
    Scale = make_scale(Function)

    @torch.compile(backend="aot_eager")
    def program(x):
        y = Scale.apply(x, 2.0)
        torch._dynamo.graph_break()
        return Scale.apply(y, 3.0)

    def pull():
        x = torch.tensor([0.5, 1.0], requires_grad=True)
        x.register_hook(lambda g: g * 10)
        program(x).sum().backward()
        return x.grad

    x = torch.tensor([0.5, 1.0])
    expected = 10 * (2 * x.sin()).cos() * 3 * 2 * x.cos()
    with compiled_autograd(fullgraph=True):
        got = pull()

    assert torch.allclose(got, expected)
    assert captures() == 1


# ---- torch.compile ----


def compare(program, *inputs, **options):
    """Require the compiled program to give the eager result and gradients."""
    eager = program(*inputs)
    compiled = torch.compile(program, backend="aot_eager", **options)(*inputs)
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    weights = torch.randn_like(eager)

    assert torch.allclose(compiled, eager)
    for got, expected in zip(
        grad(compiled, leaves, weights), grad(eager, leaves, weights), strict=True
    ):
        assert torch.allclose(got, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@pytest.mark.parametrize("fullgraph", [False, True])
def test_context_names_of_cpp_compile(fullgraph):
    """J06: saved_data, get_saved_variables and needs_input_grad(i), in one graph."""
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    compare(lambda x, y: ScaleByName.apply(x, 2.0, y).exp(), x, y, fullgraph=fullgraph)


@pytest.mark.parametrize("which", [0, 1])
def test_context_names_compile_with_one_gradient(which):
    """J06: also when only one of the inputs requires grad."""
    inputs = [torch.randn(3, requires_grad=i == which) for i in range(2)]

    compare(lambda x, y: ScaleByName.apply(x, 2.0, y), *inputs, fullgraph=True)


def test_ranges_and_marks_of_cpp_compile():
    """J06: ranges of needs_input_grad, and what else saved_data holds, in one graph."""

    class Several(pb.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.saved_data["scales"] = [2.0, 3.0]
            ctx.saved_data["by_name"] = {"y": 5.0}
            ctx.saved_data["shape"] = x.shape
            ctx.save_for_backward(x, y)
            return x * y * 30.0

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.get_saved_variables()
            first, second = ctx.saved_data["scales"]
            scale = first * second * ctx.saved_data["by_name"]["y"]
            if not ctx.needs_input_grad([(0, 2)]) or ctx.needs_input_grad([]):
                scale = 0.0
            if "absent" in ctx.saved_data or ctx.saved_data.get("absent") is not None:
                scale = 0.0
            return (g * y * scale).reshape(ctx.saved_data["shape"]), g * x * scale

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    compare(Several.apply, x, y, fullgraph=True)


def test_context_names_compile_with_setup_context():
    """J06: the C++ names in setup_context, in one graph."""

    class Split(pb.Function):
        @staticmethod
        def forward(x, factor):
            return x.sin() * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.saved_data["factor"] = inputs[1]
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.get_saved_variables()
            return g * x.cos() * ctx.saved_data["factor"], None

    compare(lambda x: Split.apply(x, 3.0), torch.randn(3, requires_grad=True), fullgraph=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_python_names_compile_in_one_graph(Function, dynamic):
    """J07: with the Python context names alone, fullgraph=True."""
    Scale = make_scale(Function)
    x = torch.randn(3, requires_grad=True)

    compare(lambda x: Scale.apply(x, 2.0) + x, x, fullgraph=True, dynamic=dynamic)


def test_setup_context_compiles_in_one_graph(Function):
    """J07: setup_context too, fullgraph=True."""

    class Scale(Function):
        @staticmethod
        def forward(x, factor):
            return x.sin() * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * ctx.factor, None

    x = torch.randn(3, requires_grad=True)

    compare(lambda x: Scale.apply(x, 3.0) + Scale.apply(x, 2.0), x, fullgraph=True)


@pytest.mark.usefixtures("takes_keywords")
def test_defaults_and_keywords_compile(Function):
    """J07: a default and a keyword argument of a combined forward, fullgraph=True."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, factor=3.0):
            ctx.factor = factor
            ctx.save_for_backward(x)
            return x.sin() * factor

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * ctx.factor, None

    x = torch.randn(3, requires_grad=True)

    compare(lambda x: Scale.apply(x) + Scale.apply(x, factor=2.0), x, fullgraph=True)


def test_needed_tuple_and_marks_compile(Function):
    """J07: the needs_input_grad tuple, marks and unmaterialised cotangents, in one graph."""

    class Several(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x, y)
            index = x.argsort()
            ctx.mark_non_differentiable(index)
            return x * y, index

        @staticmethod
        def backward(ctx, g, _):
            x, y = ctx.saved_tensors
            return g * y, g * x if ctx.needs_input_grad[1] else None

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)

    compare(lambda x, y: Several.apply(x, y)[0] * 2, x, y, fullgraph=True)


def test_graph_break_in_forward_compiles(Function):
    """J07: a Function that breaks the graph still gives the eager gradients."""

    class Breaks(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            torch._dynamo.graph_break()
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    compare(lambda x: Breaks.apply(x * 2) + 1, torch.randn(3, requires_grad=True))


def test_compiled_backward_is_the_users(Function):
    """J07: the gradient is what backward says, not the derivative of forward."""

    class Straight(Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return 5 * g

    x = torch.randn(3, requires_grad=True)
    out = torch.compile(Straight.apply, backend="aot_eager", fullgraph=True)(x)

    assert grad(out.sum(), x)[0].tolist() == [5.0] * 3


def make_traceable(value):
    """`2 * x` that tells whether Dynamo was tracing its forward."""

    class Watch(pb.Function):
        is_traceable = value

        @staticmethod
        def forward(ctx, x):
            traced = torch.compiler.is_dynamo_compiling()
            return x * (20.0 if traced else 2.0)

        @staticmethod
        def backward(ctx, g):
            traced = torch.compiler.is_dynamo_compiling()
            return g * (20.0 if traced else 2.0)

    return Watch


@pytest.mark.parametrize("traceable", [False, True])
def test_traceable_says_who_looks_inside(traceable):
    """L56: True, and torch.compile traces through it; False, and it is one opaque node."""
    Watch = make_traceable(traceable)
    x = torch.ones(3, requires_grad=True)
    out = torch.compile(lambda x: Watch.apply(x + 0) + 0, backend="aot_eager")(x)
    inside = 20.0 if traceable else 2.0

    assert out.tolist() == [inside] * 3
    assert grad(out.sum(), x)[0].tolist() == [inside] * 3


@pytest.mark.parametrize("traceable", [False, True])
def test_traceable_says_so_to_compiled_autograd(traceable):
    """L56: the same for the backward under compiled autograd."""
    Watch = make_traceable(traceable)
    x = torch.ones(3, requires_grad=True)
    out = Watch.apply(x)
    with compiled_autograd():
        (gx,) = grad(out.sum(), x)

    assert gx.tolist() == [20.0 if traceable else 2.0] * 3
    assert captures() == 1


def test_traceable_is_the_default():
    """L56: as for PyTorch's Functions in Python."""
    assert pb.Function.is_traceable is True


@pytest.mark.parametrize("traceable", [False, True])
def test_traceable_or_not_gradients_agree(traceable):
    """L56: both ways give the eager result and gradients."""

    class Traced(ScaleByName):
        is_traceable = traceable

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    compare(lambda x, y: Traced.apply(x + 1, 2.0, y).exp(), x, y)


# ---- torch.func ----


def make_split(Function):
    """`x ** 3 * factor` with everything a transform may ask for."""

    class Cube(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, factor=1.0):
            return x**3 * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * ctx.factor * g, None

        @staticmethod
        def jvp(ctx, x_t, _):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * ctx.factor * x_t

    return Cube


def test_grad_vmap_and_jvp_work(Function):
    """J08, L05: with setup_context, generate_vmap_rule and jvp."""
    cube = make_split(Function).apply
    x = torch.randn(4)
    primal, tangent = jvp(cube, (x,), (torch.ones(4),))

    assert torch.allclose(torch.func.grad(lambda x: cube(x, 2.0).sum())(x), 6 * x**2)
    assert torch.allclose(vmap(cube)(x), x**3)
    assert torch.allclose(primal, x**3)
    assert torch.allclose(tangent, 3 * x**2)


def test_context_names_of_cpp_work_transformed():
    """J08: saved_data and get_saved_variables under grad and vmap."""

    class Cube(pb.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, factor):
            return x**3 * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.saved_data["factor"] = inputs[1]
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.get_saved_variables()
            return 3 * x**2 * ctx.saved_data["factor"] * g, None

    x = torch.randn(4)

    assert torch.allclose(torch.func.grad(lambda x: Cube.apply(x, 2.0).sum())(x), 6 * x**2)
    assert torch.allclose(vmap(torch.func.grad(lambda x: Cube.apply(x, 2.0)))(x), 6 * x**2)
