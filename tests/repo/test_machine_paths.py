"""No file names a folder of the machine it was written on."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "src", "tests", "docs", "guides", "examples", "benchmarks", "changelog.d")

BINARY = (".pyc", ".png")

PATHS = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|opt|mnt|Users|var/tmp)/|\b[A-Z]:\\{1,2}\w")


def machine_paths(text):
    """The lines of a text that name a folder of one machine, with their numbers."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"{number}: {line.strip()}" for number, line in lines if PATHS.search(line)]


def files():
    """Every text file of the repository; caches and builds are not of it."""
    inside = [path for name in FOLDERS for path in (ROOT / name).rglob("*")]
    beside = [path for path in ROOT.iterdir() if path.name != ".git"]
    texts = [path for path in [*beside, *inside] if path.is_file() and path.suffix not in BINARY]
    return [path for path in texts if not any("cache" in part for part in path.parts)]


def test_no_file_names_a_machine():
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files()
        if (lines := machine_paths(path.read_text("utf-8")))
    }

    assert found == {}


def test_files_reach_every_folder():
    names = {str(path.relative_to(ROOT)) for path in files()}

    assert {"Makefile", ".ci/run", "tests/conftest.py", "docs/why.md"} <= names


@pytest.mark.parametrize("folder", ["home/me", "root", "tmp", "work/main", "opt/wheels"])
def test_planted_path_is_found(folder):
    text = f"first\npath = '/{folder}/x.py'\n"

    assert machine_paths(text) == [f"2: path = '/{folder}/x.py'"]


def test_planted_windows_path_is_found():
    assert machine_paths("open(r'C:" + "\\data')") == ["1: open(r'C:" + "\\data')"]


@pytest.mark.parametrize("text", ["#!/usr/bin/env bash", "docs/work/plan.md", "~/work/", "a/tmp/b"])
def test_relative_path_is_left_alone(text):
    assert machine_paths(text) == []
