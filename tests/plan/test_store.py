"""A plan is written whole and read as it was; what is no plan is refused."""

import json
import math
from contextlib import suppress

import pytest

from pullback.errors import PlanFileError
from pullback.plan import store, text
from tests.plan.fakes import made_up


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "plan.json"
    store.write_plan(made_up(), path)
    return path


def test_what_is_read_is_what_was_written(path):
    assert store.read(path) == made_up()


def test_file_is_plain_json(path):
    data = json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)

    assert (data["format"], data["version"]) == ("pullback-plan", 1)
    assert data["sized"][0]["rows"][3]["error"] == "inf"
    assert store.read(path).sized[0].rows[3].error == math.inf


def test_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_text("utf-8")

    def fails(*names):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        store.write_plan(made_up(program="other"), path)

    assert path.read_text("utf-8") == before
    assert [one.name for one in path.parent.iterdir()] == ["plan.json"]


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(PlanFileError) as caught:
        store.write_plan(made_up(), tmp_path / "none" / "plan.json")

    assert str(caught.value) == (
        f"E511 plan-file: `{tmp_path}/none/plan.json` must be a file in a folder that is there\n"
        f"  got:      no folder `{tmp_path}/none`"
    )


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(PlanFileError, match="must be a file that can be read"):
        store.read(tmp_path / "none.json")


CORRUPT = {
    "empty": lambda text: "",
    "cut off": lambda text: text[: len(text) // 2],
    "not a plan": lambda text: "[1, 2]",
    "another format": lambda text: text.replace("pullback-plan", "other"),
    "no sizes": lambda text: _changed(text, sized=[]),
    "a list of sizes": lambda text: _changed(text, sized=[1]),
    "a missing part": lambda text: _changed(text, fingerprint=None, drop="notes"),
    "an unknown part": lambda text: _changed(text, more=1),
    "an unknown objective": lambda text: _changed(text, objective="speed"),
    "an unknown composition": lambda text: text.replace('"combined"', '"fused"'),
    "a name that is none": lambda text: _changed(text, program=3),
    "notes that are none": lambda text: _changed(text, notes=[1]),
    "a place outside of the arguments": lambda text: _changed(text, place=9),
    "a place in words": lambda text: _changed(text, place="x"),
    "no arguments": lambda text: _changed(text, signature=None),
    "reasons in a list": lambda text: _changed(text, refused=["no"]),
    "sizes in words": lambda text: text.replace('"size": ', '"size": "8", "was": '),
    "bytes in words": lambda text: text.replace('"saved": ', '"saved": [], "was": '),
    "a backend that is no name": lambda text: text.replace('"backend": "', '"backend": 1, "x": "'),
    "truth for a number": lambda text: text.replace('"nodes": ', '"nodes": true, "was": '),
    "a time of zero": lambda text: text.replace('"seconds": 0.0001', '"seconds": 0'),
    "a machine of which nothing is said": lambda text: _changed(text, made_with={"torch": "2"}),
    "a number in words": lambda text: text.replace('"seconds": 0.0001', '"seconds": "fast"'),
}


@pytest.mark.parametrize("where", ["sized", "rows", "candidate"])
@pytest.mark.parametrize("value", [None, 7, "x", [], {}, [7], True])
def test_any_part_of_another_type_is_refused(path, where, value):
    """Each value at one level in turn becomes another thing, and no error but ours comes of it."""
    data = json.loads(path.read_text("utf-8"))
    one = data["sized"][0]
    row = {"sized": one, "rows": one["rows"][0], "candidate": one["rows"][0]["candidate"]}[where]
    for key, before in list(row.items()):
        row[key] = value
        path.write_text(json.dumps(data), "utf-8")
        with suppress(PlanFileError):
            found = store.read(path)
            text.explain(found)
            text.table(found)
        row[key] = before


def _changed(text, drop="", **parts):
    return json.dumps({k: v for k, v in (json.loads(text) | parts).items() if k != drop})


@pytest.mark.parametrize("fault", CORRUPT)
def test_corrupt_file_is_refused(path, fault):
    path.write_text(CORRUPT[fault](path.read_text("utf-8")), "utf-8")

    with pytest.raises(PlanFileError) as caught:
        store.read(path)

    assert str(caught.value).startswith(
        f"E511 plan-file: `{path}` must be a plan that `save` wrote"
    )
    assert "fix:      plan again" in str(caught.value)


def test_bytes_that_are_no_text_are_refused(path):
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(PlanFileError, match="can be read"):
        store.read(path)


def test_newer_version_is_refused(path):
    path.write_text(_changed(path.read_text("utf-8"), version=2))

    with pytest.raises(PlanFileError) as caught:
        store.read(path)

    assert caught.value.facts["expected"] == "version 1"
    assert caught.value.facts["got"] == "version 2"
