"""`pullback derive` prints a module that runs, and says what is wrong in one message."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pullback.cli.main import app
from pullback.errors import PullbackError, TargetError

ROOT = Path(__file__).resolve().parents[2]

OPS = '''
import torch


def swish(x):
    """x times its sigmoid."""
    s = torch.sigmoid(x)
    return x * s


def shifted(x, by):
    return x + by


shifted.examples = (torch.ones(2, requires_grad=True), 3.0)


class Square(torch.autograd.Function):
    factor = 2
    examples = (torch.ones(2),)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @classmethod
    def backward(cls, ctx, g):
        (x,) = ctx.saved_tensors
        return cls.factor * x * g


class SquareOfThree(Square):
    factor = 3


class Ordered(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sort().values


class Broken(Square):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("not yet")


class Unwritten(torch.autograd.Function):
    examples = (torch.ones(2), torch.ones(2))

    @staticmethod
    def forward(ctx, x, w):
        return x * w
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


def test_printed_module_passes_gradcheck(ops, warm_python):
    example = "torch.randn(4, requires_grad=True)"
    printed = run("derive", "ops_of_a_user:swish", "--example", example).output
    check = (
        "x = torch.randn(4, dtype=torch.float64, requires_grad=True)\n"
        "print(torch.autograd.gradcheck(Swish.apply, x))\n"
    )
    (ops / "main.py").write_text(printed + check, encoding="utf-8")

    assert warm_python("main.py", folder=ops).stdout.strip() == "True"


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


# ---- proof ----


def test_right_backward_is_proved(ops):
    result = run("derive", "ops_of_a_user:Square", "--prove")

    assert result.exit_code == 0
    assert result.output == (
        "Square: proved, for every size from 2 on, in 1 dimension\ngradient of `x`: proved\n"
    )


def test_wrong_backward_is_refuted_with_numbers(ops):
    example = "torch.randn(3, 4)"
    result = run("derive", "ops_of_a_user:SquareOfThree", "--prove", "--example", example)

    assert result.exit_code == 1
    assert result.output.startswith("SquareOfThree: refuted\ngradient of `x`: refuted\n")
    assert re.search(r"expected \S+, got \S+ at x = \[\[", result.output)


def test_undecided_backward_ends_with_code_two(ops):
    result = run("derive", "ops_of_a_user:Ordered", "--prove")

    assert result.exit_code == 2
    assert result.output.startswith("Ordered: unknown\n")
    assert "the derived gradient uses `" in result.output


def test_backward_that_raises_is_undecided(ops):
    result = run("derive", "ops_of_a_user:Broken", "--prove")

    assert result.exit_code == 2
    assert (
        "Broken: unknown\n  it raises ValueError: not yet (ops_of_a_user.py:47)\n" in result.output
    )


def test_class_without_backward_is_printed(ops):
    result = run("derive", "ops_of_a_user:Unwritten")

    assert result.exit_code == 0
    assert "class Unwritten(torch.autograd.Function):" in result.output
    assert "def forward(ctx, x, w):" in result.output
    assert "grad_x = grad_out * w" in result.output


def test_no_seconds_decide_nothing(ops):
    result = run("derive", "ops_of_a_user:Square", "--prove", "--seconds", "0")

    assert result.exit_code == 2
    assert "time limit" in result.output


def test_plain_function_has_nothing_to_prove(ops):
    error = run("derive", "ops_of_a_user:swish", "--prove").exception

    assert isinstance(error, TargetError)
    assert "`ops_of_a_user:swish` must be a Function class, for --prove" in str(error)


def sessions():
    """The proofs that the documents show: what is typed, and what is printed."""
    text = (ROOT / "docs" / "derive.md").read_text("utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = [part.partition("\n") for block in blocks for part in block.split("$ pullback ")]
    return [(typed, printed.strip()) for typed, _, printed in shown if "--prove" in typed]


@pytest.mark.parametrize(("typed", "printed"), sessions())
def test_shown_proof_is_what_is_printed(typed, printed):
    assert run(*shlex.split(typed)).output.strip() == printed


def test_proofs_are_shown():
    assert len(sessions()) == 3


def test_program_ends_with_code_two(ops, warm_python):
    (ops / "main.py").write_text(
        "import sys\nfrom pullback.cli.main import main\n"
        "sys.argv = ['pullback', 'derive', 'nothing']\nmain()\n",
        encoding="utf-8",
    )
    result = warm_python("main.py", folder=ops)

    assert result.returncode == 2
    assert result.stderr.startswith("E401 target: ")
    assert "Traceback" not in result.stderr


def test_explain_prints_the_manual_page():
    result = run("explain", "e103")

    assert result.output.startswith("E103 backward-arity\n\n`backward` returned the wrong number")


def test_explain_lists_the_rules_of_a_group():
    result = run("explain", "layout")

    assert [line.split()[1] for line in result.output.splitlines()] == [
        "layout",
        "cotangent-layout",
        "input-layout",
    ]


def test_unknown_code_says_where_the_known_are(ops):
    error = run("explain", "E999").exception

    assert isinstance(error, TargetError)
    assert "`pullback explain` lists them all" in str(error)


def test_help_lists_the_commands():
    output = run("--help").output

    assert "derive" in output
    assert "explain" in output
