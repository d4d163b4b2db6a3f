"""A module has one rule, whose docstring is its page, or several, each with a page of its own."""

from types import SimpleNamespace

import pytest

from pullback.check.findings import registered as module_of
from pullback.check.findings.finding import PROFILES, Rule
from pullback.check.findings.registered import KNOWN, Registered, registered, third_party
from pullback.check.rules import all_rules

ONE, TWO = Rule("X101", "first-one", "tests"), Rule("X102", "second-one", "tests")


@pytest.fixture(autouse=True)
def known():
    """The rules that are known, as they were, after the test."""
    before = dict(KNOWN)
    yield
    KNOWN.clear()
    KNOWN.update(before)


def test_docstring_is_the_page_of_the_only_rule():
    module = SimpleNamespace(
        __name__="acme.one", __doc__="It holds.\n\nMore.\n", RULE=ONE, check=iter
    )

    (found,) = registered(module)

    assert (found.page, found.module, found.check) == ("It holds.\n\nMore.", "acme.one", iter)
    assert found.rule.sentence == "It holds"


def test_several_rules_have_pages_of_their_own():
    several = (Registered(ONE, iter, "\nIt holds.\n"), Registered(TWO, iter, "\nIt helps.\n"))
    module = SimpleNamespace(__name__="acme.two", __doc__="Both.", RULES=several)

    found = registered(module)

    assert [one.rule.sentence for one in found] == ["It holds", "It helps"]
    assert {one.module for one in found} == {"acme.two"}
    assert [KNOWN[code] for code in ("X101", "X102")] == found


def test_rules_of_one_file_are_found_one_by_one():
    files = [one.module.rpartition(".")[2] for one in all_rules()]

    assert files.count("wrong_at_values") == 10
    assert len(set(files)) < len(files)


class Missing:
    """An entry point of a package that is not there."""

    name, value = "acme-rule", "acme.rule"

    def load(self):
        raise ModuleNotFoundError("No module named 'acme'")


def test_rule_that_cannot_be_used_says_so_in_every_profile(monkeypatch):
    monkeypatch.setattr(module_of, "entry_points", lambda group: [Missing()])

    (found,) = third_party(all_rules())
    (skip,) = found.check(None)

    assert found.rule.profile == PROFILES[0]
    assert skip.is_refusal
    assert "No module named 'acme'" in skip.reason
