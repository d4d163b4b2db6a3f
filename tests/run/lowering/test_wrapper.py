"""Inductor's Python as steps: each form that is read, and others that are left alone."""

import gc
import importlib.util
import math
import textwrap
import weakref

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pullback.run.backends import native
from pullback.run.lowering.launches import Unread, launch_of
from pullback.run.lowering.wrapper import reading_of

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
    views = [step for step in reading.steps if step["kind"] == "view"]
    assert [(list(v["sizes"]), list(v["strides"])) for v in views] == [([2, 2], [2, 1]), ([4], [1])]


def test_numbers_among_arguments_have_no_register(call_of):
    call = call_of("size, a = args\nargs.clear()\ndel size\nreturn (a, )")
    reading = reading_of(call, [4, ROW[0]])

    assert reading.taken == (1,)
    assert reading.made == (0,)
    assert reading.steps == ()


REDUCED = """
a, b = args
args.clear()
buf0 = a[0 * 2 * 3 : (0 + 1) * 2 * 3].view(2, 3).sum(dim=0)
buf1 = a[1 * 2 * 3 : (1 + 1) * 2 * 3].view(2, 3).amax(dim=0).to(torch.float64)
buf2 = a[2 * 2 * 3 : (2 + 1) * 2 * 3].view(2, 3).amin(dim=0)
b.zero_()
return (buf0, buf1, buf2, )
"""


@pytest.mark.needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_last_round_of_a_reduction_runs_as_python(dtype, call_of):
    call, row = call_of(REDUCED), [torch.randn(18).to(dtype), torch.ones(3)]
    reading = reading_of(call, row)

    facts = reading.device, list(reading.reused), reading.register_count
    rows = list(reading.taken), list(reading.steps), list(reading.constants), list(reading.made)
    got = native.native_extension().steps(*facts, *rows)([row[0], zeroed := torch.ones(3)])

    for mine, python in zip(got, call(list(row)), strict=True):
        assert mine.dtype == python.dtype
        torch.testing.assert_close(mine, python)
    assert not zeroed.any()


