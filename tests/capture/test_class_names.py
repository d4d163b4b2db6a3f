"""What a Function is called that is made of a program."""

import functools

import pytest
import torch

import pullback as pb
from pullback.capture.class_names import class_name
from pullback.errors import FunctionNameError

gate = lambda x: x.sigmoid() * x  # noqa: E731


def layer_norm(x, scale):
    return x * scale


class Square(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


def renamed(program):
    return program


named = renamed(lambda x: x.cos())
start = list(); late = lambda x: x.sin()  # noqa: C408, E702, E731 # fmt: skip
pair = [lambda x: x.sin(), lambda x: x.cos()]
alone = {"one": lambda x: x.tan()}

NAMES = {
    "function": (layer_norm, "LayerNorm"),
    "apply of a Function": (Square.apply, "Square"),
    "partial": (functools.partial(layer_norm, scale=2), "LayerNorm"),
    "module": (torch.nn.Linear(1, 1), "Linear"),
    "assigned lambda": (gate, "Gate"),
    "lambda in a call": (named, "Named"),
    "lambda after a call without arguments": (late, "Late"),
    "lambda in a dict": (alone["one"], f"Lambda{alone['one'].__code__.co_firstlineno}"),
}


@pytest.mark.parametrize("case", NAMES)
def test_name_is_the_users(case):
    program, name = NAMES[case]

    assert class_name(program) == name
    assert class_name(program) == name  # asked again, it is the same


def test_lambdas_on_one_line_have_names_of_their_own():
    line = pair[0].__code__.co_firstlineno

    assert [class_name(one) for one in pair] == [f"Lambda{line}", f"Lambda{line}n2"]


def test_lambda_without_text_is_named_by_its_line():
    program = eval("\n\nlambda x: x.sin()".strip())
    other = eval("lambda x: x.cos()")

    assert [class_name(program), class_name(other)] == ["Lambda1", "Lambda1n2"]


@pytest.mark.parametrize("name", ["two words", "", "3rd", "class", "a.b", "__", "größe", 3])
def test_bad_name_is_refused(name):
    with pytest.raises(FunctionNameError, match="must be a name that a Python function") as raised:
        pb.derive(layer_norm, torch.ones(2), 2, name=name)

    assert raised.value.facts["got"] == repr(name)


def test_bad_name_is_told_whole():
    with pytest.raises(FunctionNameError) as raised:
        class_name(layer_norm, "two words")

    assert (
        str(raised.value)
        == """\
E310 function-name: `name` must be a name that a Python function could have
  expected: letters, digits and underscores, such as "gate"
  got:      'two words'"""
    )
