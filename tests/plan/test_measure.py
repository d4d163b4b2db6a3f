"""A task runs forward and backward; a meter counts what one call costs."""

import contextlib

import torch
from torch.autograd import profiler_legacy

from pullback.plan.measure import Meter, Task, measuring, peak_bytes, saved_bytes
from tests.plan.fakes import leaf

CPU = torch.device("cpu")


def test_task_gives_the_gradients_of_leaves():
    x, y = leaf(), leaf()

    (of_x, of_y) = Task(lambda x: x * 3, (x,), (x, y))()

    drawn = torch.randn(8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(of_x, 3 * drawn)
    assert of_y is None
    assert x.grad is None


def test_task_takes_outputs_of_any_form():
    x = leaf()
    forms = [
        lambda x: (x * 3,),
        lambda x: {"a": x * 3, "b": 2},
        lambda x: (x * 3, None, x.argmax()),
        lambda x: [(x * 3,), x.detach()],
    ]

    expected = Task(lambda x: x * 3, (x,), (x,))()[0]

    assert all(torch.equal(Task(form, (x,), (x,))()[0], expected) for form in forms)


def test_task_without_gradients_runs_forward():
    calls = []

    assert Task(lambda x: calls.append(x) or x, (torch.ones(2),), ())() == ()
    assert len(calls) == 1


def test_program_that_changes_its_input_gets_copies():
    x = leaf()
    task = Task(lambda x: x.mul_(2), (x,), (x,), changes_inputs=True)
    before = x.detach().clone()

    task()
    (gradient,) = task()

    assert torch.equal(x, before)
    assert torch.equal(gradient, 2 * task.cotangents[0])


def test_time_is_that_of_one_call():
    meter = Meter(CPU)
    now = [0.0]
    meter._clock = lambda: now[0]

    def slow(x):
        now[0] += 0.01
        return x * 2

    assert round(meter.time(Task(slow, (leaf(),), ())), 9) == 0.01


def test_fast_call_is_made_often_in_a_round():
    meter = Meter(CPU)
    now, calls = [0.0], []
    meter._clock = lambda: now[0]

    def fast(x):
        now[0] += 1e-5
        calls.append(x)
        return x

    task = Task(fast, (leaf(),), ())
    meter.time(task)
    calls.clear()

    assert round(meter.time(task), 9) == 1e-5
    assert len(calls) == task.calls >= 190


def test_gradients_are_recorded_whatever_is_around():
    with torch.no_grad(), measuring():
        assert leaf().sin().requires_grad
    with torch.inference_mode(), measuring():
        assert leaf().sin().requires_grad


# ---- memory ----

CPU = torch.device("cpu")


def test_inputs_are_kept_for_nothing():
    x = torch.ones(100, requires_grad=True)

    assert saved_bytes(lambda: x.sin(), []) == 400
    assert saved_bytes(lambda: x.sin(), [x]) == 0


def test_memory_kept_twice_counts_once():
    x = torch.ones(100, requires_grad=True)

    def run():
        y = x.exp()  # kept by exp, and twice by the product
        return y * y

    assert saved_bytes(run, [x]) == 400


def test_view_keeps_its_whole_memory():
    x = torch.ones(100, requires_grad=True)

    assert saved_bytes(lambda: (x * 1)[:10].sin(), [x]) == 400


def test_peak_counts_what_lives_together():
    def together():
        a, b = torch.empty(1000), torch.empty(500)
        return a.dim() + b.dim()

    def in_turn():
        torch.empty(1000)
        torch.empty(500)

    assert peak_bytes(together, CPU) == 6000
    assert peak_bytes(in_turn, CPU) == 4000


def test_unknown_device_has_no_peak():
    assert peak_bytes(lambda: None, torch.device("meta")) is None


def test_torch_without_old_profiler_has_none(monkeypatch):
    monkeypatch.delattr(profiler_legacy, "_enable_profiler_legacy")

    assert peak_bytes(lambda: None, CPU) is None


def test_profiler_is_off_after_an_error():
    def fails():
        raise ZeroDivisionError

    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            peak_bytes(fails, CPU)

    assert peak_bytes(lambda: torch.empty(10), CPU) == 40
