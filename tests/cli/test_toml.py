"""The settings file is found and read, and a mistake in it is named with what was meant."""

import importlib

import pytest

from pullback.cli.toml import read_settings, settings_file
from pullback.errors import SettingsError

WHOLE = """
[tool.pullback]
targets = ["ops.py"]
select = ["gradient"]
allow = ["unread-saved"]
profile = "deep"
time = 30
fail-on = "wrong"
baseline = "known.json"
jobs = 2
cache = false
output-format = ["text", "sarif=out.sarif"]

[tool.pullback.per-file."legacy/*.py"]
allow = ["memory"]

[tool.pullback.per-target."ops:Swish"]
profile = "quick"

[tool.pullback.declare."package.module:Name"]
surrogate = ["x"]
once_differentiable = true
nondeterministic = 1e-6
donates = true
domain = { x = [0, inf], y = [-1, 1] }
"""


@pytest.fixture
def written(tmp_path):
    """Write a settings file, and give its path."""

    def write(text, name="pullback.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_key_is_read(written):
    assert read_settings(written(WHOLE, "pyproject.toml")) == {
        "targets": ("ops.py",),
        "select": ("gradient",),
        "allow": ("unread-saved",),
        "profile": "deep",
        "time": 30.0,
        "fail_on": "wrong",
        "baseline": "known.json",
        "jobs": 2,
        "cache": False,
        "output_format": ("text", "sarif=out.sarif"),
        "per_file": {"legacy/*.py": {"allow": ("memory",)}},
        "per_target": {"ops:Swish": {"profile": "quick"}},
        "declare": {
            "package.module:Name": {
                "surrogate": ("x",),
                "once_differentiable": True,
                "nondeterministic": 1e-6,
                "donates": True,
                "domain": {"x": (0.0, float("inf")), "y": (-1.0, 1.0)},
            }
        },
    }


def test_own_file_has_no_heading(written):
    assert read_settings(written('profile = "quick"\n')) == {"profile": "quick"}


# ---- where it is ----


def test_nearest_file_above_is_found(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pullback]\njobs = 2\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")

    assert settings_file(tmp_path / "a" / "b") == tmp_path / "pyproject.toml"


def test_own_file_wins_over_project(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pullback]\n")
    (tmp_path / "pullback.toml").write_text("")

    assert settings_file(tmp_path) == tmp_path / "pullback.toml"


def test_search_ends_at_the_repository(tmp_path):
    (tmp_path / "pullback.toml").write_text("")
    (tmp_path / "repository" / ".git").mkdir(parents=True)

    assert settings_file(tmp_path / "repository") is None


# ---- mistakes ----


def message(path):
    with pytest.raises(SettingsError) as raised:
        read_settings(path)
    return str(raised.value)


def test_unknown_key_is_told_whole(written):
    assert message(written("[tool.pullback]\nselct = []\n", "pyproject.toml")) == (
        "E420 settings: `tool.pullback.selct` in `pyproject.toml` must be a known setting\n"
        "  expected: select\n"
        "  got:      'selct'"
    )


def test_unknown_key_of_target_is_told_with_its_target(written):
    text = '[per-target."a:B"]\nprofil = "deep"\n'

    assert message(written(text)) == (
        'E420 settings: `per-target."a:B".profil` in `pullback.toml` must be a known setting\n'
        "  expected: profile\n"
        "  got:      'profil'"
    )


def test_key_like_no_other_lists_them_all(written):
    said = message(written('[declare."a:B"]\nzzz = 1\n'))

    assert "expected: surrogate, donates, once-differentiable, nondeterministic, domain" in said


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('select = "gradient"', '`select` in `pullback.toml` must be a list of texts: ["a", "b"]'),
        ('profile = "dep"', "must be one of quick, standard, deep (did you mean 'deep'?)"),
        ("time = -1", "`time` in `pullback.toml` must be a number, 0 or more"),
        ("time = true", "must be a number, 0 or more"),
        ("jobs = 0", "must be a whole number, 1 or more"),
        ("cache = 1", "must be true or false"),
        ("baseline = 3", "must be a text"),
        ('fail-on = "never"', "must be one of wrong, fragile, wasteful"),
        ("per-file = 3", "`per-file` in `pullback.toml` must be tables, one for each name"),
        ('per-file = {"a.py" = 3}', "must be a table"),
        ('declare."a:B".surrogate = 3', 'must be names of inputs: ["x"], or true for all'),
        ('declare."a:B".domain = {x = [1]}', "must be the least and the largest number of each"),
        ('declare."a:B".domain = {x = [1, 0]}', "must be the least number of each input, then"),
        ('declare."a:B".domain = 3', "must be the least and the largest number of each"),
        ("profile = ", "`{}` must be TOML"),
    ],
)
def test_unfit_value_is_named(written, line, wanted):
    path = written(line + "\n")

    assert wanted.format(path) in message(path)


def test_file_without_settings_is_told(written):
    assert "must have settings\n  expected: a table [tool.pullback]" in message(
        written("[tool.other]\n", "pyproject.toml")
    )


def test_section_that_is_no_table_is_told(written):
    assert "must have `tool.pullback` as a table" in message(
        written("[tool]\npullback = 3\n", "pyproject.toml")
    )


def test_python_without_toml_is_told(written, monkeypatch):
    def missing(name):
        raise ImportError(name)

    path = written("jobs = 1\n")
    monkeypatch.setattr(importlib, "import_module", missing)

    assert message(path) == (
        f"E420 settings: `{path}` cannot be read by this Python\n"
        "  expected: Python 3.11 or newer, or the package tomli\n"
        "  got:      neither\n"
        "  fix:      pip install tomli"
    )
