"""Every Function of the table gives plain torch's gradients on every route PyTorch has."""

from collections.abc import Iterator

import pytest
import torch

import pullback as pb
from tests.function.everywhere.functions import ENTRIES
from tests.function.everywhere.known import EVERY, WRONG, known_failure
from tests.function.everywhere.routes import ROUTES

TORCH = torch.autograd.Function

# A failure of every entry is pinned by these alone.
REPRESENTATIVES = ("saves-input", "sets-up-context", "bends-the-gradient")

# Warnings of torch are not the subject here; one of ours would be a false alarm.
pytestmark = pytest.mark.filterwarnings("ignore", r"error:W\d{3} [a-z]")


def pairs() -> Iterator[tuple[str, str, tuple[pytest.MarkDecorator, ...]]]:
    """Every route with every entry that is written for it, and its marks.

    Every fourth pair is a quick one, along diagonals, but for routes that say which.
    """
    for row, (route_name, route) in enumerate(ROUTES.items()):
        compiler = (pytest.mark.needs_compiler,) if "inductor" in route_name else ()
        for column, (name, entry) in enumerate(ENTRIES.items()):
            is_every_fourth = (row + column) % 4 == 0 or name in REPRESENTATIVES
            is_quick = is_every_fourth if route.quick is None else name in route.quick
            slow = () if is_quick else (pytest.mark.slow,)
            if all(getattr(entry, need) for need in route.needs):
                yield route_name, name, (*compiler, *slow)


def supported(torch_only: bool = False) -> list:
    """The pairs that work with `torch.autograd.Function`, and those it has no name for."""
    return [
        pytest.param(route, entry, marks=marks)
        for route, entry, marks in pairs()
        if known_failure(route, entry) is None and not (torch_only and ENTRIES[entry].ours)
    ]


def failing(ours: tuple[str, ...] = ()) -> list:
    """The pairs on record in which PyTorch fails; with `ours`, those that ask that of ours."""
    return [
        pytest.param(route, entry, marks=marks)
        for route, entry, marks in pairs()
        if (known := known_failure(route, entry))
        and (known.ours in ours if ours else not ENTRIES[entry].ours)
        and (known.entries != EVERY or entry in REPRESENTATIVES)
    ]


def run(route: str, entry: str, base: type) -> None:
    subject = ENTRIES[entry]
    ROUTES[route].run(subject.build(base), subject.reference, subject.tensors)


@pytest.mark.quick(220)
@pytest.mark.parametrize(("route", "entry"), supported())
def test_gradients_match_plain_operations(route, entry):
    run(route, entry, pb.Function)


@pytest.mark.slow
@pytest.mark.parametrize(("route", "entry"), supported(torch_only=True))
def test_torch_function_passes_as_well(route, entry):
    run(route, entry, TORCH)


@pytest.mark.parametrize(("route", "entry"), failing())
def test_known_torch_failure_still_stands(route, entry):
    known = known_failure(route, entry)
    with pytest.raises(known.raises, match=known.match):
        run(route, entry, TORCH)


@pytest.mark.parametrize(("route", "entry"), failing(ours=("works",)))
def test_our_function_mends_torch_failure(route, entry):
    run(route, entry, pb.Function)


def outcome(route: str, entry: str, base: type) -> str:
    try:
        run(route, entry, base)
    except WRONG:
        return "wrong"
    except Exception:
        return "raises"
    return "works"


@pytest.mark.parametrize(("route", "entry"), failing(ours=("works or raises",)))
def test_our_function_is_never_silently_wrong(route, entry):
    assert outcome(route, entry, pb.Function) != "wrong"
