"""Graphs to test passes on: joint graphs of small functions, and ways to run and compare them."""

import functools
import inspect
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx

from pullback.graph.parts import BACKWARD, FORWARD, JointGraph

# ---- tracing ----


@dataclass(frozen=True)
class Traced:
    """A joint graph, the user's names for its inputs and for values on the way."""

    joint: JointGraph
    input_names: list
    local_names: dict
    differentiated: list


def joint_of(fn, *inputs, symbolic=False):
    """The joint graph of `fn`: outputs, then gradients of the floating-point inputs."""
    return trace(fn, *inputs, symbolic=symbolic).joint


def trace(fn, *inputs, symbolic=False):
    """The joint graph of `fn` with the names that its source has for values."""
    with torch.no_grad():
        outputs = listed(fn(*inputs))
    needs = [i for i, x in enumerate(inputs) if x.is_floating_point() or x.is_complex()]
    differentiable = [i for i, y in enumerate(outputs) if y.is_floating_point() or y.is_complex()]
    watch = Watch(fn)

    def run(given, cotangents):
        with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            leaves = [x.detach().requires_grad_(i in needs) for i, x in enumerate(given)]
            with watch:
                results = listed(fn(*leaves))
            watch.mark()
            gradients = torch.autograd.grad(
                [results[i] for i in differentiable],
                [leaves[i] for i in needs],
                cotangents,
                allow_unused=True,
            )
        return [*results, *gradients]

    cotangents = [torch.ones_like(outputs[i]) for i in differentiable]
    mode = "symbolic" if symbolic else "fake"
    module = make_fx(run, tracing_mode=mode)(list(inputs), cotangents)
    graph = plain(module.graph)
    phase = FORWARD
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta = {key: node.meta[key] for key in ("val",) if key in node.meta}
            node.meta |= {"phase": phase, "unit": None, "place": ""}
        if node.name == watch.last:
            phase = BACKWARD
    joint = JointGraph(graph, len(inputs), len(outputs))
    return Traced(joint, list(inspect.signature(fn).parameters), watch.names, needs)


def graph_of(fn, *inputs, symbolic=False):
    """The graph of `fn` alone, without a backward."""
    module = make_fx(fn, tracing_mode="symbolic" if symbolic else "fake")(*inputs)
    return plain(module.graph)


def plain(graph):
    """`graph` with plain parameters and one flat tuple as its output."""
    graph.set_codegen(fx.graph.CodeGen())
    output = graph.output_node()
    flat = []
    fx.map_arg(output.args, flat.append)
    if not isinstance(output.args[0], list | tuple):
        output.args = ((output.args[0],),)
    elif None in leaves(output.args[0]):
        output.args = (tuple(leaves(output.args[0])),)
    else:
        output.args = (tuple(flat),)
    return graph


def leaves(value):
    """The items of nested lists, in order."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def listed(value):
    """One tensor or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


class Watch:
    """Notes the local variables of a function when it returns, and where its forward ends."""

    def __init__(self, fn):
        self.code = fn.__code__
        self.names = {}
        self.last = None

    def __enter__(self):
        sys.setprofile(self.look)

    def __exit__(self, *_):
        sys.setprofile(None)

    def look(self, frame, event, _):
        if event == "return" and frame.f_code is self.code:
            for name, value in frame.f_locals.items():
                node = node_of(value) if isinstance(value, torch.Tensor) else None
                if node is not None and node.op == "call_function":
                    self.names.setdefault(node.name, name)
                if node is not None and value.grad_fn is not None:
                    value.register_hook(lambda g, name=name: self.name_gradient(g, name))

    def name_gradient(self, gradient, name):
        node = node_of(gradient)
        if node is not None and node.op == "call_function":
            self.names.setdefault(node.name, f"grad_{name}")

    def mark(self):
        graph = get_proxy_mode().tracer.graph
        self.last = next(iter(reversed(graph.nodes))).name


def node_of(tensor):
    """The node that computes a tensor in the trace that is under way."""
    slot = get_proxy_slot(tensor, get_proxy_mode().tracer, None)
    return None if slot is None else slot.proxy.node


# ---- running and comparing ----


def run(graph, *inputs):
    """What `graph` returns for `inputs`."""
    with torch.no_grad():
        return fx.Interpreter(fx.GraphModule({}, graph)).run(*inputs)


def printed(graph):
    """A text of `graph` that changes when anything in it does."""
    return "\n".join(f"{node.format_node()} {sorted(map(str, node.meta))}" for node in graph.nodes)


