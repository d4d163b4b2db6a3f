"""Calls are counted by the way they take; those without compiled code give one warning."""

import warnings

import pytest

from pullback.errors import UncompiledWarning, WrongCodeWarning
from pullback.run.paths import BATCHED, LAYOUTS, Paths


def test_uncompiled_call_warns_once_and_is_counted_each_time():
    paths = Paths("block")

    with pytest.warns(UncompiledWarning, match="`block`") as seen:
        for _ in range(3):
            paths.uncompiled(LAYOUTS)

    assert len(seen) == 1
    assert list(paths.lines()) == [f"  3 calls uncompiled: {LAYOUTS.what}"]


def test_each_reason_has_its_own_warning():
    paths = Paths("block")

    with pytest.warns(UncompiledWarning) as seen:
        paths.uncompiled(LAYOUTS)
        paths.uncompiled(BATCHED)

    assert len(seen) == 2


def test_composition_without_compiled_code_is_silent():
    paths = Paths("block", warns=False)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths.uncompiled(LAYOUTS)

    assert list(paths.lines()) == []


def test_wrong_code_warns_once_for_each_place():
    paths = Paths("block", warns=False)

    with pytest.warns(WrongCodeWarning, match="output 0") as seen:
        for call in ("f(x)", "f(x)", "f(y)"):
            paths.differs("native", call, "output 0: 1 instead of 2")

    assert len(seen) == 2
