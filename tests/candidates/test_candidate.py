"""What a candidate does beside its result is seen in its own process."""

import time

import pytest
import torch

from pullback.candidates.candidate import Here
from pullback.candidates.sections import FORWARD
from pullback.candidates.sources import sendable
from pullback.candidates.trials import Trial
from pullback.judge.example import example_of


@pytest.fixture
def loaded(tmp_path):
    """A candidate in this process, at one small example."""

    def load(candidate):
        torch.save([example_of((torch.randn(4, 3),))], tmp_path / "examples.pt")
        here = Here()
        here.load(sendable(candidate, "candidate"), str(tmp_path / "examples.pt"))
        here.path = str(tmp_path / "out.pt")
        return here

    return load


def said(here):
    return here.call(Trial(1), here.path, False, False, [])


def test_a_plain_call_has_nothing_to_say(loaded):
    found = said(loaded(torch.sin))

    assert found == {
        "lazy": "",
        "unfinished": False,
        "changed": [],
        "has_gradient": False,
        "same_code": False,
    }


def test_an_error_is_a_refusal(loaded):
    assert said(loaded(lambda x: x @ x))["refused"].startswith("RuntimeError: ")


def test_changed_inputs_are_seen(loaded):
    assert said(loaded(lambda x: x.mul_(2)))["changed"] == [0]


def test_a_class_of_its_own_is_nothing_to_say(loaded):
    class Own(torch.Tensor):
        pass

    assert said(loaded(lambda x: x.sin().as_subclass(Own)))["lazy"] == ""


def test_what_is_computed_when_it_is_asked_for_comes_too_late(loaded):
    def late(x):
        out = torch.zeros_like(x)
        out.detach = lambda: out.copy_(x)
        return out

    here = loaded(late)

    assert "`detach`" in said(here)["lazy"]
    assert not torch.load(here.path, weights_only=True)[0].any()
    here.prepare(FORWARD, [Trial(2)], False)
    here.go(False)
    assert not here._section.kept[0][0].any()


def test_fresh_memory_holds_nan(loaded):
    here = loaded(torch.empty_like)
    here.call(Trial(1), here.path, False, True, [])

    assert torch.load(here.path, weights_only=True)[0].isnan().all()


def test_late_work_is_seen(loaded):
    import threading

    def late(x):
        out = torch.zeros_like(x)

        def write():
            time.sleep(0.005)
            out.fill_(1)

        threading.Thread(target=write).start()
        return out

    assert said(loaded(late))["unfinished"]


def test_timed_results_in_one_memory_are_seen(loaded):
    out = torch.zeros(4, 3)
    here = loaded(torch.sin)
    here.apply = lambda x: out.copy_(x)
    here.prepare(FORWARD, [Trial(1), Trial(2)], False)

    assert here.go(False)["reused"] == 1


def test_numbers_in_the_same_place_are_new(loaded, tmp_path):
    here = loaded(torch.sin)
    paths = [str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]
    second = here.maker.made(Trial(2)).args[0].sin()
    for how in ("identity", "address", "shape"):
        here.again(Trial(1), Trial(2), how, paths)

        assert torch.equal(torch.load(paths[1], weights_only=True)[0], second)


def test_results_of_timed_calls_are_given(loaded):
    here = loaded(torch.sin)
    here.prepare(FORWARD, [Trial(1), Trial(2)], False)
    here.go(False)
    here.give([1], [here.path])

    assert torch.equal(
        torch.load(here.path, weights_only=True)[0], here.maker.made(Trial(2)).args[0].sin()
    )


def test_nothing_is_tampered_with(loaded):
    here = loaded(torch.sin)
    said(here)

    assert here.tampered()["replaced"] == []