UNKNOWN = {
    "a slice of steps": "a, b = args\nc = a[0:4:2].view(1, 2).sum(dim=0)\nreturn (c, )",
    "another reduction": "a, b = args\nc = a[0:4].view(2, 2).prod(dim=0)\nreturn (c, )",
    "another dimension": "a, b = args\nc = a[0:4].view(2, 2).sum(dim=1)\nreturn (c, )",
    "an open bound": "s, a = args\nc = a[0:s].view(s, 2).sum(dim=0)\nreturn (c, )",
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


# ---- on a GPU ----


class Static:
    """A compiled kernel, as Inductor's own launcher has it."""

    function, num_warps, shared = 140_000_000_000_000, 4, 512
    has_global_scratch, has_profile_scratch = True, False

    def __init__(self, types):
        self.arg_tys = types

    def run(self, *args):
        raise AssertionError("nothing is launched while it is read")


class Kernel:
    """A kernel with one launcher, for blocks of 128."""

    def __init__(self, types="OOi", launchers=1):
        space = {"runner": Static(types).run}
        lines = [
            "def launcher(a, b, xnumel, BLOCK, stream):",
            "    runner(-(xnumel // -128), 1, 1, stream, a, b, xnumel)",
        ]
        exec("\n".join(lines), space)
        self.launchers = [space["launcher"]] * launchers


GPU = """
a, b = args
args.clear()
with torch.cuda._DeviceGuard(1):
    torch.cuda.set_device(1)
    buf0 = empty_strided_cuda((1000, ), (1, ), torch.bfloat16)
    stream1 = get_raw_stream(1)
    triton.run(a, reinterpret_tensor(buf0, (10, ), (1, ), 0), 1000, 128, stream=stream1)
    del a
    extern_kernels.mm(b, b, out=buf0)
return (buf0, )
"""


@pytest.fixture
def on_gpu():
    with FakeTensorMode(), torch.device("cuda:1"):
        return [torch.empty(4), torch.empty(4)]


@pytest.fixture
def read(call_of, on_gpu):
    """A function that reads the text of a function for a GPU."""

    def make(body, kernel):
        call = call_of(body)
        call.__globals__["triton"] = kernel
        return reading_of(call, on_gpu)

    return make


def test_launch_is_read(read):
    reading = read(GPU, Kernel())

    assert reading.device == 1
    assert [(step["kind"], step["to"], step["from"]) for step in reading.steps] == [
        ("empty", 2, []),
        ("view", 3, [2]),
        ("launch", 0, [0, 3]),
        ("drop", 3, []),
        ("drop", 0, []),
        ("mm", 2, [1, 1]),
    ]
    launch = reading.steps[2]
    assert (launch["function"], launch["threads"], launch["shared"]) == (Static.function, 128, 512)
    assert launch["grid"] == (8, 1, 1)
    assert launch["numbers"] == [None, None, 1000, 0]  # the last is the scratch that is not there
    assert isinstance(launch["owner"], Static)


OTHERWISE = {
    "another device": (GPU.replace("1)", "0)"), Kernel()),
    "a buffer on a CPU": (GPU.replace("strided_cuda", "strided_cpu"), Kernel()),
    "another stream": (GPU.replace("stream=stream1", "stream=other"), Kernel()),
    "a kernel without launchers": (GPU, Kernel(launchers=0)),
    "a kernel that is not tuned yet": (GPU, Kernel(launchers=2)),
    "another kind of kernel": (GPU, print),
    "an unknown type": (GPU, Kernel(types="OO?")),
    "another number of arguments": (GPU, Kernel(types="OO")),
}


@pytest.mark.parametrize("form", OTHERWISE)
def test_other_launches_are_left_alone(form, read):
    assert read(*OTHERWISE[form]) is None


def test_tensors_on_two_devices_are_left_alone(call_of, on_gpu):
    call = call_of("a, b = args\nreturn (a, )")

    assert reading_of(call, on_gpu) is not None
    assert reading_of(call, [on_gpu[0], ROW[0]]) is None


@pytest.mark.parametrize(
    ("kind", "number", "bits"),
    [("i", -1, 0xFFFFFFFF), ("l", -1, -1), ("f", 1.0, 0x3F800000), ("d", -2.0, -(1 << 62))],
)
def test_numbers_are_packed_as_they_lie(kind, number, bits):
    static = Static(f"{kind}")
    static.has_global_scratch = False
    space = {"runner": static.run}
    exec("def launcher(x, stream):\n    runner(1, 1, 1, stream, x)", space)
    kernel = Kernel()
    kernel.launchers = [space["launcher"]]

    assert launch_of(kernel, [number]).numbers() == [bits]


@pytest.mark.parametrize(
    "more", ["global_scratch_size", "profile_scratch_size", "_has_tensordesc", "device_agnostic"]
)
def test_launcher_that_does_more_is_unread(more):
    kernel, given = Kernel(), [None, None, 1000, 128]
    static = kernel.launchers[0].__globals__["runner"].__self__
    setattr(static, more, 0)
    launch_of(kernel, given)
    setattr(static, more, 16)

    with pytest.raises(Unread, match="more than to launch"):
        launch_of(kernel, given)


@pytest.mark.needs_compiler
def test_kernel_lives_as_long_as_the_steps(read):
    """The launcher of some versions of torch unloads its kernel when it ends."""
    kernel = Kernel()
    ended = weakref.ref(kernel.launchers[0].__globals__["runner"].__self__)
    reading = read(GPU, kernel)
    rows = list(reading.taken), list(reading.steps), list(reading.constants), list(reading.made)
    steps = native.native_extension().steps(reading.device, [], reading.register_count, *rows)
    del kernel, reading, rows
    gc.collect()
    assert ended() is not None

    del steps
    gc.collect()

    assert ended() is None


def test_kernel_of_another_form_is_unread():
    with pytest.raises(Unread, match="another launcher"):
        launch_of(object(), [])
