"""A result is kept where a second check would say the same, and what it depends on can be told."""

from dataclasses import replace

import pytest
import torch

from pullback.check.findings.finding import Finding, Skip
from pullback.check.processes.crash import RULE as CRASH
from pullback.check.target.target import target_of
from pullback.cli.identity import identity_of
from pullback.cli.kept import Unkeepable, _is_lasting, _value, recalled
from pullback.cli.settings import Chosen
from pullback.judge.example import example_of
from tests.check import functions as f
from tests.report.reports import CUT, LAYOUT, REPORT, SOUND

LATE = replace(SOUND, skips=(Skip.refused(LAYOUT, "the time was up"),))
LOST = replace(SOUND, findings=(Finding(CRASH, "while it was tried"),))


@pytest.mark.parametrize("report", [REPORT, SOUND], ids=["findings", "sound"])
def test_result_that_comes_again_is_lasting(report):
    assert _is_lasting(report)


@pytest.mark.parametrize("report", [CUT, LATE, LOST], ids=["interrupted", "late", "lost"])
def test_result_of_chance_is_not(report):
    assert not _is_lasting(report)


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([1.0, 3.0]),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([1.0, 0.0, 2.0])[::2],
        [torch.tensor([1.0, 2.0])],
        1.0,
    ],
    ids=["number", "dtype", "shape", "layout", "list", "no tensor"],
)
def test_other_argument_is_told_apart(other):
    assert _value(other) != _value(torch.tensor([1.0, 2.0]))
    assert _value(torch.tensor([1.0, 2.0])) == _value(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    "value", [object(), torch.nn.Linear(1, 1), lambda x: x], ids=["object", "module", "lambda"]
)
def test_argument_that_cannot_be_told_is_not_kept(value):
    with pytest.raises(Unkeepable):
        _value(value)


def test_target_without_source_is_checked_each_time(tmp_path):
    target = target_of("torch.ops.aten.sin")
    who = identity_of("torch.ops.aten.sin", target, tmp_path)
    examples = [example_of((torch.ones(2),))]
    calls = []
    for _ in range(2):
        report, was_kept = recalled(
            target, who, examples, Chosen(), lambda: calls.append(1) or SOUND
        )
        assert (report, was_kept) == (SOUND, False)

    assert len(calls) == 2


def test_damaged_result_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    target = target_of(f.HalfSquare)
    who = identity_of("f:HalfSquare", target, tmp_path)
    given = (target, who, [example_of((torch.ones(2),))], Chosen(), lambda: SOUND)
    first = recalled(*given)[1]
    second = recalled(*given)[1]
    for path in tmp_path.rglob("manifest"):
        path.write_bytes(b"damaged")

    assert (first, second) == (False, True)
    assert recalled(*given) == (SOUND, False)


@torch.library.custom_op("pullback_kept::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("pullback_kept::kernelled", mutates_args=())
def kernelled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


kernelled.register_kernel("cuda")(lambda x: x * 2)


def test_op_made_in_python_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    target = target_of(doubled)
    who = identity_of("doubled", target, tmp_path)
    examples = [example_of((torch.ones(2),))]
    assert who.file.endswith("tests/cli/test_kept.py")
    was_kept = [recalled(target, who, examples, Chosen(), lambda: SOUND)[1] for _ in range(2)]
    assert was_kept == [False, True]


def test_op_with_a_kernel_from_elsewhere_is_checked_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    target = target_of(kernelled)
    who = identity_of("kernelled", target, tmp_path)
    examples = [example_of((torch.ones(2),))]
    was_kept = [recalled(target, who, examples, Chosen(), lambda: SOUND)[1] for _ in range(2)]
    assert was_kept == [False, False]
