"""`pullback record` runs a program as Python would, and writes what its Functions were given."""

import sys

import pytest
from click.testing import CliRunner

from pullback.check.recordings.recorded import load_recording
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
    assert run.stderr == (
        "pullback: 1 call of 1 Function written to pullback-recording.pt; "
        "next: pullback check --inputs pullback-recording.pt\n"
    )
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
    monkeypatch.setattr(record, "_called", lambda command: 7)

    assert CliRunner().invoke(app, ["record", "--", sys.executable, "-m", "x"]).exit_code == 7


def test_file_alone_is_run_by_this_python():
    assert record._parted(("a.py", "-x")) == (sys.executable, [], ["a.py", "-x"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["-o", "no/where.pt", "--", sys.executable, "train.py"],
            "E406 recording: `no/where.pt` must be a file that can be written\n"
            "  got:      a folder that is not there: ",
        ),
        (
            ["--", sys.executable, "trian.py"],
            "E401 target: `trian.py` must be a Python program\n  got:      no such file",
        ),
        (
            ["--", "python-of-nobody", "train.py"],
            "E401 target: `python-of-nobody` must be a Python interpreter\n"
            "  got:      no such program",
        ),
    ],
)
def test_mistake_is_told_before_program_runs(program, given, said, monkeypatch):
    monkeypatch.setattr(record, "_called", lambda command: pytest.fail("the program ran"))
    error = CliRunner().invoke(app, ["record", *given]).exception

    assert said in str(error)


def test_program_without_functions_leaves_recording_alone(program, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (program / "kept.pt").write_text("what was there")
    record.run(str(program / "kept.pt"), ["-c", "1"])

    assert (program / "kept.pt").read_text() == "what was there"
    assert (
        "no call of a custom Function was seen, and nothing is written" in capsys.readouterr().err
    )


def test_error_of_program_is_told_without_our_lines(program, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (program / "fails.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    with pytest.raises(SystemExit) as ended:
        record.run("out.pt", ["fails.py"])
    told = capsys.readouterr().err

    assert ended.value.code == 1
    assert 'fails.py", line 2, in <module>' in told
    assert "runpy" not in told
    assert "record.py" not in told


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os._exit(3)", 3),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", 143, marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", 137, marks=pytest.mark.slow),
    ],
)
def test_recording_is_there_however_the_program_ends(program, warm_python, ending, code):
    text = TRAIN.replace("    sys.exit(3)", f"    import os, signal\n    {ending}")
    (program / "train.py").write_text(text, encoding="utf-8")
    run = warm_python("-m", "pullback", "record", "--", sys.executable, "train.py", "4")

    assert run.returncode == code
    assert len(load_recording(program / "pullback-recording.pt").calls) == 1


def test_calls_that_are_not_in_the_file_are_named(program, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    text = TRAIN.replace(", 2.0)", ", Factor())").replace("    sys.exit(3)\n", "")
    text = text.replace("class Scaled", "class Factor(float):\n    pass\n\n\nclass Scaled")
    (program / "train.py").write_text(text, encoding="utf-8")
    record.run("out.pt", ["train.py", "4"])

    said = capsys.readouterr().err
    assert "pullback: no call can be kept, and nothing is written\n" in said
    assert "not in the file: __main__:Scaled(float32[4], 0.0): an argument is a `Factor`" in said
