"""The text of a class comes along with what it needs, or not at all."""

import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

import pullback as pb
from pullback.emit.python.own_source import own_source
from pullback.emit.python.own_text import own_text
from pullback.emit.subject import subject_of
from pullback.function.function import Function as OurFunction

RATE = 2 * math.pi
TABLE = torch.arange(4.0).reshape(2, 2)
HOME = os.environ.get("HOME", "")
TWICE = 1
TWICE = 2


def wave(x):
    return torch.sin(RATE * x)


class Base(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return wave(x)


class Derived(Base):
    """A class with a base of its own."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * RATE * torch.cos(RATE * x)


class Renamed(OurFunction):
    """Ours under another name, and a submodule of torch."""

    @staticmethod
    def forward(ctx, x):
        out = F.softplus(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - torch.exp(-out))


class Kept(pb.Function):
    """Keeps a number where only ours can."""

    @staticmethod
    def forward(ctx, x):
        ctx.saved_data["factor"] = 3.0
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_data["factor"]


class OfNumpy(Base):
    @staticmethod
    def forward(ctx, x):
        import numpy as np

        return x * float(np.pi)


class AtHome(Base):
    @staticmethod
    def forward(ctx, x):
        return x * len(HOME)


class OfTwo(Base):
    @staticmethod
    def forward(ctx, x):
        return x * TWICE


class OfExamples(Base):
    examples = staticmethod(pb.nest)

    @staticmethod
    def forward(ctx, x):
        return x * 2


def test_helpers_constants_and_bases_come_along():
    own = own_source(Derived)

    assert own.imports == (
        "import math",
        "from torch.autograd.function import once_differentiable",
    )
    firsts = [text.splitlines()[0] for text in own.statements]
    assert firsts == [
        "RATE = 2 * math.pi",
        "def wave(x):",
        "class Base(torch.autograd.Function):",
        "class Derived(Base):",
    ]
    assert own.names == {"RATE", "wave", "Base", "Derived"}


def test_our_base_becomes_that_of_torch():
    own = own_source(Renamed)

    assert own.imports == ("import torch.nn.functional as F",)
    assert own.statements[0].startswith("class Renamed(torch.autograd.Function):\n")
    assert own.saved == ("out",)


def test_local_class_stands_alone():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return wave(x)

    own = own_source(Local)

    assert own.statements[-1].startswith("class Local(torch.autograd.Function):\n    @staticmethod")


def test_variable_of_a_function_does_not_come_along():
    factor = 3

    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor

    assert own_source(Local) is None


@pytest.mark.parametrize("cls", [OfNumpy, AtHome, OfTwo, OfExamples], ids=lambda cls: cls.__name__)
def test_what_needs_more_does_not_stand_alone(cls):
    assert own_source(cls) is None


def test_class_without_source_does_not_stand_alone():
    space = {"Base": Base, "__name__": "nowhere"}
    exec("class Made(Base):\n    pass\n", space)

    assert own_source(space["Made"]) is None


# ---- it must do the same ----


def test_text_that_does_the_same_is_taken():
    text = own_text(subject_of(Renamed, (torch.linspace(-1, 2, 5),)))

    assert text.statements[-1].splitlines()[:3] == [
        "# Saved for backward:",
        "#     out  an output, which the caller keeps anyway",
        "class Renamed(torch.autograd.Function):",
    ]


def test_text_that_needs_our_context_is_not():
    subject = subject_of(Kept, (torch.linspace(-1, 2, 5),))

    assert own_source(Kept) is not None
    assert own_text(subject) is None


class Cubed(pb.Function):
    """Its second derivative is right only with ours: an intermediate is saved."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return x * square

    @staticmethod
    def backward(ctx, g):
        _, square = ctx.saved_tensors
        return g * 3 * square


def test_text_with_other_second_derivatives_is_not():
    subject = subject_of(Cubed, (torch.linspace(-1, 2, 5),))

    assert own_source(Cubed) is not None
    assert own_text(subject) is None
