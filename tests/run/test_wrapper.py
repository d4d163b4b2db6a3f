"""Inductor's Python as steps: each form that is read, and others that are left alone."""

import importlib.util
import math
import textwrap

import pytest
import torch

from pullback.run.wrapper import reading_of

HEAD = """
import torch
from math import gcd as kernel
constant = torch.ones(4)
"""


@pytest.fixture
def call_of(tmp_path):
    """A function that makes the function `call` of a module whose body is given."""

    def make(body):
        path = tmp_path / "module.py"
        path.write_text(
            f"{HEAD}\ndef call(args):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
        )
        spec = importlib.util.spec_from_file_location("module", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.call

    return make


ROW = [torch.randn(4), torch.randn(4)]

KNOWN = """
a, b = args
args.clear()
buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
kernel(a, constant, buf0)
del a
buf1 = buf0; del buf0  # reuse
buf2 = empty_strided_cpu((2, 2), (2, 1), torch.float64)
extern_kernels.mm(reinterpret_tensor(buf1, (2, 2), (2, 1), 0), b, out=buf2)
extern_kernels.addmm(b, buf1, buf2, alpha=1, beta=0, out=buf2)
return (buf1, reinterpret_tensor(buf2, (4, ), (1, ), 0), None, b, )
"""


def test_known_forms_are_read(call_of):
    reading = reading_of(call_of(KNOWN), ROW)

    assert [(step["kind"], step["to"], step["from"]) for step in reading.steps] == [
        ("empty", 2, []),
        ("kernel", 0, [0, 3, 2]),
        ("drop", 0, []),
        ("same", 4, [2]),
        ("drop", 2, []),
        ("empty", 5, []),
        ("view", 6, [4]),
        ("mm", 5, [6, 1]),
        ("drop", 6, []),
        ("addmm", 5, [1, 4, 5]),
        ("view", 7, [5]),
    ]
    assert reading.made == (4, 7, -1, 1)
    assert reading.taken == (0, 1)
    assert [place for place, _ in reading.constants] == [3]
    assert reading.steps[1]["path"] == math.__file__
    assert reading.steps[1]["name"] == "gcd"
    assert (reading.steps[9]["alpha"], reading.steps[9]["beta"]) == (1.0, 0.0)


def test_numbers_among_arguments_have_no_register(call_of):
    call = call_of("size, a = args\nargs.clear()\ndel size\nreturn (a, )")
    reading = reading_of(call, [4, ROW[0]])

    assert reading.taken == (1,)
    assert reading.made == (0,)
    assert reading.steps == ()


UNKNOWN = {
    "an op": "a, b = args\nbuf = torch.ops.aten.sin.default(a)\nreturn (buf, )",
    "an open size": "s, a = args\nb = empty_strided_cpu((s, ), (1, ), torch.int8)\nreturn (b, )",
    "a number for a kernel": "a, b = args\nkernel(a, 4)\nreturn (a, )",
    "an unknown kernel": "a, b = args\nnobody(a, b)\nreturn (a, )",
    "a Python kernel": "a, b = args\ncall(a)\nreturn (a, )",
    "another product": "a, b = args\nextern_kernels.convolution(a, b, out=a)\nreturn (a, )",
    "a block": "a, b = args\nwith torch.no_grad():\n    pass\nreturn (a, )",
    "no result": "a, b = args\ndel a",
    "fewer arguments": "a, = args\nreturn (a, )",
    "a dropped name": "a, b = args\ndel a\nreturn (a, )",
}


@pytest.mark.parametrize("form", UNKNOWN)
def test_unknown_form_is_left_alone(form, call_of):
    assert reading_of(call_of(UNKNOWN[form]), ROW) is None


def test_other_callables_are_left_alone():
    assert reading_of(torch.sin, ROW) is None
    assert reading_of(lambda args: args, ROW) is None
