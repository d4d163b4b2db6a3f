"""An emitted op in a program without Python, by its CMake file."""

import re
import shutil
import subprocess

import pytest
import torch

import pullback as pb
from examples import my_relu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs_compiler,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake"),
]


def test_program_without_python_gives_the_same(tmp_path):
    x = torch.tensor([[-1.0, 2.0], [0.5, -3.0]], requires_grad=True)
    pb.emit(my_relu.MyReLU, "cpp", examples=(x,), path=tmp_path)
    where = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for command in (["cmake", "-S", ".", "-B", "build", where], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    said = subprocess.run(
        [tmp_path / "build" / "my_relu_main"], capture_output=True, text=True, check=True
    ).stdout
    torch.manual_seed(0)
    drawn = (torch.rand(2, 2) * (2.0 - (-3.0)) + (-3.0)).requires_grad_()
    out = my_relu.MyReLU.apply(drawn)
    (gradient,) = torch.autograd.grad(out.sum(), drawn)
    found = [(n, s, float(v)) for n, s, v in re.findall(r"(\w+): \[(.+)\] sum (\S+)", said)]

    assert found == [
        ("out", "2, 2", pytest.approx(float(out.sum()), rel=1e-4)),
        ("grad_x", "2, 2", pytest.approx(float(gradient.sum()))),
    ]
