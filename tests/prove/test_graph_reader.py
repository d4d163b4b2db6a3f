"""Graphs read as expressions: every op gives what PyTorch gives, and the rest is refused."""

import operator
from fractions import Fraction

import pytest
import torch
from torch import fx

from pullback.capture.joint import capture
from pullback.graph.parts import JointGraph
from pullback.prove import graph_reader
from pullback.prove.graph_reader import COPIES, FILLS, MADE, MOVES, GraphReader
from pullback.prove.numerics import Undefined, Values
from pullback.prove.pointwise_ops import POINTWISE
from pullback.prove.reduction_ops import GRIDWISE
from pullback.prove.scalars import Outside, variable, variables_of

aten = torch.ops.aten

# The tensors that ops are tried on, by the names in the calls below.
TENSORS = {
    "x": torch.tensor([[-1.75, 0.25, 1.25], [2.5, -0.5, 0.75]], dtype=torch.float64),
    "y": torch.tensor([[0.5, -2.25, 1.75], [-0.75, 3.5, 1.5]], dtype=torch.float64),
    "p": torch.tensor([[0.25, 1.75, 3.5], [2.25, 0.5, 4.5]], dtype=torch.float64),
    "u": torch.tensor([[0.25, 0.75, 0.5], [0.125, 0.875, 0.625]], dtype=torch.float64),
    "far": torch.tensor([[-30.0, -3.0, 0.0], [3.0, 2.0, 30.0]], dtype=torch.float64),
    "row": torch.tensor([1.5, -0.25, 2.5], dtype=torch.float64),
    "column": torch.tensor([[0.75], [-1.25]], dtype=torch.float64),
    "one": torch.tensor(1.5, dtype=torch.float64),
    "mask": torch.tensor([[True, False, True], [False, False, True]]),
    "other": torch.tensor([[True, True, False], [False, True, False]]),
}


def names_in(tree):
    if isinstance(tree, (list, tuple)):
        return [name for each in tree for name in names_in(each)]
    return [tree] if isinstance(tree, str) and tree in TENSORS else []


def filled(tree, values):
    if isinstance(tree, (list, tuple)):
        return type(tree)(filled(each, values) for each in tree)
    return values[tree] if isinstance(tree, str) and tree in TENSORS else tree


def graph_of(target, *args, **kwargs):
    """A joint graph with one call, whose results are its gradients; and these, from PyTorch."""
    graph, nodes = fx.Graph(), {}
    for name in dict.fromkeys(names_in(args)):
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = TENSORS[name]
    call = graph.call_function(target, filled(args, nodes), kwargs)
    result = call.meta["val"] = target(*filled(args, TENSORS), **kwargs)
    is_one = isinstance(result, torch.Tensor)
    results = [result] if is_one else list(result)
    returned = [call]
    if not is_one:
        returned = [graph.call_function(operator.getitem, (call, n)) for n in range(len(results))]
    for node, value in zip(returned, results, strict=True):
        node.meta["val"] = value
    graph.output(tuple(returned))
    return JointGraph(graph, len(nodes), 0), results


def reading_of(joint):
    """The graph, read for variables; and a point at which they have the values of `TENSORS`."""
    given, point = [], {}
    for node in joint.placeholders:
        tensor = TENSORS[node.name]
        values = tensor.to(torch.float64).flatten().tolist()
        scalars = [variable(f"{node.name}[{n}]") for n in range(len(values))]
        point |= dict(zip(scalars, map(Fraction, values), strict=True))
        given.append((scalars, tensor.shape))
    return GraphReader(joint, given), point


def assert_read(target, *args, **kwargs):
    """Require the expressions of a call to have the values that PyTorch gives."""
    joint, results = graph_of(target, *args, **kwargs)
    reading, point = reading_of(joint)
    values = Values(point, 40)
    for place, expected in enumerate(results):
        got = [float(values(scalar)) for scalar in reading.gradient(place)]

        rough = 1e-7 if target in ROUGH else 1e-9
        assert got == pytest.approx(expected.double().flatten().tolist(), rel=rough, abs=1e-12)


