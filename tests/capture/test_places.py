"""The user's frames are told from those of PyTorch, of pullback and of Python."""

import contextlib
import sys
from dataclasses import dataclass

import numpy
import pytest
import sympy
import torch

from pullback.capture import joint
from pullback.capture.places import (
    call_user,
    frames_above,
    is_users,
    is_users_error,
    place_at,
    place_of_error,
    runs_inside,
)


def here():
    return sys._getframe(1)


class Frame:
    """A frame that runs some code under some module's name."""

    def __init__(self, path, name="m"):
        self.f_code = type("Code", (), {"co_filename": path})
        self.f_globals = {"__name__": name}


OTHERS = {
    "torch": torch.nn.functional.__file__,
    "pullback": joint.__file__,
    "sympy": sympy.__file__,
    "numpy": numpy.__file__,
    "library": contextlib.__file__,
    "frozen": "<frozen importlib._bootstrap>",
    "generated": "<eval_with_key>.12",
}


@pytest.mark.parametrize("name", OTHERS)
def test_frames_of_others_are_told(name):
    assert not is_users(Frame(OTHERS[name]))


@pytest.mark.parametrize("path", ["/elsewhere/ops.py", "<stdin>", "<ipython-input-1>"])
def test_frames_of_the_user_are_told(path):
    assert is_users(Frame(path))


def test_installed_package_of_user_counts():
    packages = numpy.__file__.split("numpy")[0]

    assert is_users(Frame(f"{packages}somebodys_model/layers.py"))


def test_generated_methods_are_nobodys():
    @dataclass
    class Point:
        x: int

    code = Point.__init__.__code__.co_filename

    assert code == "<string>"
    assert not is_users(Frame(code, "torch.fx.graph"))
    assert is_users(Frame(code, "__main__"))


def test_place_is_file_and_line():
    frame = here()

    assert place_at(frame) == f"test_places.py:{frame.f_lineno}"


def test_search_ends_at_the_call():
    def program():
        return len(list(frames_above(sys._getframe())))

    assert call_user(program) == 1
    assert program() > 1


def test_module_above_is_known():
    def program():
        return runs_inside(sys._getframe(), __name__), runs_inside(sys._getframe(), "torch")

    assert call_user(program) == (True, False)


def test_no_frame_of_user_gives_nothing():
    assert place_at(None) == ""


def test_error_is_placed_at_deepest_frame():
    def inner():
        return torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError) as caught:
        call_user(inner)

    line = inner.__code__.co_firstlineno + 1
    assert place_of_error(caught.value) == f"test_places.py:{line}"


def test_raised_error_is_the_users():
    def raises():
        raise KeyError("x")

    def calls():
        return contextlib.nullcontext().__enter__(1)

    with pytest.raises(KeyError) as mine:
        call_user(raises)
    with pytest.raises(TypeError) as stack:
        contextlib.ExitStack().enter_context(3)

    assert is_users_error(mine.value)
    assert not is_users_error(stack.value)


def test_error_outside_of_a_program_has_no_place():
    def fails():
        raise ValueError("not a program's")

    with pytest.raises(ValueError, match="program") as caught:
        fails()

    assert place_of_error(caught.value) == ""
    assert not is_users_error(caught.value)
