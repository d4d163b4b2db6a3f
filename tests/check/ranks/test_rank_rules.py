"""The rules across ranks have the form of all others, and codes of their own."""

import re

import pytest

from pullback.check.ranks.rules import rank_rules
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
