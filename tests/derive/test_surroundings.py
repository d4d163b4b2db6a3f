"""What a function reads from around it is listed, or said to be unknown."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F

from pullback.derive.surroundings import surroundings_of

GAIN = 2.0
TABLE = torch.arange(3.0)
ROWS = [1.0, 2.0]


class Settings:
    gain = 2.0


def simple(x):
    return F.relu(x) * math.pi


def with_gain(x):
    return x * GAIN


def through_another(x):
    return with_gain(x) + 1


def with_inner(x):
    return [y * GAIN for y in x]


def with_table(x):
    return x * TABLE


def with_default(x, gain=(1.0, 2.0)):
    return x * gain[0]


def with_attribute(x):
    return x * Settings.gain


def with_rows(x):
    return x * ROWS[0]


def with_import(x):
    import operator

    return operator.neg(x)


def with_store(x):
    global GAIN
    GAIN = 3.0
    return x


def with_rows_by_default(x, rows=ROWS):
    return x * rows[0]


CLOSED = [simple, with_gain, through_another, with_inner, with_table, with_default]
OPEN = [with_attribute, with_rows, with_import, with_store, with_rows_by_default]


@pytest.mark.parametrize("function", CLOSED, ids=lambda f: f.__name__)
def test_fixed_things_hold(function):
    assert surroundings_of(function).hold()


@pytest.mark.parametrize("function", OPEN, ids=lambda f: f.__name__)
def test_things_that_change_unseen_are_unknown(function):
    assert surroundings_of(function) is None


def test_callable_that_is_no_function_is_unknown():
    assert surroundings_of(functools.partial(simple)) is None


@pytest.mark.parametrize("function", [with_gain, through_another, with_inner])
def test_rebound_global_is_noticed(function, monkeypatch):
    around = surroundings_of(function)
    monkeypatch.setitem(globals(), "GAIN", 5.0)

    assert not around.hold()


def test_rebound_function_is_noticed(monkeypatch):
    around = surroundings_of(through_another)
    monkeypatch.setitem(globals(), "with_gain", simple)

    assert not around.hold()


def test_rebound_cell_is_noticed():
    gain = 2.0

    def closure(x):
        return x * gain

    around = surroundings_of(closure)
    before = around.hold()
    gain = 3.0

    assert before
    assert not around.hold()


def test_empty_cell_is_unknown():
    def closure(x):
        return later(x)

    got = surroundings_of(closure)
    later = simple

    assert got is None
    assert later is simple


def test_default_dtype_is_part_of_it():
    around = surroundings_of(simple)
    torch.set_default_dtype(torch.float64)
    try:
        assert not around.hold()
    finally:
        torch.set_default_dtype(torch.float32)


def test_function_that_calls_itself_ends():
    assert surroundings_of(repeated).hold()


def repeated(x, times=3):
    return x if times == 0 else repeated(x, times - 1)
