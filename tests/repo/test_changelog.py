"""`changelog.d/` holds one sentence per change, in files named `<number>.<kind>.md`."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "changelog.d"

KINDS = ("added", "changed", "deprecated", "fixed", "removed")


def faults_of(name, text):
    """What is wrong with one changelog entry, in words."""
    tests = {
        "named otherwise": re.fullmatch(rf"\d+\.({'|'.join(KINDS)})\.md", name),
        "not one paragraph": text.strip() and "\n\n" not in text.strip(),
        "not one sentence": re.fullmatch(r"[^\s](?:(?!\. [A-Z]).)*\.", text.strip(), re.DOTALL),
    }
    return [fault for fault, passed in tests.items() if not passed]


def entries():
    paths = sorted(FOLDER.glob("*"))
    return [path for path in paths if path.name != "README.md"]


def test_an_entry_is_present():
    assert entries()


@pytest.mark.parametrize("path", entries(), ids=lambda path: path.name)
def test_entry_is_one_sentence(path):
    assert faults_of(path.name, path.read_text("utf-8")) == []


PLANTED = {
    "no number": ("added.md", "It works.", "named otherwise"),
    "unknown kind": ("1.better.md", "It works.", "named otherwise"),
    "empty": ("1.added.md", "\n", "not one paragraph"),
    "a list": ("1.added.md", "It works.\n\nIt is fast.\n", "not one paragraph"),
    "two sentences": ("1.added.md", "It works. It is fast.", "not one sentence"),
    "no full stop": ("1.added.md", "It works", "not one sentence"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_entry_is_caught(fault):
    name, text, finding = PLANTED[fault]

    assert finding in faults_of(name, text)


def test_sound_entry_has_no_fault():
    assert faults_of("12.fixed.md", "`pb.Function` takes `x.y` and\nlists.\n") == []


def test_every_kind_is_documented():
    text = (FOLDER / "README.md").read_text("utf-8")

    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
