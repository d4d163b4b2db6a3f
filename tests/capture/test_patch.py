"""Each `apply` of the watching thread is announced, and nothing stays changed afterwards."""

import threading

import pytest
import torch

import pullback as pb
from pullback.capture.patch import watching
from pullback.function import call_watch
from tests.capture.cases import normal
from tests.capture.functions import family

FAMILIES = {"ours": family(pb.Function), "torch's": family(torch.autograd.Function)}
every_family = pytest.mark.parametrize("f", FAMILIES.values(), ids=FAMILIES)


def state():
    """What the watching of `apply` changes."""
    classes = torch.autograd.Function.__mro__
    return [
        *(vars(cls).get("apply") for cls in classes),
        vars(pb.Function)["apply"],
        call_watch.current,
    ]


class Notes:
    """A handler that notes the names of the Functions."""

    def __init__(self):
        self.names = []

    def __call__(self, cls, call, args, kwargs):
        self.names.append(cls.__name__)
        return call(*args, **kwargs)


@every_family
def test_outermost_apply_is_announced(f):
    notes, x = Notes(), normal(3)

    with watching(notes):
        y = f.Nested.apply(x)
    z = f.Nested.apply(x)

    assert notes.names == ["Nested"]
    assert torch.equal(y, z)


@every_family
def test_arguments_arrive_as_given(f):
    seen = []

    def handler(cls, call, args, kwargs):
        seen.append((cls, args, kwargs))
        return call(*args, **kwargs)

    x = normal(3)
    with watching(handler):
        f.Plain.apply(x, 2.0, "mul")

    assert seen == [(f.Plain, (x, 2.0, "mul"), {})]


@every_family
def test_handler_may_change_the_call(f):
    with watching(lambda cls, call, args, kwargs: call(torch.zeros(3)) + 1):
        y = f.SavedInput.apply(normal(3))

    assert y.tolist() == [1.0, 1.0, 1.0]


def test_defaults_and_keywords_still_work():
    class Power(pb.Function):
        @staticmethod
        def forward(x, exponent=2):
            return x**exponent

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g, None

    x = torch.full((2,), 3.0)
    with watching(Notes()) as _:
        results = [Power.apply(x), Power.apply(x, exponent=3), Power.apply(exponent=1, x=x)]

    assert [y[0].item() for y in results] == [9.0, 27.0, 3.0]


@every_family
def test_nobody_watches_inside_none(f):
    notes = Notes()

    with watching(notes):
        with watching(None):
            f.SavedInput.apply(normal(3))
        f.SavedMiddle.apply(normal(3))

    assert notes.names == ["SavedMiddle"]


@every_family
def test_other_thread_is_not_announced(f):
    notes = Notes()

    with watching(notes):
        other = threading.Thread(target=f.SavedInput.apply, args=(normal(3),))
        other.start()
        other.join()

    assert notes.names == []


def test_everything_is_put_back():
    before = state()

    with watching(Notes()):
        changed = state()

    assert changed != before
    assert state() == before


def test_everything_is_put_back_after_errors():
    before = state()

    with pytest.raises(KeyError), watching(Notes()):
        raise KeyError("x")

    assert state() == before


def test_last_of_two_threads_puts_back():
    before = state()
    inside, leave = threading.Event(), threading.Event()

    def work():
        with watching(Notes()):
            inside.set()
            leave.wait(30)

    other = threading.Thread(target=work)
    with watching(Notes()):
        other.start()
        inside.wait(30)
    during = state()
    leave.set()
    other.join()

    assert during != before
    assert state() == before


@every_family
def test_error_in_forward_keeps_watching(f):
    notes = Notes()

    with watching(notes):
        with pytest.raises(TypeError):
            f.Plain.apply(normal(3))
        f.SavedInput.apply(normal(3))

    assert notes.names[-1] == "SavedInput"
