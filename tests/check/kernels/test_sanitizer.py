"""What compute-sanitizer says becomes findings with kernel and line."""

import shutil

import pytest
import torch

import pullback as pb
from pullback.check.kernels import sanitizer
from tests.check import functions as f

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at square_unmasked+0x1d0 in script.py:14
=========     by thread (63,0,0) in block (4,0,0)
=========     Access at 0x7f2e4b200404 is out of bounds
=========         Host Frame: [0x5f0a32]
========= Invalid __global__ read of size 4 bytes
=========     at 0x170 in other.cu:6:kernel
=========     by thread (0,0,0) in block (0,0,0)
========= Invalid __global__ read of size 4 bytes
=========     at void at::native::copy_kernel(float*)+0x170 in Copy.cu:6
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= Error: Race reported between Write access at sums+0x90 in sums.py:9
=========     and Read access at sums+0x80 in sums.py:8 [4 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_kernels_and_lines_are_read():
    one, two, three = sanitizer.reports_in(MEMCHECK, "memcheck")

    assert (one.kernel, one.place) == ("square_unmasked", "script.py:14")
    assert one.what == "Invalid __global__ write of size 4 bytes"
    assert (two.kernel, two.place) == ("kernel", "other.cu:6")
    assert [alarm.is_theirs for alarm in (one, two, three)] == [True, True, False]


def test_race_is_one_alarm():
    (alarm,) = sanitizer.reports_in(RACECHECK, "racecheck")

    assert (alarm.kernel, alarm.place) == ("sums", "sums.py:9")
    assert alarm.what == "Race reported between Write access"


def test_absent_sanitizer_is_noted(monkeypatch):
    monkeypatch.setattr(sanitizer, "sanitizer", lambda: "")

    report = pb.check(f.Square, (torch.ones(3),), select=["wrong-factor"], sanitize=True)

    assert report.ok
    assert "compute-sanitizer was not found" in report.notes[-1]


def test_alarm_is_a_finding(monkeypatch):
    monkeypatch.setattr(sanitizer, "sanitizer", lambda: "there")
    monkeypatch.setattr(
        sanitizer, "_said", lambda program, tool, path: MEMCHECK if tool == "memcheck" else ""
    )

    report = pb.check(f.Square, (torch.ones(3),), select=["wrong-factor"], sanitize=True)

    assert [finding.rule.name for finding in report.findings] == ["sanitizer-alarm"] * 2
    assert report.findings[0].at == "kernel `square_unmasked` (script.py:14)"


@pytest.mark.needs_cuda
@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="needs compute-sanitizer")
def test_stray_store_is_named_by_the_sanitizer():
    from benchmarks.faults.kernels.elementwise import Unmasked

    x = torch.randn(3, 5, device="cuda", requires_grad=True)

    report = pb.check(Unmasked, (x,), select=["wrong-factor"], sanitize=True)

    (found,) = [one for one in report.findings if one.rule.name == "sanitizer-alarm"]
    assert "square_unmasked" in found.at
    assert "elementwise.py" in found.at
