"""`pullback record` runs a program as Python would, and writes what its Functions were given."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from pullback.check.recorded import load_recording
from pullback.cli import record
from pullback.cli.main import app
from pullback.errors import TargetError

TRAIN = """
import sys
import torch


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, g):
        return g * ctx.by, None


if __name__ == "__main__":
    Scaled.apply(torch.ones(int(sys.argv[1])), 2.0)
    print("trained", sys.argv, __name__)
    sys.exit(3)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program `train.py` in the folder where the command runs."""
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_program_runs_and_is_recorded(program, run_python):
    run = run_python("-m", "pullback", "record", "--", sys.executable, "train.py", "4")

    assert run.returncode == 3
    assert run.stdout == "trained ['train.py', '4'] __main__\n"
    assert run.stderr == "pullback: 1 calls of 1 Functions written to pullback-recording.pt\n"
    (call,) = load_recording(program / "pullback-recording.pt").calls
    assert call.target == "__main__:Scaled"
    assert call.args[0].shape == (4,)
    assert load_recording("pullback-recording.pt").names == [f"{program / 'train.py'}:Scaled"]


@pytest.mark.parametrize(
    ("given", "parted"),
    [
        (("python", "a.py", "-x"), ("python", [], ["a.py", "-x"])),
        (("python3.11", "-u", "-m", "a"), ("python3.11", ["-u"], ["-m", "a"])),
        (("/bin/python", "-X", "dev", "-c", "1"), ("/bin/python", ["-X", "dev"], ["-c", "1"])),
    ],
)
def test_command_line_is_parted(given, parted):
    assert record._parted(given) == parted


@pytest.mark.parametrize("given", [("make", "train"), ("python",)])
def test_other_program_is_refused(given):
    error = CliRunner().invoke(app, ["record", "--", *given]).exception

    assert isinstance(error, TargetError)
    assert "E401 target: what is recorded must be a Python program" in str(error)


@pytest.mark.parametrize(
    "way", [["-m", "train"], ["-c", "import train, torch; train.Scaled.apply(torch.ones(2), 1.0)"]]
)
def test_modules_and_code_run_too(program, way, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    out = str(program / "out.pt")
    arguments = ["5"] if way[0] == "-m" else []
    if way[0] == "-m":
        with pytest.raises(SystemExit):
            record.run(out, [*way, *arguments])
    else:
        record.run(out, way)
    sys.modules.pop("train", None)

    (call,) = load_recording(out).calls
    assert call.target.endswith(":Scaled")


def test_exit_code_of_program_is_passed_on(monkeypatch):
    monkeypatch.setattr(subprocess, "call", lambda command: 7)

    assert CliRunner().invoke(app, ["record", "--", "python", "x.py"]).exit_code == 7
