"""A task runs forward and backward; a meter counts what one call costs."""

import torch

from pullback.plan.measure import Meter, Task, measuring
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
