"""Calls are counted by the way they take; those without compiled code give one warning."""

import warnings

from pullback.errors import UncompiledWarning, WrongCodeWarning
from pullback.run.nodes.paths import BATCHED, LAYOUTS, Paths


def warnings_of(*calls):
    """The kinds of the warnings that calls give, in order."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for call, *args in calls:
            call(*args)
    return [one.category for one in seen]


def test_uncompiled_call_warns_once_and_is_counted_each_time():
    paths = Paths("block")

    assert warnings_of(*[(paths.uncompiled, LAYOUTS)] * 3) == [UncompiledWarning]
    assert list(paths.lines()) == [f"  3 calls uncompiled: {LAYOUTS.what}"]


def test_each_reason_has_its_own_warning():
    uncompiled = Paths("block").uncompiled

    assert len(warnings_of((uncompiled, LAYOUTS), (uncompiled, BATCHED))) == 2


def test_composition_without_compiled_code_is_silent():
    paths = Paths("block", warns=False)

    assert warnings_of((paths.uncompiled, LAYOUTS)) == []
    assert list(paths.lines()) == []


def test_wrong_code_warns_once_for_each_place():
    differs = Paths("block", warns=False).differs
    calls = [(differs, "native", call, "output 0: 1 instead of 2") for call in "xxy"]

    assert warnings_of(*calls) == [WrongCodeWarning] * 2
