"""Names: the user's own first, then telling ones; legal, unlike, the same every time."""

import keyword

import pytest
import torch

from pullback.graph.names import names_of
from pullback.graph.simplify import READABLE, simplify
from tests.graph.graphs import FUNCTIONS, trace, traced

X, Y = torch.randn(2, 3, 4)


def named(fn, *inputs, table=(), **overrides):
    """The names of the nodes of `fn`'s joint graph, by the names that the nodes have."""
    found = trace(fn, *inputs)
    joint = simplify(found.joint, table) if table else found.joint
    names = names_of(
        joint,
        overrides.get("local_names", found.local_names),
        overrides.get("input_names", found.input_names),
        differentiated=overrides.get("differentiated", found.differentiated),
    )
    return joint, names


def parts(joint, names):
    """The names of inputs, cotangents, outputs and gradients."""
    return [
        [names.get(node) for node in nodes]
        for nodes in (joint.inputs, joint.cotangents, joint.outputs, joint.gradients)
    ]


def scaled(x, weight):
    h = x.exp()
    y = h * weight
    return y.sin()


def test_inputs_and_gradients_are_named():
    joint, names = named(scaled, X, Y)

    assert parts(joint, names) == [
        ["x", "weight"],
        ["grad_out"],
        ["out"],
        ["grad_x", "grad_weight"],
    ]


def test_locals_keep_their_names():
    _, names = named(scaled, X, Y)

    assert {"h", "y", "grad_h", "grad_y"} <= set(names.values())
    assert {names[node] for node in names.given} >= {"x", "h", "y", "grad_x", "out"}


def test_several_outputs_are_numbered():
    joint, names = named(lambda x: (x.exp(), x.sin()), X)

    assert parts(joint, names)[1:3] == [["grad_out0", "grad_out1"], ["out0", "out1"]]


def test_named_output_names_its_cotangent():
    def double(x):
        y = x * 2
        return y

    joint, names = named(double, X)

    assert parts(joint, names) == [["x"], ["grad_y"], ["y"], ["grad_x"]]


def test_reused_name_is_numbered():
    def steps(x):
        a = x.exp()
        return a.sin()

    joint, names = named(steps, X, local_names={"exp": "x", "sin": "x"})

    assert [names[node] for node in (*joint.inputs, *joint.outputs)] == ["x", "x_2"]
    assert "x_1" in names.values()


@pytest.mark.parametrize("name", ["lambda", "torch", "sum", "ctx", "2d", "xs[0]"])
def test_illegal_names_are_mended(name):
    joint, names = named(lambda x: x.exp(), X, input_names=[name])

    given = names[joint.inputs[0]]
    assert given.isidentifier()
    assert not keyword.iskeyword(given)
    assert given not in ("torch", "sum", "ctx")


def test_gradient_is_that_of_its_input():
    joint, names = named(lambda x, y: x.detach() * y, X, Y, differentiated=[1])
    joint.graph.output_node().args = ((*joint.outputs, joint.gradients[1]),)

    names = names_of(joint, {}, ["x", "y"], differentiated=[1])

    assert parts(joint, names)[3] == ["grad_y"]


def test_integer_inputs_have_no_gradient():
    joint, names = named(lambda i, x: x[i], torch.tensor([1, 0]), X, differentiated=None)

    assert parts(joint, names)[3] == ["grad_x"]


def test_name_survives_a_rewrite():
    joint, names = named(lambda x: x * -1 + (x.exp() * 1).detach(), X, table=READABLE)
    local_names = {"mul": "flipped", "mul_1": "grown", "detach_1": "grown"}

    names = names_of(joint, local_names, ["x"])

    assert "grown" in names.values()


def test_operand_is_part_of_the_name():
    _, names = named(lambda x: x.exp() * x.exp().sin(), X, local_names={}, table=READABLE)

    assert "exp_x" in names.values()


def test_hints_of_rules_are_names():
    fn = FUNCTIONS["fused_layer_norm"]
    found = traced("fused_layer_norm")
    joint = simplify(found.joint, READABLE)

    names = names_of(joint, {}, ["x", "w", "b"])

    assert fn.__name__ == "fused_layer_norm"
    assert {"mean", "rstd", "xhat", "grad_xhat"} <= set(names.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_are_legal_and_unlike(name):
    found = traced(name)

    names = names_of(found.joint, found.local_names, found.input_names)

    values = list(names.values())
    assert len(set(values)) == len(values)
    assert all(value.isidentifier() and not keyword.iskeyword(value) for value in values)
    assert len(values) == len(found.joint.graph.nodes) - 1


def test_names_are_the_same_every_time():
    def once():
        found = trace(FUNCTIONS["layer_norm"], *(torch.randn(3, 8), torch.randn(8), torch.randn(8)))
        return list(names_of(found.joint, found.local_names, found.input_names).values())

    assert once() == once()
