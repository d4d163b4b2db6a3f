"""Findings across ranks as programs of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pullback as pb
from benchmarks.faults.ranks.score import GROUPS
from pullback.check.ranks import programs
from pullback.check.ranks.spread import layout_of

CASES = {case.name: case for cases in GROUPS.values() for case in cases}
ROOT = Path(__file__).parents[3]


def program_of(name, ranks=2):
    case = CASES[name]
    placements = dict(case.placements) or None
    options = {"ranks": ranks, "placements": placements, "profile": "quick"}
    return pb.check(case.target, case.inputs, **options).findings[0].repro


def test_program_has_the_numbers_of_its_finding():
    case = CASES["ColumnWithoutSum"]
    report = pb.check(
        case.target, case.inputs, ranks=2, placements=dict(case.placements), profile="quick"
    )

    (finding,) = report.findings
    lines = finding.repro.splitlines()
    placed = "x: replicate, w: shard, out: shard"
    assert lines[0] == f"# torchrun --nproc-per-node 2 repro.py; with {placed}"
    assert "from benchmarks.faults.ranks.planted import ColumnWithoutSum" in lines
    assert "import pullback" not in finding.repro
    assert "step = 0.001 * along * (rank in (0, 1))" in lines  # it is one value


def test_large_inputs_are_drawn():
    case = CASES["SumOfMeans"]

    def inputs(rank):
        return (torch.randn(8, 9) * (1 + rank),)

    placements = dict(case.placements)
    report = pb.check(case.target, inputs, ranks=2, placements=placements, profile="quick")

    assert "torch.randn((8, 9), dtype=torch.float64, generator=" in report.findings[0].repro


def test_group_is_that_of_the_rank_among_its_own():
    text = programs._group_by_rank([(0, 1), (0, 1), (2, 3), (2, 3)])
    groups = {(0, 1): "first", (2, 3): "second"}

    found = [eval(text, {"groups": groups, "rank": rank}) for rank in range(4)]

    assert found == ["first", "first", "second", "second"]
    assert programs._group_by_rank([(0, 1), (0, 1)]) == "dist.group.WORLD"


def test_dtensor_is_spread_as_it_was_given():
    lines = program_of("SumOfPartsDivided").splitlines()

    assert "mesh = DeviceMesh('cpu', [0, 1])" in lines
    assert any(line.startswith("x = spread(") and line.endswith("[Shard(0)])") for line in lines)
    assert "    total = (out.full_tensor() * g).sum() * (rank in (0,))" in lines


def test_part_that_is_said_to_be_whole_is_compared():
    text = program_of("SumSaidToBeWhole")

    assert "part = out.to_local().detach().flatten()  # said to be one on all ranks" in text


def test_placement_that_has_no_code_has_no_program():
    spread = SimpleNamespace(placements=[object()])

    assert layout_of(spread) is None


def run(folder, text, ranks):
    program = folder / "repro.py"
    program.write_text(
        text.replace('sys.path.insert(0, ".")', f"sys.path.insert(0, {str(ROOT)!r})")
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launch, "--nproc-per-node", str(ranks), str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "ranks"),
    [
        ("ColumnWithoutSum", "ColumnLinear", 2),
        ("RingNotReturned", "RingShift", 2),
        ("HalfSummedByAll", "", 4),
        ("SumOfPartsDivided", "SumOfParts", 4),
        ("SumSaidToBeWhole", "", 2),
        ("local_product_unsaid", "local_product", 4),
    ],
)
def test_program_fails_under_torchrun(tmp_path, name, right, ranks):
    text = program_of(name, ranks)

    failed = run(tmp_path, text, ranks)
    assert failed.returncode != 0
    assert "AssertionError: got=tensor(" in failed.stderr
    if right:
        repaired = run(
            tmp_path,
            re.sub(rf"planted(?= import {name}\b)", "sound", text).replace(name, right),
            ranks,
        )
        assert repaired.returncode == 0, repaired.stderr
