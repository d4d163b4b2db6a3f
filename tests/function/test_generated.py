"""Generated code is shown by tracebacks, and forgotten with its functions."""

import gc
import inspect
import linecache
import traceback

import pytest
import torch

import pullback as pb
from pullback.function import dispatch
from pullback.function.generated import codes_in, run_text

TEXT = "def divide(a, b):\n    c = a\n    return c / b\n"


def made(title, text=TEXT, name="divide"):
    space = {}
    run_text(text, title, space)
    return space[name]


def shown(call):
    """The traceback of what a call raises, as text."""
    try:
        call()
    except Exception:
        return traceback.format_exc()
    return pytest.fail("did not raise")


def test_traceback_shows_the_line():
    divide = made("a division")

    text = shown(lambda: divide(1, 0))

    assert 'File "<a division>", line 3, in divide\n    return c / b\n' in text
    assert inspect.getsource(divide) == TEXT


def test_texts_of_one_title_are_told_apart():
    one, other = made("told apart"), made("told apart", TEXT.replace("c /", "c //"))

    assert "return c / b" in shown(lambda: one(1, 0))
    assert "return c // b" in shown(lambda: other(1, 0))
    assert other.__code__.co_filename == "<told apart 2>"


def test_text_lives_as_long_as_a_function_of_it():
    text = "def make():\n    def inner():\n        return 1 / 0\n    return inner\n"
    inner = made("short life", text, "make")()
    gc.collect()

    assert "return 1 / 0" in shown(inner)
    del inner
    gc.collect()
    assert "<short life>" not in linecache.cache


# ---- what a user sees ----


class Refusing(pb.Function):
    @staticmethod
    def forward(ctx, x):
        raise RuntimeError("no")

    @staticmethod
    def backward(ctx, g):
        return g


def test_traceback_through_apply_shows_our_lines():
    text = shown(lambda: Refusing.apply(torch.ones(2, requires_grad=True)))

    assert "function/dispatch.py" in text
    assert "    output = info.raw(*args)\n" in text
    assert '    raise RuntimeError("no")\n' in text


def test_lines_of_our_functions_are_found():
    assert inspect.getsource(dispatch._apply).startswith("def _apply(")


def test_traceback_through_a_derived_forward_shows_its_text():
    table, place = torch.ones(3, requires_grad=True), torch.tensor([2])
    D = pb.derive(lambda table, place: table[place].sin(), table, place)

    text = shown(lambda: D.apply(table, torch.tensor([3])))

    after = text.split('File "<derived forward of ')[1].splitlines()[1]
    assert after == "    out = table[place].sin()"


def test_code_of_inner_functions_is_found():
    def outer():
        return lambda x: lambda: x

    names = [code.co_name for code in codes_in(outer.__code__)]

    assert names[0] == "outer"
    assert names.count("<lambda>") == 2
