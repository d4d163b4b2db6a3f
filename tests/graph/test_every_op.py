"""Every op that PyTorch has samples for: exact passes keep the bits, texts run and give them."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db

from pullback.graph.cost import is_mutating, op_name
from pullback.graph.cse import UNDEFINED
from pullback.graph.simplify import EXACT, READABLE, simplify
from pullback.graph.text import function_text
from tests.graph.graphs import assert_same_bits, leaves, listed, plain, run

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64)
SAMPLES = 1


def samples_of(op, dtype):
    """Some samples of an op, spread over those that PyTorch has."""
    found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    return found[:: max(1, len(found) // SAMPLES)][:SAMPLES]


def graphs_of(op, dtype):
    """Graphs of an op and of its gradients, and the tensors to run them on."""
    for sample in samples_of(op, dtype):
        given = [sample.input, *sample.args, *sample.kwargs.values()]
        flat = leaves([list(x) if isinstance(x, tuple) else x for x in given])
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        for fn in (forward, joint):
            graph = traced(lambda *xs, fn=fn, s=sample: fn(op, s, xs), tensors)
            if graph is not None:
                yield graph, tensors


def call(op, sample, tensors):
    """The tensors that an op gives, with `tensors` for those of the sample."""
    rest = iter(tensors)

    def swap(value):
        if isinstance(value, list | tuple):
            return type(value)(map(swap, value))
        return next(rest) if isinstance(value, torch.Tensor) else value

    first = swap(sample.input)
    args = [swap(arg) for arg in sample.args]
    kwargs = {key: swap(arg) for key, arg in sample.kwargs.items()}
    return [x for x in leaves(listed(op(first, *args, **kwargs))) if isinstance(x, torch.Tensor)]


def forward(op, sample, tensors):
    return tuple(call(op, sample, tensors))


def joint(op, sample, tensors):
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_(is_floating(x)) for x in tensors]
        outputs = call(op, sample, inputs)
        starts = [y for y in outputs if y.requires_grad]
        ends = [x for x in inputs if x.requires_grad]
        ones = [torch.ones_like(y) for y in starts]
        gradients = torch.autograd.grad(starts, ends, ones, allow_unused=True)
    return (*outputs, *gradients)


def is_floating(x):
    return x.is_floating_point() or x.is_complex()


def traced(fn, tensors):
    """The graph of `fn`, or None: not all ops can be traced, run twice, or are of the form."""
    try:
        graph = plain(make_fx(fn, tracing_mode="fake")(*tensors).graph)
    except Exception:  # whatever the op raises while it is traced
        return None
    calls = [node for node in graph.nodes if node.op == "call_function"]
    undefined = [node for node in calls if op_name(node) in UNDEFINED]
    if undefined or any(map(is_mutating, calls)) or graph.find_nodes(op="get_attr"):
        return None
    return graph if repeats(graph, tensors) else None


def repeats(graph, tensors):
    """Whether a graph gives the same numbers twice."""
    try:
        assert_same_bits(seeded(graph, tensors), seeded(graph, tensors))
    except (AssertionError, RuntimeError, NotImplementedError):
        return False
    return True


def seeded(graph, tensors):
    torch.manual_seed(0)
    return run(graph, *tensors)


def printed(graph, tensors):
    """What the text of `graph` gives."""
    namespace = {"torch": torch}
    exec(function_text(graph, "f"), namespace)
    torch.manual_seed(0)
    with torch.no_grad():
        return listed(namespace["f"](*tensors))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", op_db, ids=lambda op: op.formatted_name)
def test_op_survives_passes_and_printing(op, dtype):
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip(f"{op.name} has no kernel for {dtype}")
    for graph, tensors in graphs_of(op, dtype):
        expected = seeded(graph, tensors)
        exact, readable = simplify(graph, EXACT), simplify(graph, READABLE)

        assert_same_bits(seeded(exact, tensors), expected)
        assert_same_bits(printed(graph, tensors), expected)
        assert_same_bits(printed(exact, tensors), expected)
        assert_same_bits(printed(readable, tensors), seeded(readable, tensors))
