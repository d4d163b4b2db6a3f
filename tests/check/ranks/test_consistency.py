"""Placements with which gradients are right, where none are declared."""

import re

import pytest
import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import pullback as pb
from benchmarks.faults.ranks import branches, layers, meshes, planted

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


MESHES = {case.name: case for case in meshes.CASES}


@pytest.mark.parametrize("name", ["MeshColumn", "MeshRow"])
def test_value_may_be_one_over_a_dimension_of_a_mesh(name):
    case = MESHES[name]

    report = pb.check(case.target, case.inputs, ranks=4, profile="quick")

    assert report.ok
    assert "weight: replicate over ranks 0, 2 and 1, 3" in report.notes[0]


def test_share_divided_by_the_ranks_is_no_share():
    case = MESHES["MeshRowMean"]

    report = pb.check(case.target, case.inputs, ranks=4, profile="quick")

    assert [finding.rule.name for finding in report.findings] == ["rank-factor"]


@pytest.mark.parametrize(
    ("name", "rule"),
    [("SumOfPartsDivided", "rank-factor"), ("CoarseSumUndeclared", "wrong-across-ranks")],
)
def test_gradient_of_another_value_is_wrong(name, rule):
    case = MESHES[name]

    report = pb.check(case.target, case.inputs, ranks=2, profile="quick")

    assert [finding.rule.name for finding in report.findings] == [rule]


def test_second_derivative_that_autograd_drops_is_named():
    case = MESHES["GatheredOnceSilently"]

    report = pb.check(case.target, case.inputs, ranks=2, select=("second-across-ranks",))

    assert [finding.rule.name for finding in report.findings] == ["second-across-ranks"]
    assert report.findings[0].got.startswith("0: autograd does not follow backward there")


@pytest.mark.parametrize("name", ["CoarseSum", "operators", "DealtOut", "GatheredRows"])
def test_sound_function_is_silent(name):
    case = MESHES[name]

    assert pb.check(case.target, case.inputs, ranks=2).ok


def test_handle_that_is_not_waited_for_leaves_nothing_to_later_calls():
    case = MESHES["BatchHalfAwaited"]

    report = pb.check(case.target, case.inputs, ranks=2)

    assert [finding.rule.name for finding in report.findings] == ["unwaited-handle"]
    assert report.tried["runs"] == 3


class SumsGiven(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def test_fix_of_a_sum_of_what_is_one_value_is_to_leave_it_out():
    report = pb.check(
        SumsGiven,
        lambda rank: (torch.ones(2, 3, requires_grad=True),),
        ranks=2,
        placements={"x": "replicate", "out": "replicate"},
        profile="quick",
    )

    (finding,) = report.findings
    assert finding.rule.name == "rank-factor"
    assert finding.fix.startswith("leave the sum over the ranks out of backward")


class ReceivesInto(Function):
    """Receives into a tensor that lies in memory as the cotangent does."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        other = 1 - dist.get_rank()
        found = torch.empty_like(grad)
        sent = dist.isend(grad.contiguous(), other)
        dist.irecv(found, other).wait()
        sent.wait()
        return grad


def test_message_that_an_error_leaves_is_not_taken_by_the_next_call():
    report = pb.check(ReceivesInto, lambda rank: (torch.ones(1, 3, 2) + rank,), ranks=2)

    assert [finding.rule.name for finding in report.findings] == ["strided-across-ranks"]


def test_line_of_the_check_is_not_the_place_of_a_collective_of_operators():
    case = MESHES["operators"]

    report = pb.check(case.target, lambda rank: (torch.ones(3 + rank, 2),), ranks=2)

    told = [str(result) for result in (*report.findings, *report.skips)]
    assert not [text for text in told if "test_consistency.py" in text]


class AnotherWayForFewRows(Function):
    """Cotangents of few rows are summed, of more not."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grad = grad.clone()
        if len(grad) < 3:
            dist.all_reduce(grad)
        return grad


def test_examples_that_are_right_under_other_placements_are_noted_each():
    made = [lambda rank, rows=rows: torch.ones(rows, 3) + rank for rows in (2, 4)]

    report = pb.check(AnotherWayForFewRows, lambda rank: [(make(rank),) for make in made], ranks=2)

    assert report.notes == (
        "example 1: consistent with placements (x: shard, out: shard)",
        "example 2: consistent with placements (x: shard, out: replicate)",
    )


def test_missing_sum_of_what_may_be_one_value_is_noted():
    case = next(case for case in planted.CASES if case.name == "ColumnWithoutSum")

    report = pb.check(case.target, case.inputs, ranks=2, profile="quick")

    assert report.ok
    assert report.notes[1] == (
        "`x` was given the same on all ranks, and its gradient is not that of one value: declare "
        "placements={'x': 'replicate'} if it is one"
    )


BRANCHES = {case.name: case for case in branches.CASES}


def test_collective_that_only_another_inputs_gradient_asks_for_is_found():
    case = BRANCHES["FrozenLeavesOut"]

    report = pb.check(
        case.target,
        case.inputs,
        ranks=2,
        placements=dict(case.placements),
        select=("frozen-across-ranks",),
    )

    (finding,) = report.findings
    assert finding.at == "gradient of `x` on rank 0, where no other input needs one"


@pytest.mark.parametrize("name", ["SequenceColumnEarly", "SentAndOverwritten"])
def test_tensor_that_is_used_before_its_collective_is_through_is_found(name):
    case = BRANCHES[name]

    report = pb.check(case.target, case.inputs, ranks=2, profile="quick")

    (finding,) = report.findings
    assert finding.rule.name == "unwaited-handle"
    assert re.fullmatch(r"`\w+` (reads|writes) its memory at .*:\d+, before that", finding.got)


@pytest.mark.parametrize("name", ["HalvesOfRing", "WaitsInBackward"])
def test_work_beside_a_collective_is_no_fault(name):
    case = BRANCHES[name]

    assert pb.check(case.target, case.inputs, ranks=2, select=("unwaited-handle",)).ok


def of_mesh():
    mesh = init_device_mesh("cpu", (2,))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    return (distribute_tensor(x, mesh, [Shard(0)]).requires_grad_(),)


class LocalDoubled(Function):
    """Each rank's part of a DTensor, doubled."""

    @staticmethod
    def forward(ctx, x):
        ctx.mesh = x.device_mesh
        return 2 * x.to_local()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return DTensor.from_local(2 * grad, ctx.mesh, [Shard(0)])


class LocalTripled(LocalDoubled):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return DTensor.from_local(3 * grad, ctx.mesh, [Shard(0)])


@pytest.mark.parametrize(
    ("one", "names"), [(LocalDoubled, []), (LocalTripled, ["wrong-across-ranks"])]
)
def test_parts_of_a_dtensor_are_judged_as_outputs(one, names):
    report = pb.check(one, of_mesh, ranks=2, profile="quick")

    assert [finding.rule.name for finding in report.findings] == names
