"""Placements with which gradients are right, where none are declared."""

import pytest

import pullback as pb
from benchmarks.faults.ranks import layers

CASES = {case.name: case for case in layers.CASES}


def checked(name, **settings):
    case = CASES[name]
    return pb.check(case.target, case.inputs, ranks=2, profile="quick", **settings)


def test_shares_of_a_replicated_gradient_are_a_placement():
    report = checked("SynchronisedNorm")

    assert report.ok
    assert "weight: replicate, its gradient partial" in report.notes[0]


def test_shares_are_wrong_where_the_whole_is_declared():
    placements = {"x": "shard", "weight": "replicate", "bias": "replicate", "out": "shard"}

    report = checked("SynchronisedNorm", placements=placements)

    assert {finding.rule.name for finding in report.findings} <= {
        "missing-collective",
        "unequal-gradients",
    }
    assert not report.ok


def test_outputs_of_whole_numbers_are_no_hindrance():
    report = checked("BucketSum")

    assert report.ok
    assert not [skip for skip in report.skips if "the check itself failed" in skip.reason]


@pytest.mark.parametrize("name", ["BucketMixed", "NormCountsOwnRows", "BufferKept"])
def test_fault_is_named(name):
    found = {finding.rule.name for finding in checked(name).findings}

    assert found & set(CASES[name].rules)


def test_program_that_refuses_second_derivatives_is_silent():
    case = CASES["parallel_layers"]

    report = pb.check(case.target, case.inputs, ranks=2, select=("second-across-ranks",))

    assert report.ok
