"""`is_traceable` decides whether the compilers see the operations inside a Function."""

import contextlib

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd

import pullback as pb
from tests.function.everywhere.compare import assert_equal, gradients, leaves, weighed
from tests.function.everywhere.functions import is_opaque, is_traceable, wave

TRACEABLE = is_traceable(pb.Function)
OPAQUE = is_opaque(pb.Function)
FUNCTIONS = {"traceable": TRACEABLE, "opaque": OPAQUE}

# What stands in the body of the Functions, forward and backward, and nowhere around them.
INSIDE = {"erf", "exp"}
# Around them in `program`, forward and backward.
AROUND = {"sinh", "cosh"}

every_function = pytest.mark.parametrize("name", FUNCTIONS)


class Recorder:
    """A backend that keeps the names of all operations of the graphs it is given."""

    def __init__(self) -> None:
        self.by_dynamo: set[str] = set()
        self.by_aot: set[str] = set()
        compiler = aot_autograd(fw_compiler=self._keep, bw_compiler=self._keep)

        def backend(graph: fx.GraphModule, inputs: list):
            self.by_dynamo |= operations(graph)
            return compiler(graph, inputs)

        self.backend = backend

    def _keep(self, graph: fx.GraphModule, inputs: list):
        self.by_aot |= operations(graph)
        return graph


def operations(graph: fx.GraphModule) -> set[str]:
    """The bare names of all operations in a graph and in the graphs inside it."""
    modules = [module for module in graph.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    called = [node for node in nodes if node.op in ("call_function", "call_method")]
    return {str(getattr(node.target, "__name__", node.target)).split(".")[0] for node in called}


def program(f):
    return lambda x: f(x.sinh()).sinh()


def test_traceable_body_is_in_the_graph():
    recorder = Recorder()
    compiled = torch.compile(program(TRACEABLE.apply), backend=recorder.backend, fullgraph=True)
    gradients(compiled, [wave(3, 4)])

    assert recorder.by_dynamo >= {"erf", "exp", "sinh"}
    assert recorder.by_aot >= INSIDE | AROUND


def test_opaque_body_is_in_no_graph():
    recorder = Recorder()
    compiled = torch.compile(program(OPAQUE.apply), backend=recorder.backend)
    gradients(compiled, [wave(3, 4)])

    assert recorder.by_dynamo & INSIDE == set()
    assert recorder.by_aot & INSIDE == set()
    assert recorder.by_aot >= AROUND


@every_function
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_gradients_match_eager(name, dynamic):
    f = program(FUNCTIONS[name].apply)
    compiled = torch.compile(f, backend="aot_eager", dynamic=dynamic)

    for rows in (3, 5):
        assert_equal(gradients(compiled, [wave(rows, 4)]), gradients(f, [wave(rows, 4)]))
        assert_equal(gradients(f, [wave(rows, 4)]), gradients(program(torch.erf), [wave(rows, 4)]))


@pytest.mark.quick(1)
@pytest.mark.needs_compiler
@every_function
def test_inductor_gradients_match_eager(name):
    compiled = torch.compile(program(FUNCTIONS[name].apply))

    assert_equal(gradients(compiled, [wave(3, 4)]), gradients(program(torch.erf), [wave(3, 4)]))


def pull_compiled(f, x: Tensor, recorder: Recorder, fullgraph: bool) -> tuple[Tensor, ...]:
    """The gradient of `f` at `x`, the backward captured by compiled autograd."""
    xs = leaves([x])
    compiler = torch.compile(backend=recorder.backend, fullgraph=fullgraph, dynamic=True)
    with compiled_autograd._enable(compiler):
        weighed(f(*xs)).backward()
    return tuple(x.grad for x in xs)


def test_compiled_autograd_traces_traceable_backward():
    recorder = Recorder()
    actual = pull_compiled(program(TRACEABLE.apply), wave(3, 4), recorder, fullgraph=True)

    assert recorder.by_aot >= {"exp", "cosh"}
    assert_equal(actual, gradients(program(torch.erf), [wave(3, 4)]))


def test_compiled_autograd_leaves_opaque_backward():
    recorder = Recorder()
    actual = pull_compiled(program(OPAQUE.apply), wave(3, 4), recorder, fullgraph=False)

    assert recorder.by_aot & INSIDE == set()
    assert recorder.by_aot >= {"cosh"}
    assert_equal(actual, gradients(program(torch.erf), [wave(3, 4)]))


def numpy_sine(calls: list[str], traceable: bool) -> type:
    """A Function that no tracer can see through: numpy, a branch on a value, a side effect."""
    flag = traceable

    class Sine(pb.Function):
        is_traceable = flag

        @staticmethod
        def forward(ctx, x):
            calls.append("forward")
            ctx.save_for_backward(x)
            ctx.sign = 1.0 if float(x.sum()) > 0 else -1.0
            return ctx.sign * torch.from_numpy(x.detach().numpy().copy()).sin()

        @staticmethod
        def backward(ctx, grad):
            calls.append("backward")
            (x,) = ctx.saved_tensors
            return ctx.sign * grad * torch.from_numpy(x.detach().numpy().copy()).cos()

    return Sine


def signed_sine(x: Tensor) -> Tensor:
    return torch.sign(x.detach().sum()) * x.sin()


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_opaque_body_runs_at_every_call(backend):
    calls: list[str] = []
    compiled = torch.compile(program(numpy_sine(calls, False).apply), backend=backend)

    for x in (wave(3, 4), -wave(3, 4), wave(3, 4)):
        assert_equal(gradients(compiled, [x]), gradients(program(signed_sine), [x]))
    assert calls == ["forward", "backward"] * 3


def test_opaque_body_runs_under_compiled_autograd():
    calls: list[str] = []
    f = program(numpy_sine(calls, False).apply)

    for x in (wave(3, 4), -wave(3, 4), wave(5, 4)):
        actual = pull_compiled(f, x, Recorder(), fullgraph=False)
        assert_equal(actual, gradients(program(signed_sine), [x]))
    assert calls == ["forward", "backward"] * 3


@every_function
def test_class_is_traceable_by_default_only(name):
    class Plain(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

    assert Plain.is_traceable is True
    assert FUNCTIONS[name].is_traceable is (name == "traceable")


@pytest.mark.parametrize("inherited", [True, False])
def test_subclass_inherits_is_traceable(inherited):
    class Child(FUNCTIONS["traceable" if inherited else "opaque"]):
        pass

    recorder = Recorder()
    gradients(torch.compile(program(Child.apply), backend=recorder.backend), [wave(3, 4)])

    assert (recorder.by_aot & INSIDE == INSIDE) is inherited


def test_subclass_may_become_traceable_again():
    class Child(OPAQUE):
        is_traceable = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.erf()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (2 / torch.pi**0.5) * (-x * x).exp()

    recorder = Recorder()
    gradients(torch.compile(program(Child.apply), backend=recorder.backend), [wave(3, 4)])

    assert recorder.by_aot >= INSIDE


@every_function
@pytest.mark.parametrize("guard", [contextlib.nullcontext, torch.no_grad])
def test_compiled_values_match_eager(name, guard):
    compiled = torch.compile(program(FUNCTIONS[name].apply), backend="aot_eager")
    with guard():
        assert_equal(compiled(wave(3, 4)), program(torch.erf)(wave(3, 4)))