# PyTorch has 1/6 in single precision here.
ROUGH = [aten.hardsigmoid_backward.default]

CALLS = [
    (aten.add.Tensor, ["x", "row"], {"alpha": 2}),
    (aten.sub.Tensor, ["x", "column"], {"alpha": 3}),
    (aten.rsub.Scalar, ["x", 2, 3], {}),
    (aten.mul.Tensor, ["x", "one"], {}),
    (aten.mul.Tensor, ["mask", "other"], {}),
    (aten.div.Tensor, ["x", "p"], {}),
    (aten.div.Scalar, ["x", 4], {}),
    (aten.neg.default, ["x"], {}),
    (aten.reciprocal.default, ["x"], {}),
    (aten.square.default, ["x"], {}),
    (aten.sqrt.default, ["p"], {}),
    (aten.rsqrt.default, ["p"], {}),
    (aten.pow.Tensor_Scalar, ["x", 3], {}),
    (aten.pow.Tensor_Scalar, ["p", -0.75], {}),
    (aten.pow.Scalar, [2, "x"], {}),
    (aten.pow.Tensor_Tensor, ["p", "x"], {}),
    (aten.addcmul.default, ["x", "y", "p"], {"value": 2}),
    (aten.addcdiv.default, ["x", "y", "p"], {"value": 2}),
    (aten.lerp.Tensor, ["x", "y", "p"], {}),
    (aten.lerp.Scalar, ["x", "y", 0.25], {}),
    (aten.hypot.default, ["x", "y"], {}),
    (aten.exp.default, ["x"], {}),
    (aten.exp2.default, ["x"], {}),
    (aten.expm1.default, ["x"], {}),
    (aten.log.default, ["p"], {}),
    (aten.log2.default, ["p"], {}),
    (aten.log10.default, ["p"], {}),
    (aten.log1p.default, ["p"], {}),
    (aten.logaddexp.default, ["x", "y"], {}),
    (aten.xlogy.Tensor, ["x", "p"], {}),
    (aten.sin.default, ["x"], {}),
    (aten.cos.default, ["x"], {}),
    (aten.tan.default, ["x"], {}),
    (aten.asin.default, ["u"], {}),
    (aten.acos.default, ["u"], {}),
    (aten.atan.default, ["x"], {}),
    (aten.sinh.default, ["x"], {}),
    (aten.cosh.default, ["x"], {}),
    (aten.tanh.default, ["x"], {}),
    (aten.asinh.default, ["x"], {}),
    (aten.atanh.default, ["u"], {}),
    (aten.tanh_backward.default, ["x", "u"], {}),
    (aten.erf.default, ["x"], {}),
    (aten.erfc.default, ["x"], {}),
    (aten.lgamma.default, ["p"], {}),
    (aten.digamma.default, ["p"], {}),
    (aten.abs.default, ["x"], {}),
    (aten.sign.default, ["far"], {}),
    (aten.sgn.default, ["far"], {}),
    (aten.maximum.default, ["x", "y"], {}),
    (aten.minimum.default, ["x", "y"], {}),
    (aten.clamp.default, ["x", -0.5, 1], {}),
    (aten.clamp.default, ["x", None, 1], {}),
    (aten.clamp.default, ["x"], {"max": 1}),
    (aten.clamp_min.default, ["x", 1], {}),
    (aten.clamp_max.default, ["x", 1], {}),
    (aten.floor.default, ["x"], {}),
    (aten.ceil.default, ["x"], {}),
    (aten.where.self, ["mask", "x", "y"], {}),
    (aten.masked_fill.Scalar, ["x", "mask", 7], {}),
    (aten.fill.Scalar, ["x", 7], {}),
    (aten.gt.Tensor, ["x", "y"], {}),
    (aten.lt.Scalar, ["far", 3], {}),
    (aten.ge.Scalar, ["far", 3], {}),
    (aten.le.Scalar, ["far", 3], {}),
    (aten.eq.Scalar, ["far", 3], {}),
    (aten.ne.Scalar, ["far", 3], {}),
    (aten.logical_and.default, ["far", "mask"], {}),
    (aten.logical_or.default, ["far", "mask"], {}),
    (aten.logical_not.default, ["far"], {}),
    (aten.bitwise_and.Tensor, ["mask", "other"], {}),
    (aten.bitwise_or.Tensor, ["mask", "other"], {}),
    (aten.bitwise_not.default, ["mask"], {}),
    (aten.sigmoid.default, ["x"], {}),
    (aten.sigmoid_backward.default, ["x", "u"], {}),
    (aten.silu.default, ["x"], {}),
    (aten.silu_backward.default, ["y", "x"], {}),
    (aten.gelu.default, ["x"], {}),
    (aten.gelu.default, ["x"], {"approximate": "tanh"}),
    (aten.gelu_backward.default, ["y", "x"], {}),
    (aten.gelu_backward.default, ["y", "x"], {"approximate": "tanh"}),
    (aten.softplus.default, ["x"], {}),
    (aten.softplus.default, ["x", 2, 1.5], {}),
    (aten.softplus_backward.default, ["y", "x", 1, 20], {}),
    (aten.softplus_backward.default, ["y", "x", 2, 1.5], {}),
    (aten.log_sigmoid_forward.default, ["x"], {}),
    (aten.glu.default, ["p", 0], {}),
    (aten.huber_loss.default, ["x", "y", 1, 0.75], {}),
    (aten.std.dim, ["x", [1], True], {}),
    (aten.mish.default, ["x"], {}),
    (aten.mish_backward.default, ["y", "x"], {}),
    (aten.relu.default, ["far"], {}),
    (aten.threshold.default, ["far", 2, 9], {}),
    (aten.threshold_backward.default, ["y", "far", 2], {}),
    (aten.leaky_relu.default, ["x"], {}),
    (aten.leaky_relu.default, ["x", 0.3], {}),
    (aten.leaky_relu_backward.default, ["y", "far", 0.3, False], {}),
    (aten.elu.default, ["far", 1.5, 2, 0.5], {}),
    (aten.elu_backward.default, ["y", 1.5, 2, 0.5, False, "far"], {}),
    (aten.elu_backward.default, ["y", 1.5, 2, 0.5, True, "x"], {}),
    (aten.hardtanh.default, ["x"], {}),
    (aten.hardtanh.default, ["x", -0.5, 2], {}),
    (aten.hardtanh_backward.default, ["y", "far", -3, 2], {}),
    (aten.hardsigmoid.default, ["far"], {}),
    (aten.hardsigmoid_backward.default, ["y", "far"], {}),
    (aten.hardswish.default, ["far"], {}),
    (aten.hardswish_backward.default, ["y", "far"], {}),
    (aten.logit.default, ["u"], {}),
    (aten.logit.default, ["u", 0.2], {}),
    (aten.logit_backward.default, ["y", "u"], {}),
    (aten.logit_backward.default, ["y", "u", 0.2], {}),
    (aten.sum.default, ["x"], {}),
    (aten.sum.dim_IntList, ["x", [0]], {}),
    (aten.sum.dim_IntList, ["x", [-1, 0], True], {}),
    (aten.sum.dim_IntList, ["mask", [1]], {}),
    (aten.sum.default, ["one"], {}),
    (aten.mean.default, ["x"], {}),
    (aten.mean.dim, ["x", [1], True], {}),
    (aten.amax.default, ["x", [1]], {}),
    (aten.amin.default, ["x", [0], True], {}),
    (aten.max.default, ["x"], {}),
    (aten.min.default, ["x"], {}),
    (aten.var.correction, ["x", [1]], {"correction": 0, "keepdim": True}),
    (aten.var.correction, ["x"], {}),
    (aten.std.correction, ["x", [1]], {"correction": 1}),
    (aten.var_mean.correction, ["x", [0]], {"keepdim": True}),
    (aten.linalg_vector_norm.default, ["x", 2, [1]], {}),
    (aten.linalg_vector_norm.default, ["x", 1, [0], True], {}),
    (aten.cumsum.default, ["x", 1], {}),
    (aten.cumsum.default, ["x", 0], {}),
    (aten._softmax.default, ["x", 1, False], {}),
    (aten._softmax_backward_data.default, ["x", "u", 0, torch.float64], {}),
    (aten._log_softmax.default, ["x", 0, False], {}),
    (aten._log_softmax_backward_data.default, ["x", "y", 1, torch.float64], {}),
    (aten.logsumexp.default, ["x", [1], True], {}),
    (aten.native_layer_norm.default, ["x", [3], "row", "row", 1e-5], {}),
    (aten.native_layer_norm.default, ["x", [2, 3], None, None, 1e-5], {}),
    (
        aten.native_layer_norm_backward.default,
        ["y", "x", [3], "column", "column", "row", "row", [True, True, True]],
        {},
    ),
    (aten.mse_loss.default, ["x", "y"], {}),
    (aten.mse_loss.default, ["x", "y", 2], {}),
    (aten.mse_loss.default, ["x", "y", 0], {}),
    (aten.mse_loss_backward.default, ["one", "x", "y", 1], {}),
    (aten.mse_loss_backward.default, ["y", "x", "p", 0], {}),
    (aten.view.default, ["x", [3, 2]], {}),
    (aten.expand.default, ["row", [2, 3]], {}),
    (aten.permute.default, ["x", [1, 0]], {}),
    (aten.unsqueeze.default, ["row", 1], {}),
    (aten.slice.Tensor, ["x", 1, 1, 3], {}),
    (aten.select.int, ["x", 1, 2], {}),
    (aten.split.Tensor, ["x", 2, 1], {}),
    (aten.cat.default, [["x", "y"], 1], {}),
    (aten.flip.default, ["x", [1]], {}),
    (aten.select_backward.default, ["row", [2, 3], 0, 1], {}),
    (aten.slice_backward.default, ["column", [2, 3], 1, 2, 3, 1], {}),
    (aten.constant_pad_nd.default, ["x", [1, 1]], {}),
    (aten.tril.default, ["x"], {}),
    (aten.clone.default, ["x"], {}),
    (aten._to_copy.default, ["mask"], {"dtype": torch.float64}),
    (aten._to_copy.default, ["far"], {"dtype": torch.bool}),
    (aten.zeros_like.default, ["x"], {}),
    (aten.new_full.default, ["x", [2], 3.5], {}),
    (aten.full.default, [[2, 2], 0.1], {"dtype": torch.float64}),
    (aten.scalar_tensor.default, [0.3], {"dtype": torch.float64}),
    (aten.arange.default, [4], {}),
]


