"""The referee knows the truth, accepts inputs that the reference takes, and reads tensors alone."""

import pickle

import pytest
import torch

from pullback.candidates.referee import Referee
from pullback.candidates.sources import sendable
from pullback.candidates.trials import LIKE, Trial
from pullback.errors import ExamplesError


def log(x):
    return torch.log(x)


@pytest.fixture
def referee(tmp_path):
    found = Referee()
    inputs = sendable(lambda: (torch.rand(4, 6) + 0.5,), "inputs")
    found.known = found.start(sendable(log, "reference"), inputs, str(tmp_path / "examples.pt"))
    found.path = str(tmp_path / "got.pt")
    return found


def test_start_says_what_there_is(referee):
    assert referee.known["symbols"] == [[4, 6]]
    assert referee.known["names"] == ["x"]
    assert referee.known["has_gradient"]
    assert referee.known["is_steady"]
    assert referee.known["changes"] == []
    assert referee.known["device"] == "cpu"


def test_results_that_are_not_finite_are_not_asked_for(referee):
    assert referee.truth(Trial(1, LIKE), True)["accepted"]
    assert not referee.truth(Trial(1, "zeros"), True)["accepted"]


def test_results_are_compared(referee):
    trial = Trial(3, LIKE)
    x = referee.maker.made(trial).args[0]
    torch.save([log(x)], referee.path)

    assert referee.compare(trial, False, referee.path)["status"] == "right"
    torch.save([log(x) + 0.01], referee.path)
    assert referee.compare(trial, False, referee.path)["status"] == "wrong"


def test_files_that_hold_code_are_not_run(referee, tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    with open(referee.path, "wb") as file:
        pickle.dump([Evil()], file)

    assert referee.compare(Trial(3, LIKE), False, referee.path)["status"] == "shape"
    assert not (tmp_path / "ran").exists()


def test_inputs_must_be_arguments(tmp_path):
    with pytest.raises(ExamplesError) as caught:
        Referee().start(sendable(log, "reference"), None, str(tmp_path / "examples.pt"))

    assert "must come with inputs to judge with" in str(caught.value)


def test_a_reference_that_writes_says_so(tmp_path):
    inputs = sendable(lambda: (torch.rand(3),), "inputs")
    found = Referee().start(
        sendable(lambda x: x.detach().add_(1), "reference"), inputs, str(tmp_path / "e.pt")
    )

    assert found["changes"] == [0]
