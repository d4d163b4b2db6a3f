"""Indices of examples on a GPU: those that nobody has given are tried on a CPU first."""

import pytest
import torch

from pullback.capture import indices
from pullback.check.subject import subject as subjects
from pullback.check.subject.subject import ForwardRefusedError
from tests.check.subjects import normal, subject


@pytest.fixture
def calls(monkeypatch):
    """Integers count as if they were on a GPU; the list of what the function was called with."""

    def has(args):
        return any(indices.is_index(x) for x in args if isinstance(x, torch.Tensor))

    monkeypatch.setattr(indices, "has_indices_elsewhere", has)
    monkeypatch.setattr(subjects, "has_indices_elsewhere", has)
    return []


def test_indices_as_given_are_not_tried(calls):
    def pick(table, index):
        calls.append(index.tolist())
        return table[index]

    one = subject(pick, normal(4), torch.tensor([3, 0]))
    one.run(one.given)
    one.run(one.given.double())

    assert calls == [[3, 0]] * len(calls)
    count = len(calls)
    one.run(one.given.put(0, normal(4, seed=1).detach(), "other values"))

    assert len(calls) == count + 1


def test_other_indices_are_tried_once(calls):
    def pick(table, index):
        calls.append(index.tolist())
        return table[index]

    one = subject(pick, normal(4), torch.tensor([3, 0]))
    other = one.given.put(1, torch.tensor([1, 2]), "other indices")
    one.run(other)
    one.run(other)

    assert calls.count([1, 2]) == 3  # tried, and two runs


@pytest.mark.parametrize("wrong", [[4, 0], [0, -5]])
def test_indices_out_of_range_are_refused(wrong, calls):
    def pick(table, index):
        calls.append(torch.is_grad_enabled())
        return table[index]

    one = subject(pick, normal(4), torch.tensor([3, 0]))
    one.run(one.given)
    calls.clear()
    wide = one.given.put(1, torch.tensor(wrong), "out of range")

    with pytest.raises(ForwardRefusedError):
        one.run(wide)
    assert not one.accepts(wide)
    assert not any(calls)  # it was tried, but never run as a check runs it


def test_sizes_that_indices_do_not_fit_are_refused(calls):
    one = subject(lambda table, index: table[index], normal(4), torch.tensor([3, 0]))

    assert not one.accepts(one.given.put(0, normal(3).detach(), "fewer rows"))
