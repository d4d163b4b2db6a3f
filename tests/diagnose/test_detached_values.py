"""The value that a backward takes for a constant is found, and named values come first."""

import torch

from pullback.capture.joint import capture
from pullback.diagnose.detached_values import detached_value
from pullback.diagnose.trials import Trials
from pullback.function.plain import plain_program
from tests.diagnose import faulty
from tests.diagnose.faulty import EXAMPLES


def held_of(function, *, is_named=lambda node: False, in_time=lambda: True, place=0):
    trials = Trials(function, EXAMPLES[function])
    captured = capture(plain_program(function), trials.examples, needs=trials.needs)
    return captured, detached_value(captured, trials.all, place, is_named, in_time)


def test_constant_factor_is_found():
    captured, held = held_of(faulty.GeluWithoutDensity)

    assert captured.local_names[held.node.name] == "cdf"
    assert held.user is None


def test_single_use_of_input_is_found():
    captured, held = held_of(faulty.GateWithoutSecond)

    assert held.node is captured.joint.inputs[0]
    assert held.user.target is torch.ops.aten.mul.Tensor


def test_named_value_is_preferred():
    captured, last = held_of(faulty.GeluWithoutDensity)
    named = next(node for node in captured.joint.graph.nodes if node.name == last.node.name)
    inner = named.all_input_nodes[0]

    _, held = held_of(faulty.GeluWithoutDensity, is_named=lambda node: node.name == inner.name)

    assert held.node.name == inner.name


def test_other_errors_are_not_explained():
    _, held = held_of(faulty.CubeWithTwo)

    assert held is None


def test_without_time_nothing_is_found():
    _, held = held_of(faulty.GeluWithoutDensity, in_time=lambda: False)

    assert held is None
