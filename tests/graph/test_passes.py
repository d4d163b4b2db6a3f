"""All passes on whole functions: bits where they are promised, close numbers elsewhere."""

import pytest
import torch

from pullback.graph.cse import cse
from pullback.graph.dead import drop_dead
from pullback.graph.simplify import EXACT, READABLE, simplify
from tests.graph.graphs import (
    FUNCTIONS,
    assert_legal,
    assert_same_bits,
    printed,
    row_of,
    run,
    traced,
)

every_function = pytest.mark.parametrize("name", FUNCTIONS)
PASSES = {
    "cse": cse,
    "cse across phases": lambda joint: cse(joint, across_phases=True),
    "dead": drop_dead,
    "exact": lambda joint: simplify(joint, EXACT),
}
NARROW = [name for name in FUNCTIONS if "complex" not in name and name != "segment_sum"]


@pytest.mark.quick(60)
@every_function
@pytest.mark.parametrize("kind", PASSES)
def test_pass_keeps_every_bit(name, kind):
    joint = traced(name).joint
    text, row = printed(joint.graph), row_of(name)

    after = PASSES[kind](joint)

    assert_same_bits(run(after.graph, *row), run(joint.graph, *row))
    assert printed(joint.graph) == text
    after.graph.lint()


@pytest.mark.parametrize("name", NARROW)
def test_narrow_numbers_keep_every_bit(name):
    joint = traced(name, torch.bfloat16).joint
    row = row_of(name, torch.bfloat16)

    assert_same_bits(run(simplify(joint).graph, *row), run(joint.graph, *row))


@every_function
def test_readable_numbers_stay_close(name):
    joint = traced(name, torch.float64).joint
    row = row_of(name, torch.float64)

    after = simplify(joint, READABLE, across_phases=True)

    torch.testing.assert_close(run(after.graph, *row), run(joint.graph, *row), rtol=1e-9, atol=1e-9)
    assert_legal(after.graph)


@every_function
def test_simplified_graph_is_left_alone(name):
    once = simplify(traced(name).joint, READABLE)

    twice = simplify(once, READABLE)

    assert [str(n.target) for n in twice.graph.nodes] == [str(n.target) for n in once.graph.nodes]


@pytest.mark.quick(18)
@pytest.mark.parametrize(
    ("name", "symbolic"),
    [
        *((name, False) for name in FUNCTIONS),
        *(
            pytest.param(name, True, marks=pytest.mark.slow if place % 5 else ())
            for place, name in enumerate(FUNCTIONS)
        ),
    ],
)
def test_no_noise_is_left(name, symbolic):
    after = simplify(traced(name, symbolic=symbolic).joint, READABLE)

    noise = ("alias", "detach", "clone", "_to_copy", "lift_fresh", "_unsafe_view")
    names = {
        str(node.target).split(".")[1] for node in after.graph.nodes if "." in str(node.target)
    }
    assert names.intersection(noise) <= {"_to_copy"}


def test_phases_and_places_are_kept():
    after = simplify(traced("layer_norm").joint, READABLE)

    phases = [node.meta["phase"] for node in after.graph.nodes if node.op == "call_function"]
    assert phases == sorted(phases, reverse=True)
    assert set(phases) == {"forward", "backward"}