@pytest.mark.parametrize(("target", "args", "kwargs"), CALLS, ids=lambda v: str(v))
def test_op_is_read_as_pytorch_computes_it(target, args, kwargs):
    assert_read(target, *args, **kwargs)


def test_every_formula_is_tried():
    tried = {str(target).split(".")[1] for target, _, _ in CALLS}
    elsewhere = {"acosh", "true_divide", "log_sigmoid_backward"}

    assert set(POINTWISE) | set(GRIDWISE) <= tried | elsewhere


@pytest.mark.parametrize("x", [-2.5, 0.75], ids=["negative", "positive"])
def test_log_sigmoid_is_pulled_back(x):
    program = torch.nn.functional.logsigmoid
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    reading = read_program(program, [tensor.clone()], [(), ()])
    names = variables_of(*reading.gradient(0))
    point = {v: Fraction(3 if "cotangent" in v.parts[0] else x) for v in names}
    (expected,) = torch.autograd.grad(3 * program(tensor), tensor)

    assert float(Values(point, 40)(reading.gradient(0)[0])) == pytest.approx(expected.item())


def test_decomposition_into_the_op_itself_ends(monkeypatch):
    op = aten.igamma.default
    monkeypatch.setitem(graph_reader.decomposition_table, op, lambda x, y: NotImplemented)
    joint, _ = graph_of(op, "p", "p")
    reader, _ = reading_of(joint)

    with pytest.raises(Outside, match=r"^`igamma`$"):
        reader.gradient(0)


