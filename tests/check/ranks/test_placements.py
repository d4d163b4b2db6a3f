"""Placements: what is declared, and what is refused."""

import pytest
import torch

import pullback as pb
from pullback.check.ranks.placements import (
    PARTIAL,
    REPLICATE,
    SHARD,
    Assignment,
    Placed,
    Placement,
    declared_of,
    require_there,
)
from pullback.errors import DeclarationError

NAMES = ("x", "w")


def declared(given):
    return declared_of(given, NAMES, "F")


def test_words_become_placements():
    found = declared({"x": "shard(0)", "w": "replicate", "out": "partial", "out1": "shard"})

    assert found.of_input("x") == Placed(Placement.SHARD, 0)
    assert found.of_input("w") == REPLICATE
    assert (found.of_output(0), found.of_output(1)) == (PARTIAL, SHARD)


def test_gradient_of_one_value_may_be_partial():
    found = declared({"w": "replicate", "w.grad": "partial"})

    assert found.of_input("w") == Placed(Placement.REPLICATE, has_shares=True)


def test_objects_of_dtensor_are_taken():
    from torch.distributed.tensor import Replicate, Shard

    found = declared({"x": Shard(1), "out": Replicate()})

    assert found.of_input("x") == Placed(Placement.SHARD, 1)
    assert found.of_output(0) == REPLICATE


def test_nothing_declared_is_empty():
    assert declared(None).is_empty
    assert declared(None).of_input("x") is None


@pytest.mark.parametrize("given", [{"y": "shard"}, {"x": "split"}, {"x": "replicate(0)"}, ["x"]])
def test_what_is_no_placement_is_refused(given):
    with pytest.raises(DeclarationError) as caught:
        declared(given)

    assert str(caught.value) == (
        "E402 declaration: the placements of `F` must map its inputs and outputs to placements\n"
        "  expected: keys out of x, w, out, out0, NAME.grad, and 'shard', 'shard(dim)', "
        "'replicate' or 'partial'\n"
        f"  got:      {given!r}\n"
        '  fix:      write for example placements={"x": "replicate", "out": "shard"}'
    )


def test_assignment_is_told_in_words():
    one = Assignment((("x", SHARD), ("w", REPLICATE)), (SHARD,))
    two = Assignment((("x", SHARD),), (SHARD, REPLICATE))

    assert str(one) == "x: shard, w: replicate, out: shard"
    assert str(two) == "x: shard, out0: shard, out1: replicate"


def test_only_what_is_wrong_is_shown():
    with pytest.raises(DeclarationError) as caught:
        declared({"x": "shard", "w": "whole"})

    assert "got:      {'w': 'whole'}" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"out2": "shard"}, "  expected: out, out0, out1\n  got:      out2"),
        (
            {"x": "shard(2)"},
            "  at:       x\n  expected: one of its 2 dimensions\n  got:      shard(2)",
        ),
        ({"out1": "shard(-2)"}, "  at:       out1\n  expected: one of its 1 dimensions"),
    ],
)
def test_what_is_not_there_cannot_be_placed(given, told):
    with pytest.raises(DeclarationError) as caught:
        require_there(declared(given), {"x": 2, "w": 1}, [2, 1], "F")

    assert "the placements of `F` must be those of what it takes and gives" in str(caught.value)
    assert told in str(caught.value)


def test_placements_come_with_ranks():
    with pytest.raises(DeclarationError) as caught:
        pb.check(torch.sin, (torch.ones(2),), placements={"x": "shard"})

    assert "`placements` must come with `ranks`" in str(caught.value)
