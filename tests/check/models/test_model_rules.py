"""The rules of models have the form of all others, and codes of their own."""

import re

import pytest

from pullback.check.models.rules import GROUP, model_rules
from pullback.check.ranks.rules import rank_rules
from pullback.check.rules import all_rules
from tests.check.ranks.test_rank_rules import SECTIONS


@pytest.mark.parametrize("own", model_rules(), ids=lambda own: own.rule.code)
def test_rule_has_the_form(own):
    lines = own.page.splitlines()
    titles = tuple(line for line in lines[1:] if line and not line.startswith(" "))

    assert re.fullmatch(r"M1\d\d", own.rule.code)
    assert own.rule.group == GROUP
    assert titles == SECTIONS


@pytest.mark.parametrize("field", ["code", "name"])
def test_no_rule_shares(field):
    every = (*all_rules(), *rank_rules(), *model_rules())
    values = [getattr(one.rule, field) for one in every]

    assert sorted(values) == sorted(set(values))