def test_memory_that_nobody_wrote_has_no_value():
    joint, _ = graph_of(aten.empty_like.default, "x")
    reading, point = reading_of(joint)

    with pytest.raises(Undefined):
        Values(point, 40)(reading.gradient(0)[0])


def test_area_cosine_is_read(monkeypatch):
    monkeypatch.setitem(TENSORS, "p", TENSORS["p"] + 1)

    assert_read(aten.acosh.default, "p")


@pytest.mark.parametrize(
    ("target", "args", "what"),
    [
        (aten.mm.default, ["x", "x"], "`mm`"),
        (aten.sort.default, ["x"], "`sort`"),
        (aten.max.dim, ["x", 1], "`max` along a dimension"),
        (aten.div.Tensor_mode, ["x", "y"], "division with rounding_mode='floor'"),
        (aten.view.dtype, ["x", torch.int64], "`view` of memory as another dtype"),
        (aten.add.Tensor, ["mask", "other"], "`add` of booleans"),
        (aten._to_copy.default, ["x"], "a conversion to torch.int64"),
        (aten.constant_pad_nd.default, ["x", [1, 1], 2.0], "`constant_pad_nd` with 2.0"),
        (aten.linalg_vector_norm.default, ["x", 3], "the norm of order 3"),
        (aten.full.default, [[2], float("inf")], "the number inf"),
        (aten.var.dim, ["x", [1], True], "`var` in a form that is not read"),
        (aten.complex.default, ["x", "y"], "complex numbers"),
    ],
    ids=str,
)
def test_what_is_outside_is_refused(target, args, what):
    settings = {aten.div.Tensor_mode: {"rounding_mode": "floor"}}
    settings |= {aten._to_copy.default: {"dtype": torch.int64}}
    tried = [a if a != "x" or target is not aten.mm.default else "square" for a in args]
    TENSORS["square"] = torch.eye(2, dtype=torch.float64)
    joint, _ = graph_of(target, *tried, **settings.get(target, {}))
    reading, _ = reading_of(joint)

    with pytest.raises(Outside, match="^" + what.replace("(", r"\(")):
        reading.gradient(0)


