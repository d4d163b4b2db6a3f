"""Checks across ranks, by processes: few, since each takes a second or more."""

import contextlib
import os
import re
import resource
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from benchmarks.faults.ranks import planted, sound
from benchmarks.faults.ranks.score import GROUPS, score
from pullback.check.ranks import crew
from pullback.check.ranks.rules import rank_rules
from pullback.errors import ExamplesError

CASES = {case.name: case for cases in GROUPS.values() for case in cases}


def checked(name, **options):
    case = CASES[name]
    placements = dict(case.placements) or None
    return pb.check(case.target, case.inputs, ranks=2, placements=placements, **options)


def ranks_left():
    """The processes below this one, but for the tests' own helpers."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return path.read_text().split() if path.exists() else []


def test_sound_function_of_sums_is_silent():
    report = checked("AllReduceSum", allow=("wrapped-differs",))

    assert report.ok, str(report)
    assert report.notes == (
        "`out` is one value, and backward takes its cotangent as each rank's own, as "
        "`torch.distributed.nn` does: what follows may differ between them; declare "
        "placements={'out': 'replicate'} if that is not meant",
        "consistent with placements (x: shard, out: shard)",
    )


def test_sound_function_that_passes_is_silent():
    report = checked("ReduceFromRegion", allow=("wrapped-differs",))

    assert report.ok, str(report)
    assert report.notes == (
        "`out` is one value, and backward takes its cotangent as one for all ranks, as Megatron's "
        "layers do: what follows must be the same on all of them; declare "
        "placements={'out': 'shard'} if that is not meant",
        "consistent with placements (x: shard, out: replicate)",
    )


def test_declared_placement_makes_other_convention_wrong():
    case = CASES["ReduceFromRegion"]
    report = pb.check(
        case.target, case.inputs, ranks=2, placements={"out": "shard"}, profile="quick"
    )

    assert [finding.rule.name for finding in report.findings] == ["missing-collective"]
    assert report.findings[0].place.startswith("benchmarks/faults/ranks/sound.py:")


def test_deadlock_ends_in_seconds_and_leaves_nothing():
    before = ranks_left()
    start = time.monotonic()
    report = checked("OnlyFirstSums", profile="quick")
    seconds = time.monotonic() - start

    (finding,) = report.findings
    assert finding.rule.name == "ranks-deadlock"
    assert "rank 0 waited in all_reduce(float32[4, 3]) over ranks 0, 1 at " in finding.got
    assert "rank 1 was through, after all_reduce" in finding.got
    assert seconds < 60
    assert ranks_left() == before


def test_rank_that_loops_is_named_with_its_line(monkeypatch):
    monkeypatch.setattr(crew, "LOOPS", 1.0)
    report = checked("PolledForEver", profile="quick")

    (finding,) = report.findings
    assert finding.rule.name == "endless-rank"
    assert re.search(
        r"rank 0 did not come to an end in \d+ s of work at \S+\.py:\d+, after ", finding.got
    )
    assert "rank 1 waited in all_reduce(float32[3, 2]) over ranks 0, 1 at " in finding.got
    assert {skip.reason for skip in report.skips if skip.is_refusal} == {"the ranks failed before"}


class SumsUnlike(Function):
    """Sums more rows on each further rank."""

    @staticmethod
    def forward(ctx, x):
        y = x[: 1 + dist.get_rank()].clone()
        ctx.save_for_backward(y)
        dist.reduce_scatter_tensor(torch.empty(len(y) * 2), y.new_ones(len(y) * 4))
        return x + y.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad


def test_unlike_tensors_in_one_collective_are_told_with_their_shapes():
    report = pb.check(SumsUnlike, lambda rank: (torch.ones(4, 3),), ranks=2, profile="quick")

    (finding,) = report.findings
    assert finding.rule.name == "different-collectives"
    assert finding.expected == (
        "tensors of one dtype and size from every rank in reduce_scatter_tensor"
    )
    assert "reduce_scatter_tensor(float32[4]) over ranks 0, 1" in finding.got
    assert "reduce_scatter_tensor(float32[8]) over ranks 0, 1" in finding.got


def test_rank_that_leaves_a_collective_out_for_zeros_is_found():
    report = checked("FromFirstEarlyOut", profile="quick")

    assert [finding.rule.name for finding in report.findings] == ["ranks-deadlock"]
    assert report.findings[0].at == "backward, where the cotangents of rank 1 are zero"


def test_killed_rank_is_named():
    report = checked("KilledOnOneRank", profile="quick")

    (finding,) = report.findings
    assert finding.rule.name == "lost-rank"
    assert "rank 0 was ended by SIGKILL" in finding.got


def test_wrong_forward_is_found_by_reference_only():
    case = CASES["SumForMean"]
    options = {"select": ("reference-across-ranks",), "ranks": 2}

    assert pb.check(case.target, case.inputs, **options).ok
    assert not pb.check(case.target, case.inputs, reference=case.reference, **options).ok


def test_inputs_that_forward_refuses_are_told():
    with pytest.raises(ExamplesError) as caught:
        pb.check(sound.RowLinear, lambda rank: (1, 2), ranks=2, profile="quick")

    assert "must accept the inputs it is checked with, on every rank" in str(caught.value)


def test_every_rule_is_shown_by_a_planted_fault():
    shown = {rule for case in GROUPS["planted"] for rule in case.rules}

    assert {registered.rule.name for registered in rank_rules()} - shown == set()


def test_both_conventions_are_there():
    assert {case.convention for case in sound.CASES} == {"sum", "pass"}
    assert len(sound.CASES) >= 20
    assert len(planted.CASES) >= 30


class SumsFewRows(Function):
    """Leaves the sum out where there are many rows."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g = g.clone()
        if len(g) < 5:
            dist.all_reduce(g)
        return g


