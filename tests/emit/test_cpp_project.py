"""An emitted op in a program without Python, by its CMake file."""

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


def said_by(folder, op):
    """What the program in a folder says, and its exit code."""
    where = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for command in (["cmake", "-S", ".", "-B", "build", where], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        [folder / "build" / f"{op}_main"], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines(), done.returncode


def test_program_without_python_compares_with_recorded_sums(tmp_path):
    x = torch.tensor([[-1.0, 2.0], [0.5, -3.0]], requires_grad=True)
    pb.emit(my_relu.MyReLU, "cpp", examples=(x,), path=tmp_path, verify=False)
    main = tmp_path / "main.cpp"
    right = said_by(tmp_path, "my_relu")
    text = main.read_text(encoding="utf-8")
    main.write_text(
        text.replace('compare("grad_x", gradients[0], 2.0', 'compare("grad_x", gradients[0], 3.0'),
        encoding="utf-8",
    )
    wrong = said_by(tmp_path, "my_relu")

    assert right == (
        ["out: [2, 2] sum 2.5, as in the program", "grad_x: [2, 2] sum 2, as in the program"],
        0,
    )
    assert wrong == (
        [
            "out: [2, 2] sum 2.5, as in the program",
            "grad_x: [2, 2] sum 2, and not as in the program: 3",
        ],
        1,
    )


def noisy(x, scale=0.5):
    return torch.nn.functional.dropout(x, 0.5) * scale


def sums(x, labels, mode="mean"):
    return torch.nn.functional.cross_entropy(x, labels, reduction=mode)


def mixed(z, count):
    return z * z.conj(), count.double().cumsum(0)


CASES = {
    "noisy": (noisy, (torch.randn(3),)),
    "sums": (sums, (torch.randn(40, 5), torch.randint(5, (40,)))),
    "mixed": (mixed, (torch.randn(70, dtype=torch.complex64), torch.arange(5))),
}


def test_every_kind_of_input_is_made(tmp_path):
    for name, (program, examples) in CASES.items():
        folder = tmp_path / name
        pb.emit(program, "cpp", examples=examples, path=folder, verify=False)
    found = {name: said_by(tmp_path / name, name) for name in CASES}

    assert {name: code for name, (_, code) in found.items()} == dict.fromkeys(CASES, 0)
    assert all("as in the program" in line for line in (*found["sums"][0], *found["mixed"][0]))
    assert not any("as in the program" in line for line in found["noisy"][0])