def same_bits(a, b):
    """Whether two tensors hold the same bits, any NaN being as good as any other."""
    if a is None or b is None or not isinstance(a, torch.Tensor):
        return a == b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.is_complex:
        return same_bits(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    is_nan = a.isnan()
    if not torch.equal(is_nan, b.isnan()):
        return False
    a, b = a.masked_fill(is_nan, 0), b.masked_fill(is_nan, 0)
    return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())


def assert_same_bits(got, expected):
    """Require two rows of results to be the same, bit for bit."""
    assert len(got) == len(expected)
    assert [same_bits(a, b) for a, b in zip(got, expected, strict=True)] == [True] * len(got)


def assert_legal(graph):
    """Require the form of `graph/parts.py`: order, a value for every node, nothing dead."""
    graph.lint()
    for node in graph.nodes:
        assert node.op in ("placeholder", "call_function", "output")
        assert node.op == "output" or "val" in node.meta
        assert node.op != "call_function" or node.users


FINITE = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.5, 0.1]
SPECIAL = [*FINITE, float("inf"), float("-inf"), float("nan")]


def awkward(*shape, dtype=torch.float32, seed=0, values=SPECIAL):
    """Random numbers with zeros of both signs, infinities, NaN, huge and tiny ones among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    info = torch.finfo(dtype)
    extremes = torch.tensor([*values, info.max, info.tiny, -info.tiny / 4], dtype=torch.float64)
    picks = torch.randint(len(extremes), shape, generator=generator)
    is_special = torch.rand(shape, generator=generator) < 0.4
    return torch.where(is_special, extremes[picks].to(dtype), x)


def randn(*shape, dtype=torch.float32, seed=0):
    """Random numbers that depend on the shape and the seed only."""
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


# ---- functions ----


def my_activation(x):
    s = x.sigmoid()
    return s * (x.exp() + 1).rsqrt()


def sine_square(x):
    s = x.sin()
    return s * s


def decay(x, y):
    return x * (-y).exp()


def swish(x):
    return x * x.sigmoid()


def silu(x):
    return F.silu(x)


def gelu(x):
    return F.gelu(x)


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def softplus(x):
    return F.softplus(x)


def elu(x):
    return F.elu(x)


def leaky_relu(x):
    return F.leaky_relu(x, 0.1)


def linear_relu(x, w, b):
    h = F.linear(x, w, b)
    return h.relu()


def mlp(x, w1, b1, w2, b2):
    h = (x @ w1 + b1).tanh()
    return h @ w2 + b2


def sequence_linear(x, w, b):
    return F.linear(x, w, b)


def layer_norm(x, w, b):
    mu = x.mean(-1, keepdim=True)
    xc = x - mu
    var = (xc * xc).mean(-1, keepdim=True)
    rstd = (var + 1e-5).rsqrt()
    return xc * rstd * w + b


def fused_layer_norm(x, w, b):
    return F.layer_norm(x, (8,), w, b)


def rms_norm(x, w):
    r = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return x * r * w


def group_norm(x, w, b):
    return F.group_norm(x, 2, w, b)


def softmax(x):
    return x.softmax(-1)


def softmax_by_hand(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def logsumexp(x):
    return x.logsumexp(-1)


def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


def mse(x, y):
    return F.mse_loss(x, y)


def attention(q, k, v):
    p = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
    return p @ v


def heads(q, k, v):
    p = torch.softmax(q @ k.mT * 0.5, -1)
    return p @ v


def conv(x, w, b):
    return F.conv2d(x, w, b, stride=2, padding=1).relu()


def scan(x):
    return x.cumsum(0)


def running_product(x, y):
    return (x * y).cumsum(-1).tanh()


def rope(x, cos, sin):
    a, b = x[..., :4], x[..., 4:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def complex_multiply(x, y):
    return x * y


def complex_by_parts(x, y):
    xr, xi, yr, yi = x[..., 0], x[..., 1], y[..., 0], y[..., 1]
    return torch.stack([xr * yr - xi * yi, xr * yi + xi * yr], -1)


def embedding(index, table):
    return F.embedding(index, table) * 2


def segment_sum(x, index):
    return torch.zeros(4, 3, dtype=x.dtype).index_add(0, index, x)


def leapfrog(q, p):
    for _ in range(3):
        p = p - 0.05 * q.sin()
        q = q + 0.1 * p
        p = p - 0.05 * q.sin()
    return q, p


def distance(x, y):
    return (x - y).square().sum(-1).sqrt()


def huber(x, y):
    d = x - y
    return torch.where(d.abs() < 1, 0.5 * d * d, d.abs() - 0.5).sum()


def polynomial(x):
    return x**3 - 2 * x**2 + x


def outer(x, y):
    return x[:, None] * y[None, :]


INPUTS = {
    my_activation: [(3, 5)],
    sine_square: [(3, 5)],
    decay: [(3, 5), (3, 5)],
    swish: [(3, 5)],
    silu: [(3, 5)],
    gelu: [(3, 5)],
    gelu_tanh: [(3, 5)],
    softplus: [(3, 5)],
    elu: [(3, 5)],
    leaky_relu: [(3, 5)],
    linear_relu: [(3, 5), (4, 5), (4,)],
    mlp: [(3, 5), (5, 7), (7,), (7, 2), (2,)],
    sequence_linear: [(2, 3, 5), (4, 5), (4,)],
    layer_norm: [(3, 8), (8,), (8,)],
    fused_layer_norm: [(3, 8), (8,), (8,)],
    rms_norm: [(3, 8), (8,)],
    group_norm: [(2, 6, 5), (6,), (6,)],
    softmax: [(3, 5)],
    softmax_by_hand: [(3, 5)],
    logsumexp: [(3, 5)],
    cross_entropy: [(6, 5), "classes"],
    mse: [(3, 5), (3, 5)],
    attention: [(3, 5, 4), (3, 6, 4), (3, 6, 7)],
    heads: [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)],
    conv: [(2, 3, 8, 8), (4, 3, 3, 3), (4,)],
    scan: [(7, 3)],
    running_product: [(3, 5), (3, 5)],
    rope: [(3, 8), (3, 4), (3, 4)],
    complex_multiply: ["complex", "complex"],
    complex_by_parts: [(3, 2), (3, 2)],
    embedding: ["rows", (4, 3)],
    segment_sum: [(6, 3), "rows"],
    leapfrog: [(5,), (5,)],
    distance: [(3, 5), (3, 5)],
    huber: [(3, 5), (3, 5)],
    polynomial: [(3, 5)],
    outer: [(3,), (5,)],
}
FUNCTIONS = {fn.__name__: fn for fn in INPUTS}


def inputs_of(fn, dtype=torch.float32):
    """Inputs for one of the functions above."""
    return [make(kind, dtype, seed) for seed, kind in enumerate(INPUTS[fn])]


def make(kind, dtype, seed):
    """An input: random numbers of a shape, or integers."""
    if kind == "classes":
        return torch.tensor([0, 3, 4, -100, 2, 2])
    if kind == "rows":
        return torch.tensor([0, 2, 2, 1, 3, 2])
    if kind == "complex":
        return torch.complex(randn(3, 5, dtype=dtype, seed=seed), randn(3, 5, seed=9).to(dtype))
    return randn(*kind, dtype=dtype, seed=seed)


def cotangents_of(outputs):
    """Cotangents for the outputs that have one."""
    floating = [y for y in outputs if y.is_floating_point() or y.is_complex()]
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in floating]


# ---- what a graph computes, as one formula per output ----


def formulas(graph, fn=None):
    """Each returned value as nested calls, `neg(mul.Tensor(x, 2))`, with `fn`'s parameters."""
    names = list(inspect.signature(fn).parameters) if fn else []
    texts = {}
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        texts[node] = names[position] if position < len(names) else node.name
    for node in graph.nodes:
        if node.op == "call_function":
            args = [spelled(arg, texts) for arg in node.args]
            args += [f"{key}={spelled(arg, texts)}" for key, arg in node.kwargs.items()]
            texts[node] = f"{short(node.target)}({', '.join(args)})"
    return [spelled(value, texts) for value in graph.output_node().args[0]]


def spelled(arg, texts):
    """An argument of a node, with the text of each node in it."""
    if isinstance(arg, fx.Node):
        return texts[arg]
    if isinstance(arg, list | tuple):
        return f"[{', '.join(spelled(item, texts) for item in arg)}]"
    return repr(arg)


def short(target):
    """`mul.Tensor` for `aten.mul.Tensor`, `neg` for `aten.neg.default`."""
    name = target.__name__ if hasattr(target, "__name__") else str(target)
    return name.removesuffix(".default")


@functools.cache
def traced(name, dtype=torch.float32, symbolic=False):
    """The trace of one of the functions above, made once: nobody may change it."""
    fn = FUNCTIONS[name]
    return trace(fn, *inputs_of(fn, dtype), symbolic=symbolic)


def row_of(name, dtype=torch.float32):
    """Inputs and cotangents to run the joint graph of a function on."""
    fn = FUNCTIONS[name]
    inputs = inputs_of(fn, dtype)
    return [*inputs, *cotangents_of(listed(fn(*inputs)))]
