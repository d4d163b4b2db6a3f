"""A fingerprint changes with what is written and called, and with nothing else."""

import json
import linecache

import pytest
import torch

from pullback.compose.flow import recorded_units
from pullback.errors import PlanFileError
from pullback.plan.fingerprint import arguments_signature, fingerprint_of, redrawn_arguments
from tests.plan.fakes import leaf


def program_of(text, tmp_path, name="ops"):
    """A program from a file, with a Function that it calls."""
    source = f"""
import torch
import pullback as pb

class Twice(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2

{text}
"""
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    space = {"__name__": name}
    exec(compile(source, str(path), "exec"), space)
    linecache.checkcache(str(path))
    return space["program"]


PROGRAM = "def program(x):\n    return Twice.apply(x).sin()\n"


def number(text, tmp_path, size=8):
    program = program_of(text, tmp_path)
    return fingerprint_of(program, recorded_units(program, (leaf(size),)))


def test_comments_and_sizes_do_not_count(tmp_path):
    commented = PROGRAM.replace("(x):\n", "(x):\n    # twice, then the sine\n\n")

    assert number(commented, tmp_path) == number(PROGRAM, tmp_path)
    assert number(PROGRAM, tmp_path, size=80) == number(PROGRAM, tmp_path)


def test_other_text_of_the_program_counts(tmp_path):
    assert number(PROGRAM.replace("sin()", "sin() + 0"), tmp_path) != number(PROGRAM, tmp_path)


def test_other_calls_behind_the_same_text_count(tmp_path):
    program = "def program(x):\n    return step(x)\n"
    first = "def step(x):\n    return x.sin()\n" + program
    second = "def step(x):\n    return x.cos()\n" + program

    assert number(first, tmp_path) != number(second, tmp_path)


def test_function_without_source_has_one():
    space = {}
    exec("def program(x): return x.sin() * 2", space)
    other = {}
    exec("def program(x): return x.sin() * 3", other)

    one, two = (fingerprint_of(each["program"], None) for each in (space, other))

    assert one != two


def test_class_of_the_call_counts_as_written(tmp_path):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent + cotangent

    Second.__name__ = "First"
    units = [recorded_units(cls.apply, (leaf(),)) for cls in (First, Second)]
    numbers = [fingerprint_of(leaf, one) for one in units]

    assert numbers[0] != numbers[1]


# ---- arguments ----

ARGUMENTS = (
    torch.rand(2, 3, requires_grad=True),
    torch.rand(4, dtype=torch.float64),
    torch.tensor([1, 2]),
    torch.tensor([True]),
    torch.rand(2, dtype=torch.complex64),
    3,
    0.1,
    float("inf"),
    "mean",
    None,
    True,
    [torch.rand(2), (1, 2)],
    {"w": torch.rand(3, dtype=torch.bfloat16)},
)


def test_arguments_come_back_alike():
    signature = json.loads(json.dumps(arguments_signature(ARGUMENTS)))

    again = redrawn_arguments(signature)

    assert arguments_signature(again) == signature
    assert again[5:11] == ARGUMENTS[5:11]
    assert [type(one) for one in again[11]] == [torch.Tensor, tuple]


def test_argument_that_cannot_be_written_needs_examples():
    with pytest.raises(PlanFileError) as caught:
        redrawn_arguments(arguments_signature((leaf(), object())))

    assert caught.value.facts["got"] == "a object among the arguments"
    assert caught.value.facts["fix"] == "pb.load_plan(path, program, *examples)"
