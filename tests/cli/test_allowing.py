"""Comments allow findings on a class, a method or a line; one that allows nothing is told."""

from dataclasses import replace

import pytest

from pullback.check.findings.finding import Skip
from pullback.cli.allowing import allowed, allows_in, idle
from pullback.cli.baseline import Checked
from pullback.cli.identity import Identity
from tests.report.reports import LAYOUT, REPORT, WRONG

SOURCE = """\
import torch


{above}
class Sine(torch.autograd.Function):{on_class}
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):{on_method}
        return g{on_line}


class Other(torch.autograd.Function):{on_other}
    pass
"""
LINE = 11  # of `def backward`


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """What was found at `def backward` of a file with comments in it."""
    monkeypatch.chdir(tmp_path)

    def made(**comments):
        places = dict.fromkeys(("above", "on_class", "on_method", "on_line", "on_other"), "")
        path = tmp_path / "ops.py"
        path.write_text(SOURCE.format(**places | comments), encoding="utf-8")
        found = replace(WRONG, place=f"ops.py:{LINE}")
        who = Identity("ops.py:Sine", ("ops.py:Sine", "ops:Sine"), "ops.py", path.resolve())
        return Checked(who, replace(REPORT, findings=(found,), place=found.place, skips=()))

    return made


PLACES = ("above", "on_class", "on_method", "on_line")


@pytest.mark.parametrize("word", ["wrong-gradient", "G101", "gradient", "unread-saved, G101"])
@pytest.mark.parametrize("place", PLACES)
def test_comment_allows_what_it_names(checked, place, word):
    one, used = allowed(checked(**{place: f"  # pullback: allow[{word}] as the paper has it"}))

    assert one.report.ok
    (accepted,) = one.report.accepted
    assert accepted.reason == "as the paper has it"
    assert accepted.by.startswith("ops.py:")
    assert len(used) == 1


@pytest.mark.parametrize(
    "comments",
    [
        {"on_class": "  # pullback: allow[unread-saved] another rule"},
        {"on_other": "  # pullback: allow[wrong-gradient] another class"},
        {"on_line": '; "# pullback: allow[wrong-gradient] a text"'},
        {},
    ],
    ids=["another rule", "another class", "a text", "none"],
)
def test_what_is_not_named_is_found(checked, comments):
    one, used = allowed(checked(**comments))

    assert not one.report.ok
    assert used == set()


def test_comment_needs_no_reason(checked):
    one, _ = allowed(checked(on_class="  # pullback: allow[G101]"))

    assert [accepted.reason for accepted in one.report.accepted] == ["no reason is given"]
    assert "  allowed: wrong-gradient, at ops.py:5: no reason is given" in one.report.summary()


def told(one):
    kept, used = allowed(one)
    return [str(remark) for remark in idle([kept], used)]


def test_used_comment_is_not_told(checked):
    assert told(checked(on_class="  # pullback: allow[G101] x")) == []


def test_idle_comment_is_told(checked):
    one = checked(on_method="  # pullback: allow[unread-saved] x")

    assert told(one) == ["ops.py:11: allow[unread-saved] allows nothing: remove it"]


def test_comment_outside_of_everything_is_told(checked):
    one = checked(on_other="\n    pass\n\n\nif True:  # pullback: allow[G101] x")

    assert [line.partition(":")[2].partition(":")[2] for line in told(one)] == [
        " allow[G101] allows nothing: remove it"
    ]


def test_comment_on_what_was_not_checked_is_not_told(checked):
    assert told(checked(on_other="  # pullback: allow[unread-saved] x")) == []


def test_comment_for_rule_that_was_not_tried_is_not_told(checked):
    one = told(checked(on_class="  # pullback: allow[nonlinear-backward] x"))
    late = checked(on_class="  # pullback: allow[cotangent-layout] x")
    late = replace(late, report=replace(late.report, skips=(Skip.refused(LAYOUT, "late"),)))

    assert one == []
    assert told(late) == []


def test_misspelt_rule_is_told(checked):
    one = told(checked(on_class="  # pullback: allow[wrong-gradeint] x"))
    bare = told(checked(on_class="  # pullback: allow[] x"))

    assert one == [
        "ops.py:5: allow[wrong-gradeint]: `wrong-gradeint` is no rule; did you mean "
        "`wrong-gradient`?"
    ]
    assert bare == ["ops.py:5: allow[]: it names no rule"]


def test_file_that_is_not_python_has_none(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("def (  # pullback: allow[G101]\n")

    assert allows_in(path) == ()
