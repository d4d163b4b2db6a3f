"""A baseline knows a finding again wherever its line is, and says what is gone."""

from collections import Counter
from dataclasses import replace

import pytest

from pullback.check.findings.finding import Skip
from pullback.cli.baseline import (
    Checked,
    accepted,
    entry_of,
    gone,
    read_baseline,
    renewed,
    write_baseline,
)
from pullback.cli.identity import Identity
from pullback.errors import BaselineError
from tests.report.reports import CUT, LAYOUT, REPORT, WRONG

WHO = Identity("ops.py:Sine", ("ops.py:Sine", "ops:Sine"), "ops.py")
CHECKED = Checked(WHO, REPORT)


def known():
    return Counter(entry_of(finding, WHO) for finding in REPORT.findings)


def test_entry_has_neither_line_nor_numbers():
    entry = entry_of(WRONG, WHO)
    moved = replace(WRONG, place="my ops,old.py:99", expected="7")

    assert str(entry) == "ops.py:Sine: G101 wrong-gradient, gradient of `x`"
    assert entry_of(moved, WHO) == entry
    assert entry_of(replace(REPORT.findings[2], at="saved tensor 3"), WHO).about == "saved tensor #"


def test_known_findings_do_not_count():
    checked = accepted(CHECKED, known(), "known.json")

    assert checked.report.ok
    assert [one.finding for one in checked.report.accepted] == list(REPORT.findings)
    assert "  known: 3 findings more, in known.json" in checked.report.summary()


def test_second_finding_of_a_kind_is_new():
    twice = replace(CHECKED, report=replace(REPORT, findings=(WRONG, WRONG)))

    assert accepted(twice, known(), "").report.findings == (WRONG,)


def test_file_with_another_name_is_known_again():
    renamed = Counter({replace(entry, file="old.py"): 1 for entry in known()})

    assert accepted(CHECKED, renamed.copy(), "", ["old.py"]).report.ok
    assert not accepted(CHECKED, renamed.copy(), "", []).report.ok  # it is there still


def test_file_is_read_back(tmp_path):
    path = tmp_path / "known.json"
    many = known() + Counter([entry_of(WRONG, WHO)])
    write_baseline(path, many)

    assert read_baseline(path) == many
    assert path.read_text().count("\n") == 8  # one line for each kind


def test_empty_baseline_is_a_file_too(tmp_path):
    write_baseline(tmp_path / "known.json", Counter())

    assert read_baseline(tmp_path / "known.json") == Counter()


def test_what_is_found_no_more_is_gone():
    left = known()
    checked = accepted(replace(CHECKED, report=replace(REPORT, findings=(WRONG,))), left, "")

    assert sorted(entry.rule for entry in gone(left, [checked], [])) == [
        "B854 unread-saved",
        "Y401 cotangent-layout",
    ]


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, findings=(), rules=("G101", "B854")),
        replace(REPORT, findings=(), skips=(Skip.refused(LAYOUT, "too slow"),)),
        CUT,
    ],
    ids=["not selected", "not tried to its end", "interrupted"],
)
def test_what_was_not_tried_is_not_gone(report):
    left = gone(known(), [replace(CHECKED, report=report)], [])

    assert "Y401 cotangent-layout" not in {entry.rule for entry in left}


def test_function_that_left_its_file_is_gone():
    assert gone(known(), [], ["ops.py"]) == dict(known())
    assert gone(known(), [], ["other.py"]) == {}


def test_renewed_baseline_keeps_what_was_not_looked_for():
    other = entry_of(WRONG, replace(WHO, file="other.py"))
    left = known() + Counter([other])
    checked = accepted(replace(CHECKED, report=replace(REPORT, findings=(WRONG,))), left, "")

    assert renewed(left, gone(left, [checked], []), [checked]) == Counter(
        [other, entry_of(WRONG, WHO)]
    )


def test_missing_baseline_is_told_whole(tmp_path):
    path = tmp_path / "known.json"
    with pytest.raises(BaselineError) as raised:
        read_baseline(path)

    assert str(raised.value) == (
        f"E421 baseline: `{path}` must be a baseline\n"
        "  expected: a file that `pullback check --write-baseline` wrote (pullback.baseline/1)\n"
        "  got:      no such file\n"
        f"  fix:      write it: pullback check ... --write-baseline --baseline {path}"
    )


DAMAGED = ["{", "[]", '{"schema": "x"}', '{"schema": "pullback.baseline/1"}']


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_baseline_is_refused(tmp_path, text):
    (tmp_path / "known.json").write_text(text)

    with pytest.raises(BaselineError, match="must be a baseline"):
        read_baseline(tmp_path / "known.json")


def test_unwritable_baseline_is_told(tmp_path):
    with pytest.raises(BaselineError, match="must be a file that can be written"):
        write_baseline(tmp_path / "missing" / "known.json", Counter())


def test_entry_without_a_file_is_known_again():
    kept = Counter(replace(one, file="", target=WHO.name) for one in known())
    checked = accepted(CHECKED, kept, "known.json")

    assert checked.report.ok
    assert renewed(kept, gone(kept, [checked], ()), [checked]) == known()


def test_entry_without_a_file_can_be_gone():
    kept = Counter(replace(one, file="", target=WHO.name) for one in known())

    assert gone(kept, [replace(CHECKED, report=replace(REPORT, findings=()))], ())
