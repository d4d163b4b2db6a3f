"""A recording keeps a few real calls of each Function, small and safe to load."""

import os
import threading

import pytest
import torch

import pullback as pb
from pullback.check.recordings.recorded import Recording, load_recording
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


class Ignoring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ignored):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


def test_call_that_cannot_be_stored_is_named(tmp_path):
    with pb.recording() as rec:
        Ignoring.apply(X, 1.0)
        Ignoring.apply(X, object())
    saved = rec.save(tmp_path / "calls.pt")

    assert (saved.calls, saved.functions) == (1, 1)
    (lost,) = saved.lost
    assert lost.startswith(f"{__name__}:Ignoring(float64[2, 3], <object object>)")
    assert lost.endswith("an argument is a `object`")
    assert len(load_recording(tmp_path / "calls.pt").calls) == 1


def test_nothing_is_written_where_nothing_can_be_stored(tmp_path):
    with pb.recording() as rec:
        Ignoring.apply(X, lambda: 1.0)

    assert rec.save(tmp_path / "calls.pt").calls == 0
    assert not (tmp_path / "calls.pt").exists()


def test_file_is_written_whole_or_not_at_all(tmp_path):
    resource = pytest.importorskip("resource")
    with pb.recording() as rec:
        Scaled.apply(X, 1.0)
    rec.save(tmp_path / "calls.pt")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))  # half of it fits
    try:
        with pytest.raises(OSError, match="File too large"):  # as a full disk would say
            rec.save(tmp_path / "calls.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [path.name for path in tmp_path.iterdir()] == ["calls.pt"]
    assert len(load_recording(tmp_path / "calls.pt").calls) == 1


class Applied(torch.autograd.Function):
    """Calls a module; its parameters are arguments, too, as in memory-saving layers."""

    @staticmethod
    def forward(ctx, x, module, activation, *parameters):
        ctx.module, ctx.activation = module, activation
        ctx.save_for_backward(x)
        return activation(module(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        parameters = list(ctx.module.parameters())
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.activation(ctx.module(x))
        gradients = torch.autograd.grad(y, [x, *parameters], g)
        return gradients[0], None, None, *gradients[1:]


def test_module_function_and_parameters_come_back(tmp_path):
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softplus(beta=2.0))
    with pb.recording() as rec:
        Applied.apply(X.float(), layer, torch.tanh, *layer.parameters())
    saved = rec.save(tmp_path / "calls.pt")
    (call,) = load_recording(tmp_path / "calls.pt").calls
    x, module, activation, weight, bias = call.inputs

    assert saved.lost == ()
    assert activation is torch.tanh
    assert (weight is module[0].weight, bias is module[0].bias) == (True, True)
    assert torch.equal(module(x), layer(X.float()))
    report = pb.check(Applied, call.inputs, select=["wrong-gradient", "cut-gradient"])
    assert (report.ok, report.examples[0].count("float")) == (True, 3)


def test_module_with_hooks_is_named(tmp_path):
    layer = torch.nn.Linear(3, 2)
    layer.register_forward_hook(lambda *_: None)
    with pb.recording() as rec:
        Applied.apply(X.float(), layer, torch.tanh)

    (lost,) = rec.save(tmp_path / "calls.pt").lost
    assert lost.endswith("a module of class `Linear` has hooks")


HOSTILE = [
    ("os:system", [X.detach()], [0], "must be a Function or a custom op"),
    (f"{__name__}:X", [X.detach()], [0], "must be a Function or a custom op"),
    (
        f"{__name__}:Scaled",
        [X.detach(), {"pullback": "callable", "name": "os:system"}],
        [0],
        "must be of its own package",
    ),
    (
        f"{__name__}:Scaled",
        [X.detach(), {"pullback": "module", "name": f"{__name__}:Scaled"}],
        [0],
        "must be what it was",
    ),
    (f"{__name__}:Scaled", [X.detach(), {"pullback": "code"}], [0], "must be of known kinds"),
]


@pytest.mark.parametrize(("target", "args", "needs", "said"), HOSTILE)
def test_hostile_recording_calls_nothing(target, args, needs, said, tmp_path):
    call = {"target": target, "file": "", "args": tuple(args), "needs": needs}
    torch.save({"schema": "pullback.recording/2", "calls": [call]}, tmp_path / "calls.pt")
    reports = load_recording(tmp_path / "calls.pt").check(profile="quick")

    assert len(reports) == 0
    assert said in reports.errors[0]


@pytest.mark.parametrize("needs", [[9], [-1], [1]])
def test_gradient_of_no_tensor_is_refused(needs, tmp_path):
    call = {"target": "m:N", "file": "", "args": (X.detach(), "text"), "needs": needs}
    torch.save({"schema": "pullback.recording/2", "calls": [call]}, tmp_path / "calls.pt")

    with pytest.raises(RecordingError, match="requires grad, and is no tensor"):
        load_recording(tmp_path / "calls.pt")


# ---- ops ----


@torch.library.custom_op("recorded_tests::cube", mutates_args=())
def cube(x: torch.Tensor, power: int = 3) -> torch.Tensor:
    return x**power


@cube.register_fake
def _(x, power=3):
    return torch.empty_like(x)


cube.register_autograd(
    lambda ctx, g: (2 * g * ctx.saved_tensors[0] ** 2, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@pytest.mark.parametrize("call", [cube, torch.ops.recorded_tests.cube], ids=["def", "ops"])
def test_op_is_recorded_and_checked(call, tmp_path):
    with pb.recording() as rec:
        call(X)
        call(X.detach())  # nothing to differentiate
        torch.ops.aten.sin(X)
    rec.save(tmp_path / "calls.pt")
    back = load_recording(tmp_path / "calls.pt")

    assert [one.target for one in rec.calls] == [f"{__name__}:cube"]
    (report,) = back.check(select=["gradient"])
    assert [finding.rule.group for finding in report.findings] == ["gradient"]


def test_ops_are_not_watched_afterwards():
    kind = type(torch.ops.aten.sin.default)
    before = kind.__call__
    with pb.recording():
        assert kind.__call__ is not before

    assert kind.__call__ is before


# ---- time ----


def test_time_ends_the_check_and_names_what_is_left():
    with pb.recording() as rec:
        Scaled.apply(X, 3.0)
        Ours.apply(X, 3.0)
    seen = []
    reports = rec.check(profile="quick", seconds=1e-3, on_report=seen.append)

    assert seen == list(reports)
    assert [report.skips[0].reason.startswith("the time of") for report in reports] == [True]
    assert reports.errors == (f"1 not checked, the time of 0.001 s was over: {__name__}:Ours",)


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


def test_declarations_of_settings_add_to_those_of_the_class():
    class Straight(torch.autograd.Function):
        declares = {"surrogate": "x"}  # noqa: RUF012

        @staticmethod
        def forward(ctx, x):
            return x * x.sigmoid()

        @staticmethod
        def backward(ctx, g):
            return 1.5 * g

    with pb.recording() as rec:
        Straight.apply(X.clone().requires_grad_())
    declared = {"declares": {"nondeterministic": 1e-9}}

    assert rec.check(options_of=lambda _: declared, select=["gradient"], profile="quick").ok
