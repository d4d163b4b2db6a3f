"""Programs watched operator by operator: counted, filled, poisoned, and run in turns."""

import threading
import time

import pytest
import torch

import pullback as pb
from pullback.check.watching.dispatch import Fill, Work, in_turns, poisoned


def test_work_counts_numbers_and_products():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with Work() as work:
        (a @ b).t() + 1

    assert (work.operators, work.numbers, work.products) == (2, 16, 24)


def test_fresh_memory_is_filled():
    with Fill(7.0):
        fresh = torch.empty(3)

    assert fresh.tolist() == [7.0, 7.0, 7.0]


def test_poison_reaches_only_fresh_memory():
    with poisoned():
        fresh, zero = torch.empty(3), torch.zeros(3)

    assert bool(fresh.isnan().all())
    assert not bool(zero.isnan().any())


def test_threads_take_turns_by_operator():
    told = []

    def job(name):
        def work():
            x = torch.ones(1)
            for _ in range(3):
                told.append(name)
                x = x + 1

        return work

    in_turns([job("a"), job("b")])

    assert told == ["a", "b"] * 3


def test_first_job_begins_however_late_its_thread_is():
    told = []

    def job(name, seconds):
        def work():
            time.sleep(seconds)
            for _ in range(3):
                told.append(name)
                torch.ones(1)

        return work

    in_turns([job("a", 0.2), job("b", 0.1), job("c", 0)])

    assert told == ["a", "b", "c"] * 3


def test_error_of_a_job_is_its_result():
    def fails():
        raise ValueError("no")

    found = in_turns([fails, lambda: 3])

    assert str(found[0]) == "no"
    assert found[1] == 3


def test_lock_does_not_stop_the_turns():
    lock = threading.Lock()

    def job():
        x = torch.ones(1)
        with lock:
            for _ in range(50):
                x = x + 1
        return float(x)

    assert in_turns([job, job]) == [51.0, 51.0]


class Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x.sum() > 0, x.cos(), -x.sin())


@pytest.mark.slow
def test_function_that_compiles_itself_is_left_whole():
    """Dynamo, met under a dispatch mode, would refuse every `torch.cond` from then on."""
    report = pb.check(Chosen, (torch.tensor([1.0, 2.0], dtype=torch.float64).requires_grad_(),))

    assert report.ok, str(report)
    assert sum(skip.is_refusal for skip in report.skips) <= 3, str(report)
