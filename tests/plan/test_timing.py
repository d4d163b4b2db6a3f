"""Rounds are whole and interleaved, ratios are paired, and the collector is as it was."""

import gc

import pytest

from pullback.plan.timing import interleave, ratio, typical


def test_each_round_times_every_task():
    seen, taken = [], {}

    def time(task):
        seen.append(task)
        return len(seen)

    interleave(time, {"a": 1, "b": 2, "c": 3}, taken, rounds=4)

    assert [len(row) for row in taken.values()] == [4, 4, 4]
    assert all(sorted(seen[n : n + 3]) == [1, 2, 3] for n in range(0, 12, 3))
    assert seen[:3] != seen[3:6] or seen[3:6] != seen[6:9]


def test_interrupted_round_is_dropped_whole():
    taken, calls = {}, []

    def time(task):
        calls.append(task)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        interleave(time, {"a": 1, "b": 2}, taken, rounds=9)

    assert taken == {"a": [1.0], "b": [1.0]}


def test_rounds_end_when_time_is_over():
    taken = {}

    interleave(lambda task: 1.0, {"a": 1}, taken, rounds=9, is_over=lambda: len(taken) > 0)

    assert taken == {"a": [1.0]}


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collector_is_left_as_it_was(was_enabled):
    states = []
    (gc.enable if was_enabled else gc.disable)()
    try:
        interleave(lambda task: states.append(gc.isenabled()) or 1.0, {"a": 1}, {}, rounds=1)

        assert gc.isenabled() == was_enabled
        assert states == [False]
    finally:
        gc.enable()


def test_ratio_is_taken_within_rounds():
    slow_machine = [1.0, 10.0, 1.0, 10.0, 1.0]
    other = [0.5 * second for second in slow_machine]

    assert ratio(slow_machine, other) == (2.0, 2.0, 2.0)


def test_rounds_of_one_alone_are_left_out():
    assert ratio([4.0], [2.0, 100.0]) == (2.0, 2.0, 2.0)


def test_interval_narrows_around_the_median():
    times = [1.0 + n / 100 for n in range(41)]

    middle, low, high = ratio(times, [1.0] * 41)

    assert middle == times[20]
    assert (low, high) == (times[14], times[26])


def test_few_rounds_give_the_whole_range():
    assert ratio([3.0, 1.0, 2.0], [1.0] * 3) == (2.0, 1.0, 3.0)


def test_disturbed_times_count_by_the_shortest():
    mine = [1.0, 9.0, 8.0, 1.1, 9.5]
    other = [2.0, 2.1, 9.0, 8.5, 9.9]
    middle, low, high = ratio(mine, other)

    assert middle == 0.5
    assert low <= middle <= high
    assert typical(mine) == 1.0
    assert typical([1.0, 1.2, 5.0]) == 1.2
