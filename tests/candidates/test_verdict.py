"""A verdict reads well, keeps its schema, and is true where all is well."""

import json

from pullback.candidates import rules
from pullback.candidates.rules import JudgeFinding
from pullback.candidates.schema import JUDGE_SCHEMA, VERDICT
from pullback.candidates.timing import Ratio
from pullback.candidates.verdict import Verdict, documents
from tests.report.test_json import faults_of

GOOD = Verdict(
    "k.py:f",
    "r.py:f",
    True,
    True,
    speedup=Ratio(2.0, 1.9, 2.1),
    speedups={"forward": {"reference": Ratio(2.0, 1.9, 2.1)}},
    times={"forward": {"candidate": 1e-4, "reference": 2e-4}},
    tried={"trials": 13},
    seed=5,
    seconds=1.25,
)
FOUND = JudgeFinding(rules.STALE, "output[0]", "1", "2", "it is kept")
BAD = Verdict("k.py:g", "r.py:f", False, False, (FOUND, JudgeFinding(rules.SAME_CODE)))


def test_verdict_keeps_the_schema():
    assert faults_of(json.loads(GOOD.dumps()), VERDICT) == []
    assert faults_of(documents([GOOD, BAD]), JUDGE_SCHEMA) == []


def test_planted_change_breaks_the_schema():
    document = documents([GOOD])
    del document["verdicts"][0]["right"]

    assert faults_of(document, JUDGE_SCHEMA) == ["document.verdicts[0] has no right"]


def test_verdict_is_true_where_all_is_well():
    assert GOOD
    assert not BAD
    assert documents([GOOD, BAD])["ok"] is False


def test_notes_are_no_names():
    assert BAD.names() == ["stale-result"]


def test_verdict_reads_well():
    assert str(GOOD) == (
        "k.py:f against r.py:f: right, honest, 2.00 (1.90 to 2.10) times as fast\n"
        "  forward: 2.00 (1.90 to 2.10) of reference\n"
        "  tried: trials 13\n"
        "  seed 5, 1.2 s"
    )
    assert str(FOUND) == (
        "J201 stale-result (not right and not honest): "
        "the result of an earlier call comes back for other inputs\n"
        "  at:       output[0]\n"
        "  expected: 1\n"
        "  got:      2\n"
        "  why:      it is kept"
    )
