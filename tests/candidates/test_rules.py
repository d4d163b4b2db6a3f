"""What can be found has codes and names of its own, and stands in the guide."""

from pathlib import Path

from benchmarks.attacks import TABLE
from pullback.candidates import rules
from pullback.check.rules import explained

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"


def test_codes_and_names_are_unique():
    others = {registered.rule.name for registered in explained()}

    assert len({rule.code for rule in rules.ALL}) == len(rules.ALL)
    assert len({rule.name for rule in rules.ALL}) == len(rules.ALL)
    assert [rule.name for rule in rules.ALL if rule.name in others] == []


def test_guide_lists_every_rule():
    text = GUIDE.read_text("utf-8")

    assert [
        rule.name
        for rule in rules.ALL
        if f"| {rule.code} | `{rule.name}` | {rule.sentence}" not in text
    ] == []


def test_attacks_name_rules_that_exist():
    assert {attack.finding for attack in TABLE} <= {rule.name for rule in rules.ALL}
