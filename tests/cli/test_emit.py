"""`pullback emit` writes files that run alone, and says what is wrong in one message."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pullback.cli.emit import COMPILED
from pullback.cli.main import app
from pullback.errors import EmitPathError, ExamplesError, PullbackError

OPS = '''
import torch


def swish(x):
    """x times its sigmoid."""
    s = torch.sigmoid(x)
    return x * s


class Square(torch.autograd.Function):
    """The square of x."""

    @staticmethod
    def examples():
        return (torch.linspace(-1, 2, 5),)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Odd(Square):
    examples = "none"


swished = swish
'''


@pytest.fixture
def ops(tmp_path, monkeypatch):
    """A module `ops_to_emit` in the folder where the command runs."""
    (tmp_path / "ops_to_emit.py").write_text(OPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("ops_to_emit", None)


def run(*args):
    return CliRunner().invoke(app, ["emit", *args], catch_exceptions=True)


def test_text_is_printed_to_stdout(ops):
    result = run("ops_to_emit:swish", "--example", "torch.linspace(-2, 2, 5)")

    assert result.exit_code == 0
    assert result.stdout.startswith('"""`Swish`: x times its sigmoid.\n')
    assert result.stderr == ""


def test_examples_may_stand_on_the_class(ops):
    result = run("ops_to_emit.py:Square")

    assert result.exit_code == 0
    assert "x = spread(0, -1.0, 2.0, 5).requires_grad_()" in result.stdout


def test_written_module_tests_itself(ops, run_python):
    result = run("ops_to_emit:Square", "-o", "square.py")

    assert (result.stdout, result.stderr) == ("", "written: square.py\n")
    done = run_python("-I", "square.py", folder=ops)
    assert (done.returncode, done.stdout) == (0, "Square: outputs and gradients are right\n")


def test_folder_is_made_and_text_is_the_same(ops):
    args = ("ops_to_emit:swish", "--example", "torch.randn(5)", "-o", "made/")
    codes = [run(*args).exit_code for _ in range(2)]  # another text would be refused

    assert codes == [0, 0]
    assert [file.name for file in (ops / "made").iterdir()] == ["swish.py"]


def test_folder_goes_where_nothing_is_written(ops):
    run("ops_to_emit:swish", "--example", "'no tensor'", "-o", "made/")

    assert not (ops / "made").exists()


def test_file_is_replaced_only_by_force(ops):
    (ops / "square.py").write_text("mine\n")
    refused = run("ops_to_emit:Square", "-o", "square.py")

    assert isinstance(refused.exception, EmitPathError)
    assert (ops / "square.py").read_text() == "mine\n"

    assert run("ops_to_emit:Square", "-o", "square.py", "--force").exit_code == 0
    assert (ops / "square.py").read_text() != "mine\n"


def test_cpp_fills_a_folder(ops):
    result = run("ops_to_emit:Square", "--to", "cpp", "-o", "square", "--no-verify")

    assert result.exit_code == 0
    assert sorted(path.name for path in (ops / "square").iterdir()) == [
        "CMakeLists.txt",
        "main.cpp",
        "square.cpp",
    ]


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_built_op_is_named(ops, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(ops / "cache"))
    result = run("ops_to_emit:Square", "--to", "cpp", "-o", "square.cpp", "--build")

    assert result.exit_code == 0, result.output
    compiled, written, built = result.stderr.splitlines()
    assert compiled == COMPILED
    assert written == "written: square.cpp"
    assert built.startswith("built: torch.ops.emitted.square, in ")
    assert Path(built.partition(", in ")[2]).is_file()


def test_missing_examples_name_the_option(ops):
    error = run("ops_to_emit:swish").exception

    assert isinstance(error, ExamplesError)
    assert str(error) == (
        "E403 examples: `ops_to_emit:swish` must come with examples of its arguments\n"
        "  expected: one --example for each argument, or an attribute `examples`\n"
        "  got:      neither\n"
        '  fix:      pullback emit ops_to_emit:swish --example "torch.randn(3)"'
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["ops_to_emit"], "E401 target: `ops_to_emit` must name a module and an object in it"),
        (["ops_to_emit:wish"], "E401 target: `ops_to_emit` must have `wish`"),
        (["ops_to_emit:swish", "--example", "torch.rand("], "must be a Python expression"),
        (["ops_to_emit:Odd"], "  got:      str"),
        (["ops_to_emit:Square", "-o", "no/square.py"], "must stand in a folder that exists"),
    ],
)
def test_mistakes_are_told_in_one_message(ops, args, said):
    error = run(*args).exception

    assert isinstance(error, PullbackError)
    assert said in str(error)


@pytest.mark.parametrize(
    "args", [["--build"], ["--build", "--to", "cpp"], ["--to", "cuda"]], ids=" ".join
)
def test_unfit_options_end_with_two(ops, args):
    result = run("ops_to_emit:Square", *args)

    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


def test_mistake_ends_with_two(ops, warm_python):
    done = warm_python("-m", "pullback", "emit", "ops_to_emit:wish", folder=ops)

    assert done.returncode == 2
    assert done.stderr.startswith("E401 target: ")
    assert "Traceback" not in done.stderr


def test_help_shows_examples():
    output = run("--help").output

    assert "pullback emit my_ops:Square --to cpp -o square/ --build" in output
