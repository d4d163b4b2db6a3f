"""Requests for less than all gradients: only some inputs need one, or only some outputs are used.

A hand-written backward may look at `needs_input_grad`, and at cotangents that are None, so it is
read again for each request. Mostly it computes the same as for everything, with zeros for the
cotangents that are missing: then the proof for everything covers the request.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pullback.prove.programs import (
    CapturedProgram,
    Key,
    ProgramPair,
    UnreadableError,
    View,
    captured_program,
)
from pullback.prove.scalars import known_number, replaced

FEW_PLACES = 3  # inputs or outputs: up to so many, every subset is tried; of more, each one alone


@dataclass(frozen=True, slots=True)
class Request:
    """Which tensors need a gradient, and which outputs are used, by their places."""

    needing: tuple[int, ...]
    used: tuple[int, ...]
    text: str

    def asks_for(self, key: Key, programs: ProgramPair) -> bool:
        """Whether the gradient `key` is needed; those of closures always are."""
        return key in self.needing or key >= len(programs.tensors)


def partial_requests(programs: ProgramPair) -> Iterator[Request]:
    """Every request that asks for something, but not for everything."""
    captured = programs.hand.captured
    tensors = range(len(programs.tensors))
    needing = tuple(place for place in tensors if captured.inputs[place].needs)
    used = tuple(programs.hand.used)
    for some in _choices(needing):
        names = ", ".join(f"`{captured.inputs[place].name}`" for place in some)
        verb = "needs a gradient" if len(some) == 1 else "need gradients"
        yield Request(some, used, f"only {names} {verb}")
    for some in _choices(used):
        outputs = "output" if len(some) == 1 else "outputs"
        verb = "is" if len(some) == 1 else "are"
        yield Request(needing, some, f"only {outputs} {', '.join(map(str, some))} {verb} used")


def _choices(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    largest = len(places) - 1 if len(places) <= FEW_PLACES else 1
    for count in range(1, largest + 1):
        yield from itertools.combinations(places, count)


def view_for(request: Request, whole: View, keys: Sequence[Key]) -> View | None:
    """Both programs under a request, at the sizes of `whole`; None if `keys` have nothing new.

    Raises `UnreadableError`, or `Outside`.
    """
    programs = whole.programs
    hand = _captured(programs.hand, whole, request)
    view = _view(ProgramPair(hand, programs.derived, programs.tensors, programs.args), whole)
    if all(_is_known(key, view, whole) for key in hand.keys if key in keys):
        return None
    derived = _captured(programs.derived, whole, request)
    return _view(ProgramPair(hand, derived, programs.tensors, programs.args), whole)


def _captured(program: CapturedProgram, whole: View, request: Request) -> CapturedProgram:
    """A program captured anew for a request; raises `UnreadableError`."""
    needs = [place in request.needing for place in range(len(whole.tensors))]
    outputs = enumerate(program.captured.outputs)
    used = [place in request.used for place, output in outputs if output.differentiable]
    try:
        found = captured_program(program.program, whole.programs.args, needs=needs, used=used)
    except UnreadableError:
        raise
    except Exception as error:  # the backward may not expect a cotangent that is None
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    if not found.captured.serves(whole.tensors):
        raise UnreadableError("another graph for these sizes")
    return found


def _view(programs: ProgramPair, whole: View) -> View:
    shapes = tuple(whole.cotangents[place][1] for place in programs.hand.used)
    return View(programs, whole.tensors, shapes)


def _is_known(key: Key, view: View, whole: View) -> bool:
    """Whether a hand-written gradient is the whole one, with zeros for missing cotangents."""
    present = set(view.cotangent_variables)
    missing = {v: known_number(0) for v in whole.cotangent_variables if v not in present}
    return view.gradient(key, hand=True) == replaced(whole.gradient(key, hand=True), missing)
