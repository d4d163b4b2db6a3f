"""The rules across ranks have the form of all others, and codes of their own."""

import re
from types import SimpleNamespace

import pytest

from pullback.check.ranks.rules import rank_rules
from pullback.check.ranks.rules.arrival_order import orders
from pullback.check.rules import all_rules

SECTIONS = ("What it checks", "Why it matters", "Fails", "Passes", "Cannot see")

every_rule = pytest.mark.parametrize("own", rank_rules(), ids=lambda own: own.rule.code)


@every_rule
def test_rule_has_the_form(own):
    lines = own.page.splitlines()
    titles = tuple(line for line in lines[1:] if line and not line.startswith(" "))

    assert re.fullmatch(r"R\d{3}", own.rule.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", own.rule.name)
    assert own.rule.group == "ranks"
    assert re.fullmatch(r"[A-Z`].*[^ .]\.", lines[0])
    assert titles == SECTIONS


@pytest.mark.parametrize("field", ["code", "name"])
def test_no_rule_shares(field):
    values = [getattr(one.rule, field) for one in (*all_rules(), *rank_rules())]

    assert sorted(values) == sorted(set(values))


def test_senders_come_in_both_orders_where_a_rank_receives_from_any():
    steps = [[SimpleNamespace(is_from_any=rank == 0)] for rank in range(3)]

    delays = [each for _, each in orders(SimpleNamespace(size=3, steps=steps))]

    assert any(0 == zero < one < two for zero, one, two in delays)
    assert any(0 == zero < two < one for zero, one, two in delays)


def test_named_receives_need_no_further_order():
    steps = [[SimpleNamespace(is_from_any=False)] for _ in range(3)]

    assert len(list(orders(SimpleNamespace(size=3, steps=steps)))) == 2
