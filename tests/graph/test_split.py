"""Forward and backward graphs do together what the joint graph does, to the last bit."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx

from benchmarks.pipelines import PIPELINES, make_inputs
from pullback.capture.joint import capture
from pullback.errors import InternalError
from pullback.graph.cost import flops_of, is_random
from pullback.graph.cut import cut
from pullback.graph.parts import BACKWARD, JointGraph, phase_of
from pullback.graph.split import split

aten = torch.ops.aten


@torch.library.custom_op("pullback_test_split::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    """An op whose inside nobody sees."""
    return x + 1


@shifted.register_fake
def _(x):
    return torch.empty_like(x)


shifted.register_autograd(lambda ctx, cotangent: cotangent * 2)


def run(graph, *values):
    return fx.Interpreter(fx.GraphModule({}, graph)).run(*values)


def values_for(captured, inputs):
    """The inputs of a joint graph, and cotangents for its outputs, laid out as it expects them."""
    given = captured.row([x.detach() for x in inputs])
    likes = [node.meta["val"] for node in captured.joint.cotangents]
    empty = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in likes]
    return given, [y.normal_() for y in empty]


def in_two(joint, parts, given, cotangents):
    """What forward and then backward return, after one seed."""
    forward, backward = parts
    torch.manual_seed(2)
    returned = run(forward, *given)
    outputs, kept = returned[: joint.output_count], returned[joint.output_count :]
    return [*outputs, *run(backward, *kept, *cotangents)]


def in_one(joint, given, cotangents):
    """What the joint graph returns, after the same seed."""
    torch.manual_seed(2)
    return list(run(joint.graph, *given, *cotangents))


def same(got, expected):
    """Whether two rows of tensors are equal to the last bit, `None` where it is expected."""
    pairs = list(zip(got, expected, strict=True))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def names(nodes):
    return [node.name for node in nodes]


def calls(graph):
    return [node for node in graph.nodes if node.op == "call_function"]


# ---- what must hold ----

POLICIES = ("auto", "factors", "inputs", "everything")

PROGRAMS = {
    f"{name}-{form}": (getattr(pipeline, form), make_inputs(name, 256, torch.float64))
    for name, pipeline in PIPELINES.items()
    for form in ("plain", "nested")
}


def leaf(*shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator).requires_grad_()


def dropout(x, w):
    """Draws in the middle, and once for nothing."""
    h = torch.dropout(x.sin() @ w, 0.5, True)
    torch.rand(3)
    return h * torch.rand_like(h), h.exp()


def opaque(x):
    """Calls an op twice whose inside nobody sees."""
    return shifted(shifted(x.sin()).exp()) * x


def viewed(x, w):
    """Returns views, of an input and of an intermediate."""
    h = (x @ w).tanh()
    return h.t(), x[0], h.chunk(2, -1)[1] * 2


def several(x):
    """Ops with several outputs."""
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    values, places = x.sort(-1)
    return (x - mean) / variance.sqrt() * values, places


def partly(x, w):
    """Has a gradient for one input only."""
    return x.sin() * w.detach()


ODD = {
    "random": (dropout, (leaf(4, 6), leaf(6, 6))),
    "opaque": (opaque, (leaf(5),)),
    "views": (viewed, (leaf(4, 6), leaf(6, 6))),
    "several": (several, (leaf(4, 6),)),
    "no-gradient": (partly, (leaf(5), leaf(5))),
}


@functools.cache
def captured_of(name):
    """A program, captured once for all tests."""
    program, inputs = (PROGRAMS | ODD)[name]
    return capture(program, inputs, dynamic=False), inputs


@functools.cache
def open_capture(name):
    """A pipeline with its sizes left open, captured once for all tests."""
    return capture(PIPELINES[name].nested, make_inputs(name, 4096))


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", PROGRAMS | ODD)
def test_two_graphs_do_what_one_does(name):
    captured, inputs = captured_of(name)
    joint = captured.joint
    given, cotangents = values_for(captured, inputs)
    expected = in_one(joint, given, cotangents)
    most = cut(joint, "everything").charged_bytes
    for policy in (*POLICIES, most, 2 * most):
        for free in (frozenset(), frozenset(range(joint.input_count))):
            parts = split(joint, cut(joint, policy, free=free))

            assert same(in_two(joint, parts, given, cotangents), expected)


@pytest.mark.parametrize("name", ["swiglu-nested", "layernorm_gelu-plain", "rmsnorm_rope-nested"])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_gradient_alone_is_the_same(name, policy):
    captured, inputs = captured_of(name)
    joint = captured.joint
    given, cotangents = values_for(captured, inputs)
    whole = in_one(joint, given, cotangents)
    sizes = {None: len(calls(split(joint, cut(joint, policy))[1]))}
    for position in range(len(joint.gradients)):
        parts = split(joint, cut(joint, policy, needed={position}))
        got = in_two(joint, parts, given, cotangents)
        alone = [g if i == position else None for i, g in enumerate(whole[joint.output_count :])]
        sizes[position] = len(calls(parts[1]))

        assert same(got[joint.output_count :], alone)
    assert max(sizes, key=sizes.__getitem__) is None


@pytest.mark.parametrize("name", ["mlp", "cross_entropy", "rmsnorm_rope"])
@pytest.mark.parametrize("policy", POLICIES)
def test_one_split_serves_many_sizes(name, policy):
    program, captured = PIPELINES[name].nested, open_capture(name)
    joint = captured.joint
    parts = split(joint, cut(joint, policy))
    for elements in (4096, 8192):
        inputs = make_inputs(name, elements)
        given = captured.row([x.detach() for x in inputs])
        cotangents = [torch.randn_like(program(*inputs).detach())]

        expected = in_one(joint, given, cotangents)
        assert same(in_two(joint, parts, given, cotangents), expected)


@pytest.mark.parametrize("name", PIPELINES)
def test_both_forms_of_a_pipeline_agree(name):
    torch.manual_seed(0)
    plain, nested = (captured_of(f"{name}-{form}") for form in ("plain", "nested"))
    given, cotangents = values_for(*plain)
    got, expected = (in_one(c.joint, given, cotangents) for c, _ in (nested, plain))

    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


# ---- what is in each graph ----


def joint_of(program, *inputs):
    return capture(program, inputs, dynamic=False).joint


def square_sine(x, y):
    square = x * x
    return square * y.sin()


@pytest.fixture
def joint():
    """The joint graph of x * x * sin(y)."""
    return joint_of(square_sine, leaf(4), leaf(4))


def test_saved_stand_between_outputs_and_cotangents(joint):
    chosen = cut(joint, "everything")
    forward, backward = split(joint, chosen)
    returned = forward.output_node().args[0]
    taken = backward.find_nodes(op="placeholder")

    assert names(forward.find_nodes(op="placeholder")) == names(joint.inputs)
    assert names(returned) == names([*joint.outputs, *chosen.saved])
    assert names(taken) == names([*chosen.saved, *joint.cotangents])


def test_numbers_follow_the_saved_tensors():
    joint = capture(PIPELINES["mlp"].plain, make_inputs("mlp", 4096)).joint
    chosen = cut(joint)
    forward, backward = split(joint, chosen)
    taken = backward.find_nodes(op="placeholder")
    returned = forward.output_node().args[0]

    assert len(chosen.numbers) > 0
    assert names(taken) == names([*chosen.saved, *chosen.numbers, *joint.cotangents])
    assert names(returned)[joint.output_count :] == names(taken)[: -len(joint.cotangents)]


def test_gradient_not_needed_is_none(joint):
    _, backward = split(joint, cut(joint, needed={1}))

    assert backward.output_node().args[0][0] is None
    assert backward.output_node().args[0][1] is not None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_cut_tells_what_runs_twice(name, policy):
    joint = captured_of(name)[0].joint
    chosen = cut(joint, policy)
    forward, backward = split(joint, chosen)
    twice = {node.name for node in calls(forward)} & {node.name for node in calls(backward)}

    assert twice == set(names(chosen.recomputed))
    assert chosen.flops == sum(flops_of(node) for node in calls(forward) if node.name in twice)


@pytest.mark.parametrize("name", PROGRAMS | ODD)
def test_nothing_is_computed_for_nothing(name):
    joint = captured_of(name)[0].joint
    for graph in split(joint, cut(joint)):
        idle = [node for node in calls(graph) if not node.users and not is_random(node)]

        assert idle == []


def test_draw_for_nothing_stays_in_forward():
    joint = captured_of("random")[0].joint
    forward, backward = split(joint, cut(joint))

    assert sum(map(is_random, forward.nodes)) == sum(map(is_random, joint.graph.nodes))
    assert not any(map(is_random, backward.nodes))


def test_recomputed_stands_just_before_its_use():
    def program(x):
        for _ in range(3):
            x = torch.relu(x.sin() @ x)
        return x

    joint = joint_of(program, leaf(4, 4))
    _, backward = split(joint, cut(joint))
    order = list(backward.nodes)
    again = [node for node in calls(backward) if phase_of(node) != BACKWARD]

    assert again
    for node in again:
        first = min(order.index(user) for user in node.users)
        between = order[order.index(node) + 1 : first]
        assert all(phase_of(n) != BACKWARD for n in between)


def test_recomputed_for_one_use_stand_in_its_order():
    graph = fx.Graph()
    x, cotangent = graph.placeholder("x"), graph.placeholder("ct")
    first, second = (graph.call_function(op.default, (x,)) for op in (aten.sin, aten.cos))
    y = graph.call_function(aten.add.Tensor, (first, second))
    gradient = graph.call_function(aten.addcmul.default, (cotangent, first, second))
    graph.output((y, gradient))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, device="meta")
    joint = JointGraph(graph, 1, 1)
    _, backward = split(joint, cut(joint, "inputs"))

    assert names(calls(backward)) == names([first, second, gradient])


def test_nodes_keep_their_names_and_meta(joint):
    by_name = {node.name: node for node in joint.graph.nodes}
    for graph in split(joint, cut(joint)):
        for node in graph.nodes:
            if node.op != "output":
                assert node.meta == by_name[node.name].meta
                assert node.meta is not by_name[node.name].meta


def test_joint_graph_is_left_as_it_was(joint):
    before = str(joint.graph)
    split(joint, cut(joint))

    assert str(joint.graph) == before


# ---- broken cuts ----


def test_cut_without_a_needed_input_is_refused(joint):
    broken = replace(cut(joint), saved=())
    with pytest.raises(InternalError) as caught:
        split(joint, broken)

    assert str(caught.value) == (
        "E900 internal: a cut must save what backward needs of the inputs\n  got:      `x`"
    )


def test_cut_that_draws_twice_is_refused():
    def noisy(x):
        return (x * torch.rand_like(x)).sin()

    joint = joint_of(noisy, leaf(4))
    with pytest.raises(InternalError, match="a random or opaque op must not run twice"):
        split(joint, replace(cut(joint), saved=tuple(joint.inputs)))


def test_gradient_may_be_an_input_itself():
    graph = fx.Graph()
    x, cotangent = graph.placeholder("x"), graph.placeholder("ct")
    for node in (x, cotangent):
        node.meta["val"] = torch.empty(4, device="meta")
    graph.output((x, x, cotangent))
    joint = JointGraph(graph, 1, 1)
    forward, backward = split(joint, cut(joint))
    a, b = torch.ones(4), torch.zeros(4)

    assert [y is a for y in run(forward, a)] == [True, True]
    assert [y is z for y, z in zip(run(backward, a, b), (a, b), strict=True)] == [True, True]
