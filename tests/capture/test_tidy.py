"""From the raw trace to the agreed form: what is kept, what goes, what becomes an input."""

import pytest
import torch

import pullback as pb
from pullback.capture.joint import capture
from pullback.graph.cost import is_mutating, is_random
from pullback.graph.parts import FORWARD, calls, phase_of
from tests.capture.cases import normal
from tests.capture.functions import family

F = family(pb.Function)
aten = torch.ops.aten


def targets(program, *examples):
    return [node.target for node in calls(capture(program, examples).joint.graph)]


def test_detach_and_alias_are_dropped():
    x = normal(3, grad=False)

    assert targets(lambda x: x.detach().sin().detach(), x) == [aten.sin.default]


def test_unused_work_is_dropped():
    def program(x):
        x.exp()
        return x.sin()

    assert targets(program, normal(3, grad=False)) == [aten.sin.default]


def test_user_clone_is_kept():
    assert targets(lambda x: x.clone(), normal(3, grad=False)) == [aten.clone.default]


def test_given_clone_is_dropped():
    found = capture(lambda x: x.sin(), (normal(3) * 2,))

    assert aten.clone.default not in [node.target for node in calls(found.joint.graph)]


def test_number_becomes_an_op():
    found = capture(lambda x: x * torch.tensor(0.5), (normal(3, grad=False),))
    full = next(calls(found.joint.graph))

    assert full.target is aten.full.default
    assert full.args == ([], 0.5)
    assert len(found.inputs) == 1


def test_constant_is_one_input():
    table = [1.0, 2.0, 3.0]

    def program(x):
        row = torch.tensor(table)
        return x * row + row

    found = capture(program, (normal(3, grad=False),))

    assert [(i.name, i.kind) for i in found.inputs] == [("x", "argument"), ("constant", "constant")]
    assert found.inputs[1].tensor.tolist() == table


def test_changed_constant_is_not_shared():
    def program(x):
        row = torch.tensor([1.0, 2.0, 3.0])
        return x * row.add_(1)

    found = capture(program, (normal(3, grad=False),))

    assert found.inputs[1].tensor.tolist() == [1.0, 2.0, 3.0]
    assert found.mutated == ()


def test_in_place_ops_are_rewritten():
    def program(x):
        y = x * 1
        y[0].mul_(2)
        return y

    found = capture(program, (normal(3, grad=False),))

    assert not any(is_mutating(node) for node in calls(found.joint.graph))
    assert aten.select_scatter.default in [node.target for node in calls(found.joint.graph)]


def test_marks_survive_the_rewriting():
    def program(x):
        y = x.sin()
        y.mul_(2)
        return y.view(-1)

    found = capture(program, (normal(3, 2),))
    ops = [n for n in calls(found.joint.graph) if n.target is not aten.sym_size.int]
    forward = [n for n in ops if n.meta["phase"] == FORWARD]
    line = program.__code__.co_firstlineno

    assert [(n.target, n.meta["unit"]) for n in forward[:2]] == [
        (aten.sin.default, 0),
        (aten.mul.Tensor, 1),
    ]
    assert [n.meta["place"] for n in forward[:2]] == [
        f"test_tidy.py:{line + 1}",
        f"test_tidy.py:{line + 2}",
    ]
    assert found.local_names[forward[1].name] == "y"


def test_output_of_rewriting_is_forward():
    def program(x):
        y = x.sin()
        view = y.view(-1)
        y.mul_(2)
        return view

    found = capture(program, (normal(3, 2),))

    assert found.joint.outputs[0].meta["phase"] == FORWARD


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.bernoulli(0.5), [aten.bernoulli.p]),
        (lambda x: torch.rand_like(x), [aten.rand_like.default]),
        (lambda x: x.sin(), []),
    ],
    ids=["bernoulli", "rand_like", "sin"],
)
def test_draws_are_known(program, expected):
    found = capture(program, (torch.full((3,), 0.5),))

    assert [n.target for n in calls(found.joint.graph) if is_random(n)] == expected


def test_names_that_clash_are_numbered():
    one, two = {"w": normal(3)}, {"w": normal(3)}

    def program(one_w):
        return one_w * one["w"] * two["w"]

    found = capture(program, (normal(3),))

    assert [n.name for n in found.joint.inputs] == ["one_w", "one_w_1", "two_w"]


@pytest.mark.slow
def test_long_programs_are_walked_once():
    """Each step uses the one before it three times: a walk along every path would never end."""

    def program(x):
        for _ in range(60):
            x = x * torch.where(x > 0, x, x.sin())
        return x

    found = capture(program, (normal(3),))

    assert sum(phase_of(node) == FORWARD for node in calls(found.joint.graph)) >= 180
