"""The cache on disk: what is sealed is found again, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.run.disk import cache
from pullback.run.disk.cache import clear, entry, root
from pullback.run.disk.private import OpenFolderError

SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(origin, **files):
    with entry(origin) as place:
        place.empty()
        for name, text in files.items():
            (place.folder / name).write_text(text)
        place.seal({"count": len(files)})
        return place.folder


def facts_of(origin):
    with entry(origin) as place:
        return place.facts()


def test_sealed_facts_are_found_again():
    fill("a graph", kernel="code", wrapper="more code")

    assert facts_of("a graph") == {"count": 2}
    assert facts_of("another graph") is None


def test_unsealed_folder_is_not_found():
    with entry("a graph") as place:
        place.empty()
        (place.folder / "kernel").write_text("half")

    assert facts_of("a graph") is None


def test_nobody_waits_for_the_entry_of_another():
    """Not even one whose folder lies beside it: their keys begin alike."""
    with entry("a library") as held:
        for number in range(2000):
            with entry(f"graph {number}", wait=False) as place:
                if place.folder.parent == held.folder.parent:
                    return
    pytest.fail("no folder was beside the other")


@pytest.mark.parametrize("damage", ["", "cod", "code\n", "edoc"])
@pytest.mark.parametrize("name", ["kernel", "wrapper", "manifest"])
def test_damaged_file_is_noticed(name, damage):
    place = fill("a graph", kernel="code", wrapper="more code")
    (place / name).write_text(damage)

    assert facts_of("a graph") is None


@pytest.mark.parametrize("name", ["kernel", "wrapper", "manifest"])
def test_missing_file_is_noticed(name):
    place = fill("a graph", kernel="code", wrapper="more code")
    (place / name).unlink()

    assert facts_of("a graph") is None


def test_one_flipped_byte_of_manifest_counts():
    manifest = fill("a graph", kernel="code") / "manifest"
    content = manifest.read_bytes()
    manifest.write_bytes(content.replace(b'"count": 1', b'"count": 2'))

    assert content != manifest.read_bytes()
    assert facts_of("a graph") is None


def test_file_added_later_is_removed():
    place = fill("a graph", kernel="code")
    (place / "stray").write_text("unknown")

    assert facts_of("a graph") == {"count": 1}
    assert not (place / "stray").exists()


def test_growth_since_the_sealing_is_seen():
    place = fill("a graph", kernel="code")
    with entry("a graph") as found:
        before = found.has_grown()
        (place / "kernel2").write_text("code")
        after = found.has_grown()

    assert (before, after) == (False, True)


def test_entry_of_another_torch_is_foreign(monkeypatch):
    fill("a graph", kernel="code")
    monkeypatch.setattr(cache, "environment", lambda: "another torch")

    assert facts_of("a graph") is None


def test_entry_moved_to_another_place_is_foreign():
    theirs = fill("a graph", kernel="code")
    mine = fill("another graph", kernel="other code")
    for name in ("kernel", "manifest"):
        (mine / name).write_bytes((theirs / name).read_bytes())

    assert facts_of("another graph") is None


def test_clear_removes_every_entry():
    fill("a graph", kernel="code")
    fill("another graph", kernel="code")
    clear()

    assert facts_of("a graph") is None
    assert not any(path.name == "kernel" for path in root().rglob("*"))


def test_oldest_entries_go_first(monkeypatch):
    monkeypatch.setattr(cache, "LIMIT", 10)
    for number in range(30):
        place = fill(f"graph {number}", kernel="code")
        if (place / "manifest").exists():
            os.utime(place / "manifest", (number, number))

    kept = [number for number in range(30) if facts_of(f"graph {number}") is not None]

    assert len(kept) <= 11
    assert kept[-1] == 29
    assert kept[0] > 9


def test_environment_variable_names_the_folder(folder):
    fill("a graph", kernel="code")

    assert root().is_relative_to(folder)
    assert root().stat().st_mode & 0o077 == 0


def test_folder_that_cannot_be_made_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    fill("a graph", kernel="code")

    assert facts_of("a graph") == {"count": 1}
    assert not root().is_relative_to(tmp_path)


def test_folder_that_others_write_to_is_refused(folder):
    fill("a graph", kernel="code")
    root().chmod(0o777)
    folder.chmod(0o755)
    folder.parent.chmod(0o755)

    with pytest.raises(OpenFolderError, match=r"everybody may write to `.*compiled`"):
        facts_of("a graph")


@pytest.mark.parametrize("name", [".", "kernel"])
def test_entry_that_others_write_to_is_made_anew(name):
    place = fill("a graph", kernel="code")
    (place / name).chmod(0o777)

    assert facts_of("a graph") is None
    assert fill("a graph", kernel="code").stat().st_mode & 0o077 == 0
    assert facts_of("a graph") == {"count": 1}


def test_locks_that_are_no_folder_are_an_error_of_the_system():
    (root() / "locks").write_text("no folder")

    with pytest.raises(FileExistsError), entry("a graph"):
        pass


LEAVING = """
import os, sys
from pullback.run.disk.cache import root

folder = root()
if os.fork() == 0:
    sys.exit(0)  # what a fork does at its end is not done to the folder of its parent
os.wait()
print(folder, folder.is_dir())
"""


def test_folder_in_place_of_the_cache_goes_with_its_process(tmp_path):
    (tmp_path / "file").write_text("no folder")
    settings = {**os.environ, "PYTHONPATH": str(SOURCE), "PULLBACK_CACHE_DIR": f"{tmp_path}/file"}

    done = subprocess.run(
        [sys.executable, "-c", LEAVING], env=settings, capture_output=True, text=True, check=True
    )
    path, was_there = done.stdout.split()

    assert was_there == "True"
    assert not Path(path).exists()


TURNS = """
import time
from pullback.run.disk.cache import entry

for _ in range(25):
    with entry("shared") as place:
        place.folder.mkdir(parents=True, exist_ok=True)
        path = place.folder / "lines"
        text = path.read_text() if path.exists() else ""
        time.sleep(0.001)
        path.write_text(text + "x")
"""


def test_two_processes_take_turns():
    settings = {**os.environ, "PYTHONPATH": str(SOURCE)}
    running = [subprocess.Popen([sys.executable, "-c", TURNS], env=settings) for _ in range(2)]
    codes = [each.wait() for each in running]
    with entry("shared") as place:
        text = (place.folder / "lines").read_text()

    assert codes == [0, 0]
    assert text == "x" * 50
