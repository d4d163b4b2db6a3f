"""Targets are found by name, in modules, in files and among the ops."""

import sys

import pytest
import torch

import pullback as pb
from pullback.check.naming import load
from pullback.errors import TargetError
from tests.check import functions as f
from tests.check.subjects import normal


def test_name_in_module_is_found():
    assert load("tests.check.functions:HalfSquare") is f.HalfSquare


def test_op_is_found_with_overload():
    assert load("torch.ops.aten.add") is torch.ops.aten.add
    assert load("torch.ops.aten.add.Tensor") is torch.ops.aten.add.Tensor


@pytest.mark.parametrize("name", ["torch.ops.aten.no_such_op", "torch.ops.aten.add.NoSuch"])
def test_missing_op_is_refused(name):
    with pytest.raises(TargetError, match=r"E401 target: `torch\.ops") as caught:
        load(name)

    assert "fix:      load the library that registers it first (--load lib.so)" in str(caught.value)


def test_check_takes_a_name():
    report = pb.check("tests.check.functions:HalfSquare", (normal(3),), select=["wrong-factor"])

    assert report.subject == "HalfSquare"
    assert len(report.findings) == 1


def test_file_is_found_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "ops_by_file.py").write_text("value = 3\n", encoding="utf-8")

    assert load(f"{tmp_path}/ops_by_file.py:value") == 3
    sys.modules.pop("ops_by_file")
