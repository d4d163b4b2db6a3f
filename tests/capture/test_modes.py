"""Modes that a program switched are switched again, and only those."""

import pytest
import torch

from pullback.capture.modes import Modes, modes_now

CPU = frozenset({"cpu"})
PLAIN = Modes()
HALF = Modes(autocast=(("cpu", torch.bfloat16),))


def test_modes_of_thread_are_read():
    assert modes_now(CPU) == PLAIN
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert modes_now(CPU) == Modes(grad=False, autocast=HALF.autocast)
    with torch.inference_mode():
        assert modes_now(CPU) == Modes(grad=False, inference=True)


@pytest.mark.parametrize(
    "modes", [PLAIN, Modes(grad=False), Modes(grad=False, inference=True), HALF]
)
def test_modes_are_entered_and_left(modes):
    with modes.entered(PLAIN):
        assert modes_now(CPU) == modes

    assert modes_now(CPU) == PLAIN


def test_switched_off_autocast_is_entered():
    with torch.autocast("cpu", dtype=torch.bfloat16), PLAIN.entered(HALF):
        assert modes_now(CPU) == PLAIN


def test_what_was_not_switched_stays():
    with torch.no_grad(), HALF.entered(PLAIN):
        assert modes_now(CPU) == Modes(grad=False, autocast=HALF.autocast)
