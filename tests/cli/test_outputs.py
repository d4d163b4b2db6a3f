"""Formats go to the screen or to files, several at once; what cannot be is told beforehand."""

import errno
import json
import os
import threading

import click
import pytest

from pullback.cli.outputs import outputs_of
from pullback.report.outcome import Outcome
from tests.report.reports import REPORT


def test_screen_shows_text_by_default(tmp_path):
    assert outputs_of([]).screen == ("text",)
    assert outputs_of([f"json={tmp_path / 'a.json'}"]).screen == ("text",)


def test_annotations_may_stand_below_text():
    assert outputs_of(["github", "text"]).screen == ("text", "github")


def test_files_are_written_whole(tmp_path):
    names = {"json": "a.json", "sarif": "a.sarif", "junit": "a.xml", "text": "a.txt"}
    names |= {"github": "a.log", "html": "a.html"}
    outputs = outputs_of([f"{kind}={tmp_path / name}" for kind, name in names.items()])
    outputs.write(Outcome((REPORT,)))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert json.loads((tmp_path / "a.json").read_text())["reports"][0]["subject"] == "Sine"
    assert "G101 wrong-gradient (wrong)" in (tmp_path / "a.txt").read_text()


def test_file_that_cannot_be_written_loses_nothing_else(tmp_path, monkeypatch, capsys):
    def full(path, text):
        if path.suffix == ".sarif":
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr("pullback.cli.outputs.write_whole", full)
    names = ["a.sarif", "a.json"]
    outputs = outputs_of([f"{n.split('.')[1]}={tmp_path / n}" for n in names] + ["github"])
    (lost,) = outputs.write(Outcome((REPORT,)))

    assert "E602" in str(lost)
    assert "got:      No space left on device" in str(lost)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert "::error" in capsys.readouterr().out


def test_what_is_no_plain_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link.json").symlink_to("old.json")
    said = []
    read = (tmp_path / "pipe").read_text
    reader = threading.Thread(target=lambda: said.append(read()), daemon=True)
    reader.start()
    words = [f"json={tmp_path / 'link.json'}", f"json={tmp_path / 'pipe'}"]
    lost = outputs_of(words).write(Outcome((REPORT,)))
    reader.join(10)

    assert lost == []
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "old.json").read_text() == said[0]


def test_page_is_made_in_its_folder(tmp_path):
    outputs_of([], tmp_path / "new" / "site").write(Outcome((REPORT,)))

    assert (tmp_path / "new" / "site" / "index.html").is_file()


def test_folder_of_a_file_is_made(tmp_path):
    outputs_of([f"json={tmp_path / 'new' / 'a.json'}"]).write(Outcome((REPORT,)))

    assert (tmp_path / "new" / "a.json").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["json", "github"], "The screen cannot show json and github at once. Give all but one a"),
        (
            ["sarf"],
            "'sarf' is no format: text, json, github, sarif, junit, html. Did you mean",
        ),
        (["json="], "the file cannot be written: no name"),
        (["json=."], "the file cannot be written: a folder"),
        (["json=/dev/null/a.json"], "the file cannot be written: File exists"),
    ],
)
def test_what_cannot_be_is_told(words, said):
    with pytest.raises(click.UsageError) as raised:
        outputs_of(words)

    assert said in raised.value.message


def test_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "site").touch()

    with pytest.raises(click.UsageError, match="--html"):
        outputs_of([], tmp_path / "site")
