"""Faults read as a list, and say what they know in the form of the house."""

from pullback.diagnose.edit_search import Edit
from pullback.diagnose.fault import Fault, Faults

FAULT = Fault(
    input="x",
    element=(1, 2),
    expected=2.0,
    got=-1.5,
    wrong=3,
    total=12,
    pattern="the sign is wrong",
    edit=Edit("change its sign"),
    place="ops.py:12",
)

TEXT = """\
the gradient of `x` is wrong: the sign is wrong
  at:       ops.py:12
  expected: 2 at [1, 2]
  got:      -1.5, off by 3.5; 3 of 12 elements wrong
  fix:      change its sign"""


def test_fault_says_everything():
    assert str(FAULT) == TEXT


def test_faults_are_a_sequence():
    faults = Faults("Op", (FAULT,), 4)

    assert (len(faults), list(faults), faults[0], faults[:1]) == (1, [FAULT], FAULT, (FAULT,))
    assert faults


def test_reason_comes_after_faults():
    assert str(Faults("Op", (FAULT,), 4, "why")) == f"{TEXT}\n  note:     why"


def test_sound_function_says_how_often_it_was_tried():
    faults = Faults("Op", trials=4)

    assert str(faults) == "`Op`: no gradient is wrong in 4 trials"
    assert faults.is_judged
    assert not faults


def test_function_without_trials_is_not_judged():
    faults = Faults("Op", reason="it has no backward")

    assert str(faults) == "`Op` was not judged: it has no backward"
    assert not faults.is_judged


def test_complex_numbers_are_off_by_their_distance():
    fault = Fault("x", (), 1 + 1j, 1 - 1j, 1, 1, "the conjugate", None, "ops.py:1")

    assert fault.off == 2
    assert "the only element wrong" in str(fault)