def test_every_group_of_ops_is_apart():
    groups = [set(POINTWISE), set(GRIDWISE), MOVES, COPIES, set(FILLS), MADE]

    assert sum(map(len, groups)) == len(set().union(*groups))


# ---- whole programs ----


def read_program(program, examples, shapes):
    """A program, captured on examples, and read at shapes."""
    joint = capture(program, examples, needs=[True] * len(examples)).joint
    given = []
    for node, shape in zip(joint.placeholders, shapes, strict=True):
        count = torch.Size(shape).numel()
        given.append(([variable(f"{node.name}[{n}]") for n in range(count)], shape))
    reading = GraphReader(joint, given)
    for place in range(len(examples)):
        reading.gradient(place)
    return reading


@pytest.mark.parametrize(
    ("program", "is_pointwise"),
    [
        (lambda x: torch.sin(x) * 2, True),
        (lambda x: torch.nn.functional.logsigmoid(x), True),
        (lambda x: x * x + torch.ones_like(x), True),
        (lambda x: x.flip(0) * x, False),
        (lambda x: torch.softmax(x, 0), False),
        (lambda x: x * x.shape[0], False),
        (lambda x: x * torch.arange(x.shape[0]), False),
    ],
    ids=["sine", "pair", "constant", "moved", "sum", "size", "place"],
)
def test_pointwise_program_is_known(program, is_pointwise):
    reading = read_program(program, [torch.rand(5)], [(3,), (3,)])

    assert reading.is_pointwise == is_pointwise


def test_broadcasting_is_not_pointwise():
    program = torch.mul
    reading = read_program(program, [torch.rand(4, 5), torch.rand(5)], [(2, 3), (3,), (2, 3)])

    assert not reading.is_pointwise


def test_sizes_are_those_that_are_asked():
    reading = read_program(lambda x: x.mean(), [torch.rand(5)], [(3,), ()])
    (first, *_) = reading.gradient(0)

    assert repr(first) == "mul(1/3, cotangent[0])"
