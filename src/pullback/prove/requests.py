"""What a backward may be asked for, besides everything: some of the gradients, some of the outputs.

A hand-written backward may look at `needs_input_grad`, and at cotangents that are None. So it is
read once more for each setting. Mostly it computes what it computes for everything, with zeros in
the place of the cotangents that are missing: then a proof for everything is a proof for that too.
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
from pullback.prove.scalars import constant, replaced

FEW = 3  # inputs or outputs: of so many each choice is looked at, of more only each by itself


@dataclass(frozen=True, slots=True)
class Request:
    """Which tensors need a gradient, and which outputs are used, by their places."""

    needing: tuple[int, ...]
    used: tuple[int, ...]
    text: str

    def asks_for(self, key: Key, sides: ProgramPair) -> bool:
        """Whether the gradient `key` is needed; those of closures always are."""
        return key in self.needing or key >= len(sides.tensors)


def partial_requests(sides: ProgramPair) -> Iterator[Request]:
    """Every setting but the whole one, in which something is asked for."""
    captured = sides.hand.captured
    tensors = range(len(sides.tensors))
    needing = tuple(place for place in tensors if captured.inputs[place].needs)
    used = tuple(sides.hand.used)
    for some in _choices(needing):
        names = ", ".join(f"`{captured.inputs[place].name}`" for place in some)
        verb = "needs a gradient" if len(some) == 1 else "need gradients"
        yield Request(some, used, f"only {names} {verb}")
    for some in _choices(used):
        outputs = "output" if len(some) == 1 else "outputs"
        verb = "is" if len(some) == 1 else "are"
        yield Request(needing, some, f"only {outputs} {', '.join(map(str, some))} {verb} used")


def _choices(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    largest = len(places) - 1 if len(places) <= FEW else 1
    for count in range(1, largest + 1):
        yield from itertools.combinations(places, count)


def view_for(setting: Request, whole: View, keys: Sequence[Key]) -> View | None:
    """Both sides in a setting, at the sizes of `whole`; None if it has nothing new for `keys`.

    Raises `UnreadableError`, or `Outside`.
    """
    sides = whole.sides
    hand = _captured(sides.hand, sides, setting)
    _require_served(hand, whole)
    view = _view(ProgramPair(hand, sides.derived, sides.tensors, sides.args), whole)
    if all(_is_known(key, view, whole) for key in hand.keys if key in keys):
        return None
    derived = _captured(sides.derived, sides, setting)
    _require_served(derived, whole)
    return _view(ProgramPair(hand, derived, sides.tensors, sides.args), whole)


def _captured(side: CapturedProgram, sides: ProgramPair, setting: Request) -> CapturedProgram:
    needs = [place in setting.needing for place in range(len(sides.tensors))]
    outputs = enumerate(side.captured.outputs)
    used = [place in setting.used for place, output in outputs if output.differentiable]
    try:
        return captured_program(side.program, sides.args, needs=needs, used=used)
    except UnreadableError:
        raise
    except Exception as error:  # the user's: a cotangent that is None, where a tensor is expected
        raise UnreadableError(f"{type(error).__name__}: {error}") from None


def _require_served(side: CapturedProgram, whole: View) -> None:
    if not side.captured.serves(whole.tensors):
        raise UnreadableError("another graph for these sizes")


def _view(sides: ProgramPair, whole: View) -> View:
    return View(sides, whole.tensors, tuple(whole.cotangents[p][1] for p in sides.hand.used))


def _is_known(key: Key, view: View, whole: View) -> bool:
    """Whether a hand-written gradient is the whole one, with zeros for missing cotangents."""
    present = set(view.cotangent_variables)
    missing = {v: constant(0) for v in whole.cotangent_variables if v not in present}
    return view.gradient(key, hand=True) == replaced(whole.gradient(key, hand=True), missing)
