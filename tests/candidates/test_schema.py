"""The schema is a document of its own, made from the code."""

import json
from pathlib import Path

from pullback.candidates.schema import JUDGE_SCHEMA

FILE = Path(__file__).resolve().parents[2] / "docs" / "judge-schema.json"


def test_file_is_what_the_code_says():
    assert json.loads(FILE.read_text("utf-8")) == JUDGE_SCHEMA
