"""An emitted op in a program without Python, by its CMake file."""

import shutil
import subprocess

import pytest
import torch

import pullback as pb
from examples import my_relu
from pullback.emit.cpp.op import emit_cpp
from pullback.emit.subject import subject_of

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


def mixed(z, x, labels, mode="mean"):
    return z * z.conj(), torch.nn.functional.cross_entropy(x, labels, reduction=mode)


def test_every_kind_of_input_is_made(tmp_path):
    z = torch.randn(70, dtype=torch.complex64)
    examples = (z, torch.randn(30, 5), torch.randint(5, (30,)))
    pb.emit(mixed, "cpp", examples=examples, path=tmp_path, verify=False)
    lines, code = said_by(tmp_path, "mixed")

    assert [line.partition(":")[0] for line in lines] == ["out0", "out1", "grad_z", "grad_x"]
    assert all(line.endswith(", as in the program") for line in lines)
    assert code == 0


def noisy(x):
    return torch.nn.functional.dropout(x, 0.5)


def test_random_numbers_are_not_compared():
    main = emit_cpp(subject_of(noisy, (torch.randn(3),)))["main.cpp"]

    assert "What it must be is not known: the op draws random numbers." in main
    assert "compare(" not in main
