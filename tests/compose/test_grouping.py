"""Groupings: which are possible, in which order they run, and what goes in and out."""

import pytest
import torch

from pullback.capture.units import record
from pullback.compose.grouping import crossings, groups_of, is_in_order, waits
from pullback.errors import GroupingError
from tests.compose.as_written import intervals, partitions


def diamond(x):
    a = x.sin()
    return a.exp() * a.tanh()


@pytest.fixture
def units():
    return record(diamond, torch.ones(3))


def test_units_wait_for_their_inputs(units):
    assert waits(units) == [set(), {0}, {0}, {1, 2}]


def test_units_left_out_stand_alone(units):
    assert groups_of(units, [(1, 3)]) == ((0,), (2,), (1, 3))


def test_branches_may_share_a_group(units):
    assert groups_of(units, [(2, 1)]) == ((0,), (1, 2), (3,))


def test_surrounding_group_is_refused(units):
    with pytest.raises(GroupingError, match=r"\[0, 3\] and \[1\]"):
        groups_of(units, [(0, 3)])


def test_order_of_the_program_is_seen(units):
    assert is_in_order(groups_of(units, [(0, 1), (2, 3)]))
    assert not is_in_order(groups_of(units, [(1, 3)]))


def test_drawing_units_keep_their_order(units):
    assert groups_of(units, [(1, 3)], drawing=[2]) == ((0,), (2,), (1, 3))
    with pytest.raises(GroupingError):
        groups_of(units, [(1, 3)], drawing=[1, 2])


def test_reader_runs_before_the_change():
    def program(x):
        y = x * 2
        read = y.sin()
        y.add_(1)
        return read + y

    assert waits(record(program, torch.ones(3)))[2] == {0, 1}


def test_change_inside_a_group_crosses_nothing():
    def program(x):
        return x.sin().mul_(2)

    units = record(program, torch.ones(3))

    assert crossings(units, ((0, 1),)) == []
    assert [one.unit.name for one in crossings(units, ((0,), (1,)))] == ["mul_"]


@pytest.mark.parametrize(("count", "cuts", "all_"), [(1, 1, 1), (3, 4, 5), (4, 8, 15)])
def test_groupings_of_the_tests_are_complete(count, cuts, all_):
    assert len({tuple(g) for g in intervals(count)}) == cuts
    assert len({tuple(sorted(g)) for g in partitions(list(range(count)))}) == all_
