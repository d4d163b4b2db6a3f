"""What serves where follows from what was measured at the sizes on both sides."""

from dataclasses import replace

from pullback.plan.measurements import AS_WRITTEN
from tests.plan.fakes import made_up


def test_border_is_where_costs_are_equal():
    evidence = made_up()

    assert [one.how for one in evidence.chosen] == ["combined", "hybrid"]
    assert evidence.borders == (1000,)  # 0.5 times as slow at 100, 2 times at 10000


def test_equal_choices_have_no_border():
    small, large = made_up().sized
    evidence = made_up(sized=(small, replace(large, chosen=small.chosen)))

    assert evidence.chosen == (small.chosen,)
    assert evidence.borders == ()


def test_unmeasured_choice_has_its_border_in_the_middle():
    small, large = made_up().sized
    evidence = made_up(sized=(replace(small, rows=(), chosen=AS_WRITTEN), large))

    assert evidence.borders == (1000,)


def test_row_of_the_choice_is_found():
    small, _ = made_up().sized

    assert small.row.label == "[Square Sine Growth]"
    assert replace(small, rows=()).row is None
