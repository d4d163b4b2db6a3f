"""Groups cost what they cost alone; what can be no node has a reason and no price as one."""

import math

import pytest

from pullback.plan.groupings import groupings_of
from pullback.plan.prices import price_groups
from pullback.plan.sized_program import sized_program
from tests.plan.fakes import FakeMeter, chain, doubles_in_place, leaf


def priced(program, meter, *, weights=(1.0, 0.0), is_over=lambda: False):
    case = sized_program(program, (leaf(),), 8)
    return price_groups(
        case,
        groupings_of(case.waits),
        ("eager", "everything"),
        meter=meter,
        weights=weights,
        is_over=is_over,
        report=lambda text: None,
    )


def test_cost_leaves_out_the_asking():
    prices = priced(chain, FakeMeter({"Growth": 4.0, "SquareSine": 2.5}))

    assert prices.costs == {
        (0,): 1.0,
        (1,): 1.0,
        (2,): 4.0,
        (0, 1): 2.5,
        (1, 2): 1.0,
        (0, 1, 2): 1.0,
    }
    assert prices.nodes == {(0, 1), (1, 2), (0, 1, 2)}


def test_bytes_cost_what_they_weigh():
    meter = FakeMeter(saved={"SquareSine": 6, "Square": 4})

    prices = priced(chain, meter, weights=(0.0, 0.5))

    assert prices.cost((0, 1)) == 3.0
    assert prices.cost((0,)) == 2.0


def test_single_unit_is_a_node_where_that_is_cheaper():
    class CheapNodes(FakeMeter):
        def time(self, task):
            return FakeMeter.time(self, task) - (0.0 if task.function.__name__ == "unit" else 0.4)

    assert {(0,), (1,), (2,)} <= priced(chain, CheapNodes()).nodes


def test_group_across_a_change_has_no_price():
    prices = priced(doubles_in_place, FakeMeter())

    assert prices.cost((1, 2)) == math.inf
    assert prices.refused[1, 2] == "a change in place must stay inside a group"
    assert (0, 1, 2) in prices.nodes
    assert prices.cost((1,)) < math.inf


def test_spent_time_leaves_groups_unpriced():
    prices = priced(chain, FakeMeter(), is_over=lambda: True)

    assert prices.left == 6
    assert prices.nodes == set()
    assert sorted(prices.costs) == [(0,), (1,), (2,)]


def test_interrupt_is_not_taken_for_a_refusal():
    class Stops(FakeMeter):
        def time(self, task):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        priced(chain, Stops())
