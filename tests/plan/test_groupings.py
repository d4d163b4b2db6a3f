"""Groupings are all that can run, the cheapest are found, and a bound is said."""

import math
import random

import pytest

from pullback.plan.groupings import best_groupings, groupings_of


def chain(count):
    return [{n - 1} if n else set() for n in range(count)]


def partitions(numbers):
    """Every partition of a row of numbers."""
    if not numbers:
        yield ()
        return
    first, *rest = numbers
    for partition in partitions(rest):
        yield tuple(sorted([(first,), *partition]))
        for place, group in enumerate(partition):
            yield tuple(sorted([*partition[:place], (first, *group), *partition[place + 1 :]]))


def can_run(before, grouping):
    """Whether the groups can run one after the other."""
    left, done = list(grouping), set()
    while left:
        ready = [g for g in left if all(before[n] <= done | set(g) for n in g)]
        if not ready:
            return False
        left.remove(ready[0])
        done |= set(ready[0])
    return True


def possible(before):
    return {p for p in partitions(list(range(len(before)))) if can_run(before, p)}


def test_twelve_units_have_seventyeight_groups():
    space = groupings_of(chain(12))

    assert len(space.groups) == 78
    assert len(space.sets) == 13
    assert space.description == "all 78 consecutive groups"
    assert len(best_groupings(space, lambda group: 1.0, 5000)) == 2048


def test_best_of_chain_is_cheapest_of_all():
    space = groupings_of(chain(7))
    draw = random.Random(3)
    price = {group: draw.random() for group in space.groups}
    everything = possible(chain(7))

    ranked = best_groupings(space, price.__getitem__, 5)

    by_hand = sorted((sum(map(price.__getitem__, g)), g) for g in everything)[:5]
    assert [g for _, g in ranked] == [g for _, g in by_hand]
    assert [cost for cost, _ in ranked] == pytest.approx([cost for cost, _ in by_hand])


BRANCHES = {
    "two into one": [set(), set(), {0, 1}],
    "diamond": [set(), {0}, {0}, {1, 2}],
    "side by side": [set(), set(), set(), set()],
    "skip": [set(), {0}, {1}, {0, 2}, {1}],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_give_every_possible_grouping(name):
    before = BRANCHES[name]

    found = [g for _, g in best_groupings(groupings_of(before), lambda group: 1.0, 1000)]

    assert len(found) == len(set(found))
    assert set(found) == possible(before)


def test_square_sine_has_five_groupings():
    space = groupings_of(BRANCHES["two into one"])

    assert space.description == "all 7 convex groups"
    assert len(best_groupings(space, lambda group: 1.0, 100)) == 5


def test_diamond_group_around_another_is_none():
    assert (0, 3) not in groupings_of(BRANCHES["diamond"]).groups


def test_group_of_infinite_cost_is_avoided():
    space = groupings_of(chain(3))

    ranked = best_groupings(space, lambda g: math.inf if 1 in g and len(g) > 1 else 1.0, 10)

    assert [grouping for _, grouping in ranked] == [((0,), (1,), (2,))]


def test_too_many_branches_are_said():
    space = groupings_of([set()] * 12)

    assert len(space.groups) == 78
    assert space.description == (
        "78 groups of consecutive units (the program has too many branches to consider every group)"
    )
    assert max(map(len, space.groups)) == 12


def test_too_long_chain_is_bounded_and_said():
    space = groupings_of(chain(100))

    assert len(space.groups) <= 2048
    assert tuple(range(100)) in space.groups
    assert sorted({len(group) for group in space.groups}) == [*range(1, 24), 100]
    assert space.description.endswith("groups of consecutive units, of at most 23 or of all")
    assert best_groupings(space, lambda group: 1.0, 1) == [(1.0, (tuple(range(100)),))]


def test_ends_are_where_programs_begin_or_end():
    space = groupings_of(chain(3))

    assert sorted(space.ends()) == [(0,), (0, 1), (0, 1, 2), (1, 2), (2,)]


def test_large_ends_promise_most_in_a_chain():
    order = groupings_of(chain(4)).most_promising_first("abcd")

    assert order[:5] == [(0, 1, 2, 3), (0, 1, 2), (1, 2, 3), (0, 1), (2, 3)]
    assert sorted(order[-4:]) == [(0,), (1,), (2,), (3,)]


def test_repeated_steps_promise_most():
    order = groupings_of(chain(12)).most_promising_first("abc" * 4)

    # Four times two thirds of a node are more than four times a half, or twice five sixths.
    assert set(order[:4]) == {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)}
    assert order.index((0, 1)) < order.index((0, 1, 2, 3, 4, 5)) < order.index(tuple(range(12)))


def test_single_unit_is_its_only_group():
    assert groupings_of([set()]).groups == ((0,),)
