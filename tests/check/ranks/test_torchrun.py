"""Under torchrun: the group that is there, recordings, and the audit of tests."""

import os
import subprocess
import sys

import pytest

from pullback.check.recordings.recorded import load_recording

pytestmark = pytest.mark.slow

FUNCTIONS = """
import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Right(Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g, None


class Wrong(Right):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return 2 * g, None


def own():
    return torch.arange(6.0).view(2, 3) + 10 * dist.get_rank()
"""

PROGRAM = """
import sys
import pullback as pb
from functions import *

dist.init_process_group("gloo")
for one in (Right, Wrong):
    report = pb.check(one, lambda rank: (own(), dist.group.WORLD), ranks=2, profile="quick")
    names = [f.rule.name for f in report.findings]
    sys.stdout.write(f"{dist.get_rank()} {one.__name__} {names}\\n")
    sys.stdout.flush()
total = own()
dist.all_reduce(total)  # the group is the program's again
assert total[0, 0] == 10, total
dist.destroy_process_group()
"""

FAILING = """
import sys
import pullback as pb
from functions import *


class WaitsInAGroup(Right):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return Right.apply(g, ctx.group) if dist.get_rank() == 0 else g, None

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return Right.forward(ctx, x, group)


class Leaves(Right):
    @staticmethod
    def forward(ctx, x, group):
        if dist.get_rank() == 1:
            sys.exit(0)
        return Right.forward(ctx, x, group)


def inputs(rank):
    return own(), dist.new_group([0, 1])


def unlike(rank):
    if rank == 1:
        raise ValueError("none here")
    return own(), dist.group.WORLD


for one, given in ((WaitsInAGroup, inputs), (Leaves, inputs), (Right, unlike)):
    try:
        report = pb.check(one, given, ranks=2, profile="quick")
        told = [f.rule.name for f in report.findings]
    except pb.PullbackError as error:
        told = error.code
    sys.stdout.write(f"{one.__name__} {told}\\n")
    sys.stdout.flush()
"""

TRAINING = """
from functions import *

dist.init_process_group("gloo")
group = dist.new_group([0, 1])
x = own().requires_grad_()
(Right.apply(x, group) + Wrong.apply(x, group)).sum().backward()
dist.destroy_process_group()
"""

TESTS = """
from functions import *


def test_both():
    dist.init_process_group("gloo")
    x = own().requires_grad_()
    (Right.apply(x, dist.group.WORLD) + Wrong.apply(x, dist.group.WORLD)).sum().backward()
    dist.destroy_process_group()
"""

RUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def folder(tmp_path):
    files = {"functions": FUNCTIONS, "program": PROGRAM, "training": TRAINING, "test_them": TESTS}
    files["failing"] = FAILING
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def run(folder, *command):
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    return found


def test_existing_group_is_used(folder):
    found = run(folder, *RUN, "program.py")

    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.split("\n")) == [
        "",
        "0 Right []",
        "0 Wrong ['rank-factor']",
        "1 Right []",
        "1 Wrong ['rank-factor']",
    ]


def test_ranks_that_fail_end_with_a_report(folder):
    found = run(folder, *RUN, "failing.py")

    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.split("\n")) == [
        "",
        *["Leaves ['fails-on-ranks']"] * 2,
        *["Right E403"] * 2,
        *["WaitsInAGroup ['ranks-deadlock']"] * 2,
    ]


def test_every_rank_is_recorded_into_one_file(folder):
    launch = ["torchrun", "--standalone", "--nproc-per-node", "2", "training.py"]
    recorded = run(folder, sys.executable, "-m", "pullback", "record", "-o", "r.pt", "--", *launch)
    checked = run(
        folder,
        *(sys.executable, "-m", "pullback", "check", "--inputs", "r.pt", "--ranks", "2"),
        *("--profile", "quick"),
    )

    assert recorded.returncode == 0, recorded.stderr
    whole = load_recording(folder / "r.pt")
    assert whole.ranks == 2
    assert sorted((call.target, call.rank) for call in whole.calls) == [
        ("functions:Right", 0),
        ("functions:Right", 1),
        ("functions:Wrong", 0),
        ("functions:Wrong", 1),
    ]
    assert checked.returncode == 1
    assert "2 Functions checked, 1 with findings: Wrong." in checked.stdout


def test_tests_are_audited_across_ranks(folder):
    found = run(
        folder,
        *(*RUN, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("--pullback", "--pullback-profile", "quick", "test_them.py"),
    )

    assert "R104 rank-factor" in found.stdout
    assert "2 Functions audited, 1 with findings" in found.stdout
    assert "0 Functions audited" not in found.stdout