def test_every_example_is_checked():
    few, many = [[(torch.ones(rows, 2) + r,) for r in range(2)] for rows in (3, 6)]
    options = {"ranks": 2, "placements": {"out": "shard"}, "profile": "quick"}

    assert pb.check(SumsFewRows, lambda rank: [few[rank]], **options).ok
    report = pb.check(SumsFewRows, lambda rank: [few[rank], many[rank]], **options)

    (finding,) = report.findings
    assert finding.rule.name == "missing-collective"
    assert "float32[6, 2]" in finding.inputs
    assert len(report.examples) == 2
    assert not any("right under" in note for note in report.notes)


def test_more_examples_than_are_checked_are_noted():
    five = [(torch.ones(2, 2),)] * 5
    report = pb.check(sound.AllReduceSum, lambda rank: five, ranks=2, select=("ranks-deadlock",))

    assert "of 5 examples the first 4 were checked across ranks" in report.notes


def test_complex_gradients_are_compared():
    assert checked("ComplexSquareSum", allow=("wrapped-differs",)).ok
    (finding,) = checked("ComplexWithoutConjugate", profile="quick").findings
    assert finding.rule.name == "wrong-across-ranks"


def test_outputs_that_reduce_leaves_undefined_do_not_count():
    report = checked("RootHasTheSum", profile="quick")

    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_case_is_judged_as_it_must_be(name, ranks):
    case = CASES[name]
    if ranks < case.least:
        pytest.skip("no fault on so few ranks")
    is_right, _, names = score(case, ranks, has_reference=True)

    assert is_right, names


@pytest.mark.parametrize("ranks", [0, 1, "2", 2.0, True])
def test_number_of_ranks_must_be_one(ranks):
    with pytest.raises(ExamplesError) as caught:
        pb.check(sound.AllReduceSum, (torch.ones(2),), ranks=ranks)

    assert "must be a whole number, two or more" in str(caught.value)
    assert str(caught.value).endswith(f"got:      {ranks!r}")


def of_one_rank(rank):
    if rank:
        raise KeyError("nothing for this rank")
    return (torch.ones(2),)


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (of_one_rank, "KeyError: 'nothing for this rank'"),
        (None, "none are given, and there is no `examples` on the class"),
        (
            lambda rank: [],
            "they must be a tuple of arguments or a list of such tuples, and not list",
        ),
        (lambda rank: (torch.ones(2),) * (1 + rank), "1 on rank 0, 2 on rank 1"),
        (lambda rank: [(torch.ones(2),)] * (1 + rank), "as many examples on every rank"),
    ],
)
def test_inputs_must_be_there_on_every_rank(inputs, told):
    with pytest.raises(ExamplesError) as caught:
        pb.check(sound.AllReduceSum, inputs, ranks=2)

    assert told in str(caught.value)
    assert "on every rank" in str(caught.value)


def test_function_of_ranks_alone_asks_for_them():
    with pytest.raises(ExamplesError) as caught:
        pb.check(sound.AllReduceSum, (torch.ones(2),))

    assert "give `ranks=2`" in str(caught.value)


class Scaled(Function):
    """Scales by the numbers of all ranks."""

    @staticmethod
    def forward(ctx, x, own):
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        ctx.total = sum(n for one in every for n in one)
        return x * ctx.total

    @staticmethod
    def backward(ctx, g):
        return g * ctx.total, None


@pytest.mark.parametrize("is_right", [True, False])
def test_reference_gets_the_numbers_of_every_rank(is_right):
    def reference(x, own):
        return [one * (sum(map(sum, own)) + (not is_right)) for one in x]

    report = pb.check(
        Scaled,
        lambda rank: (torch.ones(2) + rank, [1.0, rank]),
        ranks=2,
        reference=reference,
        select=("reference-across-ranks",),
    )

    assert report.ok == is_right
    assert not report.skips


def test_reference_is_not_given_what_cannot_be_sent():
    report = pb.check(
        Scaled,
        lambda rank: (torch.ones(2) + rank, range(rank + 1)),
        ranks=2,
        reference=lambda x, own: x,
        select=("reference-across-ranks",),
    )

    assert "`own` is " in report.skips[0].reason


def test_allowed_deadlock_is_not_told():
    report = checked("OnlyFirstSums", profile="quick", allow=("ranks-deadlock",))

    assert report.findings == ()
    (skip,) = [skip for skip in report.skips if skip.rule.name == "ranks-deadlock"]
    assert skip.reason.startswith("it is allowed: rank 0 waited in all_reduce(")


@pytest.fixture
def few_files():
    """All but nine of the files that this process may open are open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    for number in held[-9:]:
        os.close(number)
    yield
    for number in held[:-9]:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_want_of_open_files_is_told(few_files):
    with pytest.raises(ExamplesError) as caught:
        pb.check(sound.AllReduceSum, (torch.ones(2),), ranks=2)

    assert "must be checked by 2 processes" in str(caught.value)
    assert "Too many open files" in str(caught.value)
    assert "ask for fewer ranks" in str(caught.value)
