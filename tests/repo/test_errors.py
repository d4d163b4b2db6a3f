"""Every error and warning has a code and a name, explains itself, and is pinned by a test."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pullback import errors

TESTS = Path(__file__).resolve().parents[1]

BASES = (errors.PullbackError, errors.PullbackWarning)


def classes_of(module):
    """The error and warning classes of a module, in the order of the file, without their bases."""
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    return [cls for cls in classes if issubclass(cls, BASES) and cls not in BASES]


def faults_of(cls):
    """What is wrong with one error class, in words."""
    code, name = vars(cls).get("code", ""), vars(cls).get("name", "")
    builtins = {base for base in cls.__mro__ if base.__module__ == "builtins"}
    tests = {
        "no code of a letter and three digits": re.fullmatch(r"[A-Z]\d{3}", code),
        "no name in words-with-hyphens": re.fullmatch(r"[a-z]+(-[a-z]+)*", name),
        "no docstring": vars(cls).get("__doc__"),
        "refines no builtin error": builtins - {object, BaseException, Exception, Warning},
    }
    return [fault for fault, passed in tests.items() if not passed]


def repeated(values):
    """The values that occur more than once."""
    values = list(values)
    return sorted({value for value in values if values.count(value) > 1})


def unpinned(classes, text):
    """The error classes whose first line does not begin anywhere in `text`."""
    return [cls.__name__ for cls in classes if f"{cls.code} {cls.name}: " not in text]


def text_of_tests():
    """Every test and gold file, but for the tests about the repository."""
    paths = [path for path in TESTS.rglob("*") if path.suffix in {".py", ".txt", ".md"}]
    return "\n".join(p.read_text("utf-8") for p in paths if TESTS / "repo" not in p.parents)


def test_every_error_is_complete():
    faults = {cls.__name__: faults_of(cls) for cls in classes_of(errors)}

    assert faults
    assert {name: found for name, found in faults.items() if found} == {}


def test_no_code_is_used_twice():
    assert repeated(cls.code for cls in classes_of(errors)) == []


def test_no_name_is_used_twice():
    assert repeated(cls.name for cls in classes_of(errors)) == []


def test_every_error_is_pinned_by_tests():
    assert unpinned(classes_of(errors), text_of_tests()) == []


# ---- the scanners themselves ----


class Sound(errors.PullbackError, TypeError):
    """A thing must be so."""

    code = "X001"
    name = "planted-fault"


class Slip(errors.PullbackWarning):
    """A thing should be so."""

    code = "X002"
    name = "slip"


class Bare(errors.PullbackError):
    pass


class Shouting(errors.PullbackError, TypeError):
    """A thing must be so."""

    code = "X1"
    name = "Planted_Fault"


@pytest.mark.parametrize("cls", [Sound, Slip])
def test_sound_class_has_no_fault(cls):
    assert faults_of(cls) == []


@pytest.mark.parametrize(
    ("cls", "count"), [(Bare, 4), (Shouting, 2)], ids=["nothing given", "wrong form"]
)
def test_planted_error_class_is_caught(cls, count):
    assert len(faults_of(cls)) == count


def test_repeated_code_is_caught():
    assert repeated(["X001", "X002", "X001"]) == ["X001"]


def test_unpinned_error_is_caught():
    assert unpinned([Sound], "raises X001 and planted-fault") == ["Sound"]
    assert unpinned([Sound], 'assert str(e) == "X001 planted-fault: a thing must"') == []


def test_errors_and_warnings_are_listed():
    planted = SimpleNamespace(a=Sound, b=Slip, c=errors.PullbackError, d=ValueError, e="X003")

    assert classes_of(planted) == [Sound, Slip]
