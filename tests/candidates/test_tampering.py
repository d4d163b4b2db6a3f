"""Functions that were replaced are named; those that PyTorch replaces itself are not."""

import time

import torch

from pullback.candidates import timing
from pullback.candidates.tampering import (
    changed_settings,
    known_functions,
    replaced_names,
    torch_settings,
)


def test_nothing_is_replaced_by_ordinary_work():
    before = known_functions()
    torch.compile(torch.sin)
    torch.randn(3).sin().sum()

    assert replaced_names(before) == []


def test_replaced_functions_are_named(monkeypatch):
    before = known_functions()
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(torch, "allclose", lambda *args: True)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *args: 0.0)

    names = replaced_names(before)

    assert "time.perf_counter" in names
    assert "torch.allclose" in names
    assert any(name.endswith("Event.elapsed_time") for name in names)


def test_replaced_methods_of_tensors_are_named(monkeypatch):
    before = known_functions()
    monkeypatch.setattr(torch.Tensor, "softmax", lambda self, dim: self)
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: self, raising=False)

    assert {"torch.Tensor.softmax", "torch.Tensor.__matmul__"} <= set(replaced_names(before))


def test_new_methods_of_tensors_are_nobodys_affair(monkeypatch):
    before = known_functions()
    monkeypatch.setattr(torch.Tensor, "my_own", lambda self: self, raising=False)

    assert replaced_names(before) == []


def test_another_function_of_torch_is_no_excuse(monkeypatch):
    before = known_functions()
    monkeypatch.setattr(torch, "softmax", torch.sigmoid)

    assert replaced_names(before) == ["torch.softmax"]


def test_what_was_taken_away_is_named(monkeypatch):
    before = known_functions()
    monkeypatch.delattr(torch, "allclose")

    assert replaced_names(before) == ["torch.allclose"]


def test_the_judge_itself_is_watched(monkeypatch):
    import pullback.candidates.calling as calling

    before = known_functions()
    monkeypatch.setattr(calling, "forward", lambda *args: None)

    assert "pullback.candidates.calling.forward" in replaced_names(before)


def test_changed_settings_are_told():
    before = torch_settings()
    torch.set_default_dtype(torch.float64)
    try:
        assert changed_settings(before) == [
            "torch.get_default_dtype(): torch.float32, now torch.float64"
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    assert changed_settings(before) == []


def test_replaced_code_of_a_function_is_named(monkeypatch):
    def other(*args, **kwargs):
        return 0.0

    before = known_functions()
    monkeypatch.setattr(timing.speedup, "__code__", other.__code__)

    assert "pullback.candidates.timing.speedup" in replaced_names(before)
