"""A recording keeps a few real calls of each Function, small and safe to load."""

import os
import threading

import pytest
import torch

import pullback as pb
from pullback.check.recorded import Recording, load_recording
from pullback.errors import RecordingError
from tests.check import functions as f
from tests.check.subjects import normal


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by=1.0):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, g):
        return g * ctx.by, None


class Ours(pb.Function):
    @staticmethod
    def forward(ctx, x, by=2.0):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, g):
        return {"x": g * ctx.by}


X = normal(2, 3)


@pytest.mark.parametrize("cls", [Scaled, Ours])
def test_call_is_kept_with_its_inputs(cls):
    with pb.recording() as rec:
        cls.apply(X, 3.0)

    (call,) = rec.calls
    assert call.target == f"{__name__}:{cls.__name__}"
    assert call.needs == {0}
    assert torch.equal(call.inputs[0], X)
    assert call.inputs[0].requires_grad
    assert call.inputs[1] == 3.0


def test_copy_is_taken_before_the_call():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    with pb.recording() as rec:
        Doubled.apply(torch.ones(2))

    assert rec.calls[0].args[0].tolist() == [1, 1]


def test_layout_is_kept():
    with pb.recording() as rec:
        Scaled.apply(X.t(), 1.0)

    assert rec.calls[0].args[0].stride() == (1, 3)


def test_keyword_arguments_are_put_in_order():
    with pb.recording() as rec:
        Ours.apply(X, by=5.0)

    assert rec.calls[0].args[1] == 5.0


def test_calls_of_one_kind_are_kept_once():
    with pb.recording() as rec:
        for _ in range(5):
            Scaled.apply(torch.randn(3), 1.0)
        Scaled.apply(torch.randn(3), 2.0)

    assert len(rec.calls) == 2
    assert rec.seen[f"{__name__}:Scaled"] == 6


def test_few_kinds_of_each_class_are_kept():
    with pb.recording(kinds=2) as rec:
        for size in (1, 2, 3, 4):
            Scaled.apply(torch.randn(size), 1.0)
            Ours.apply(torch.randn(size))

    assert [tuple(call.args[0].shape) for call in rec.calls] == [(1,), (1,), (2,), (2,)]


def test_bytes_are_limited_and_told():
    with pb.recording(limit=100) as rec:
        Scaled.apply(torch.zeros(20), 1.0)
        Scaled.apply(torch.zeros(30), 1.0)

    assert [call.size for call in rec.calls] == [80]
    assert "left out, 1 times" in str(rec)


def test_blocks_add_up():
    rec = Recording()
    with rec.watching():
        Scaled.apply(torch.zeros(1), 1.0)
    Scaled.apply(torch.zeros(2), 1.0)
    with rec.watching():
        Scaled.apply(torch.zeros(3), 1.0)

    assert [call.args[0].numel() for call in rec.calls] == [1, 3]


def test_only_this_thread_is_recorded():
    with pb.recording() as rec:
        thread = threading.Thread(target=lambda: Scaled.apply(torch.zeros(1), 1.0))
        thread.start()
        thread.join()

    assert rec.calls == []


def test_call_under_transform_is_not_kept():
    class Modern(Scaled):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, by):
            return x * by

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.by = inputs[1]

    with pb.recording() as rec:
        torch.func.vmap(lambda x: Modern.apply(x, 2.0))(torch.zeros(3))

    assert rec.calls == []


def test_program_does_not_notice_odd_arguments():
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, thing):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g, None

    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")

    with pb.recording() as rec:
        y = Odd.apply(torch.ones(1), Hostile())

    assert y.item() == 2
    assert len(rec.calls) == 1


def test_functions_of_torch_are_left_out():
    with pb.recording() as rec:
        torch.utils.checkpoint.checkpoint(torch.sin, X, use_reentrant=True)

    assert rec.calls == []


def test_check_uses_the_recorded_inputs():
    with pb.recording() as rec:
        f.HalfSquare.apply(X)
        f.Square.apply(X)
    reports = rec.check(select=["gradient"])

    assert [report.subject for report in reports] == ["HalfSquare", "Square"]
    assert reports[0].examples == ("x: float64[2, 3]",)
    assert [finding.subject for finding in reports.findings] == ["HalfSquare"]
    assert not reports.ok
    assert "Square: nothing found" in str(reports)


# ---- saved ----


def test_saved_recording_comes_back(tmp_path):
    with pb.recording() as rec:
        Scaled.apply(X.t(), 3.0)
    rec.save(tmp_path / "calls.pt")
    back = load_recording(tmp_path / "calls.pt")

    (call,) = back.calls
    assert (call.target, call.needs, call.args[1]) == (f"{__name__}:Scaled", {0}, 3.0)
    assert torch.equal(call.args[0], X.t())
    assert call.args[0].stride() == (1, 3)


def test_object_is_not_saved(tmp_path):
    with pb.recording() as rec:
        Scaled.apply(X, torch.tensor(1.0))
        rec.calls.append(type(rec.calls[0])("m:N", (object(),), frozenset()))
    rec.save(tmp_path / "calls.pt")

    assert len(load_recording(tmp_path / "calls.pt").calls) == 1


@pytest.mark.parametrize("content", [b"text", None], ids=["text", "other pickle"])
def test_other_file_is_refused(content, tmp_path):
    path = tmp_path / "calls.pt"
    if content is None:
        torch.save({"schema": "other"}, path)
    else:
        path.write_bytes(content)

    with pytest.raises(RecordingError, match=r"E406 recording: `.*calls.pt` must be a recording"):
        load_recording(path)


def test_hostile_pickle_runs_no_code(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made by a pickle"),)

    torch.save({"schema": "pullback.recording/1", "calls": [Hostile()]}, tmp_path / "calls.pt")

    with pytest.raises(RecordingError):
        load_recording(tmp_path / "calls.pt")
    assert not (tmp_path / "made by a pickle").exists()
