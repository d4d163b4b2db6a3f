"""`pullback derive` prints a module that runs, and says what is wrong in one message."""

import sys

import pytest
from click.testing import CliRunner

from pullback.cli.main import app
from pullback.errors import PullbackError, TargetError

OPS = '''
import torch


def swish(x):
    """x times its sigmoid."""
    s = torch.sigmoid(x)
    return x * s


def shifted(x, by):
    return x + by


shifted.examples = (torch.ones(2, requires_grad=True), 3.0)
'''


@pytest.fixture
def ops(tmp_path, monkeypatch):
    """A module `ops_of_a_user` in the folder where the command runs."""
    (tmp_path / "ops_of_a_user.py").write_text(OPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("ops_of_a_user", None)


def run(*args):
    return CliRunner().invoke(app, args, catch_exceptions=True)


def test_printed_module_passes_gradcheck(ops, run_python):
    example = "torch.randn(4, requires_grad=True)"
    printed = run("derive", "ops_of_a_user:swish", "--example", example).output
    check = (
        "x = torch.randn(4, dtype=torch.float64, requires_grad=True)\n"
        "print(torch.autograd.gradcheck(Swish.apply, x))\n"
    )
    (ops / "main.py").write_text(printed + check, encoding="utf-8")

    assert run_python("main.py", folder=ops).stdout.strip() == "True"


def test_examples_may_stand_on_the_function(ops):
    result = run("derive", "ops_of_a_user.py:shifted")

    assert result.exit_code == 0
    assert "class Shifted(torch.autograd.Function):" in result.output


def test_policy_reaches_the_cut(ops):
    example = "torch.randn(4, requires_grad=True)"
    kept = [
        run("derive", "ops_of_a_user:swish", "--example", example, "--save", policy).output
        for policy in ("inputs", "everything")
    ]

    assert "        s  computed in forward" not in kept[0]
    assert "        s  computed in forward" in kept[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["ops_of_a_user"], "E401 target: `ops_of_a_user` must name a module and an object in it"),
        (["ops_of_a_user:wish"], "E401 target: `ops_of_a_user` must have `wish`"),
        (["no_such:wish"], "E401 target: `no_such` must be a module that Python finds from here"),
        (["no_such.py:wish"], "E401 target: `no_such.py` must be a file"),
        (["ops_of_a_user:swish"], "must come with examples of its arguments"),
        (["ops_of_a_user:swish", "--example", "torch.rand("], "must be a Python expression"),
        (["ops_of_a_user:swish", "--example", "torch.ones(1)", "--save", "some"], "E303"),
    ],
)
def test_mistakes_are_told_in_one_message(ops, args, said):
    error = run("derive", *args).exception

    assert isinstance(error, PullbackError)
    assert said in str(error)


def test_program_ends_with_code_two(ops, run_python):
    (ops / "main.py").write_text(
        "import sys\nfrom pullback.cli.main import main\n"
        "sys.argv = ['pullback', 'derive', 'nothing']\nmain()\n",
        encoding="utf-8",
    )
    result = run_python("main.py", folder=ops)

    assert result.returncode == 2
    assert result.stderr.startswith("E401 target: ")
    assert "Traceback" not in result.stderr


def test_explain_prints_the_manual_page():
    result = run("explain", "e103")

    assert result.output.startswith("E103 backward-arity\n\n`backward` returned the wrong number")


def test_unknown_code_lists_the_known(ops):
    error = run("explain", "E999").exception

    assert isinstance(error, TargetError)
    assert "E101, E102" in str(error)


def test_help_lists_the_commands():
    output = run("--help").output

    assert "derive" in output
    assert "explain" in output
