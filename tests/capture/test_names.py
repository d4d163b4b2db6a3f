"""The names that the user gave to programs, arguments and tensors around them."""

import functools

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.capture.names import (
    argument_names,
    class_name,
    closure_names,
    identifier,
    late_bound,
    program_name,
    program_place,
)
from pullback.errors import FunctionNameError
from tests.capture.cases import normal
from tests.capture.functions import family

F = family(pb.Function)
GLOBAL = normal(3)


def closure_name(program, tensor):
    return closure_names(program).get(id(tensor), "")


def scaled(x, w, *rest, flag=None):
    return x * w


def test_programs_are_called_as_written():
    assert program_name(scaled) == "scaled"
    assert program_name(F.Plain.apply) == "Plain.apply"
    assert program_name(functools.partial(scaled, 1)) == "scaled"
    assert program_name(nn.Linear(1, 1)) == "Linear"
    assert program_name(torch.sin) == "sin"


def test_places_of_programs_are_found():
    line = scaled.__code__.co_firstlineno

    assert program_place(scaled) == f"test_names.py:{line}"
    assert program_place(functools.partial(scaled, 1)) == f"test_names.py:{line}"
    assert program_place(F.Plain.apply).startswith("functions.py:")
    assert program_place(nn.Linear(1, 1)).startswith("linear.py:")
    assert program_place(torch.sin) == ""


def test_arguments_are_named_by_signature():
    assert argument_names(scaled, (1, [2, {"k": 3}], 4, 5)) == [
        "x",
        "w[0]",
        "w[1]['k']",
        "rest[0]",
        "rest[1]",
    ]
    assert argument_names(F.Plain.apply, (1, 2, 3)) == ["x", "factor", "mode"]
    assert argument_names(functools.partial(scaled, 1), (2,)) == ["w"]
    assert argument_names(nn.Linear(1, 1), (1,)) == ["input"]


def test_silent_builtins_get_numbers():
    assert argument_names(torch.sin, (1,)) == ["arg0"]
    assert argument_names(lambda x: x, (1, 2)) == ["x", "arg1"]


def test_variable_of_the_scope_is_found():
    local = normal(3)

    assert closure_name(lambda x: x * local, local) == "local"
    assert closure_name(lambda x: x * GLOBAL, GLOBAL) == "GLOBAL"
    assert closure_name(lambda x: [y * GLOBAL for y in x], GLOBAL) == "GLOBAL"


def test_member_of_a_container_is_found():
    params = {"w": [normal(3), normal(3)]}

    assert closure_name(lambda x: x * params["w"][1], params["w"][1]) == "params['w'][1]"


def test_tensor_of_helper_is_found():
    def helper(x):
        return x * GLOBAL

    assert closure_name(lambda x: helper(x) + 1, GLOBAL) == "GLOBAL"


def test_parameters_of_modules_are_found():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.table = torch.ones(2)

        def forward(self, x):
            return self.layer(x) + self.table

    net = Net()

    assert closure_name(net, net.layer.weight) == "self.layer.weight"
    assert closure_name(net.forward, net.table) == "self.table"
    assert closure_name(lambda x: net(x), net.layer.bias) == "net.layer.bias"


def test_unknown_tensor_has_no_name():
    def program(x):
        return unset * x

    if GLOBAL is None:
        unset = 1  # a variable that is never bound

    assert closure_name(program, normal(3)) == ""
    assert closure_name(torch.sin, normal(3)) == ""


def test_names_become_identifiers():
    names = ["xs[0]", "self.params['w']", "lambda", "0", "x"]

    assert [identifier(name) for name in names] == ["xs_0", "self_params_w", "lambda_", "_0", "x"]


def test_apply_is_looked_up_late():
    x = normal(3)
    applied = late_bound(F.Plain.apply)
    partial = late_bound(functools.partial(F.Plain.apply, x, mode="mul"))

    assert applied is not F.Plain.apply
    assert torch.equal(applied(x, 2.0, "mul"), x * 2)
    assert torch.equal(partial(factor=3.0), x * 3)
    assert late_bound(scaled) is scaled


# ---- the class that is made of a program ----

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
