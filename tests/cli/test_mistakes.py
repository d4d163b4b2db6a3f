"""A mistake of the user's is a message and exit code 2, in every command; a bug of ours is not."""

import sys

import pytest

import _pullback_cli as cli
from pullback.cli.mistakes import of_users_code
from pullback.errors import InternalError

OPS = """
import torch


def product(x, w, bias=None):
    return x @ w


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g
"""
SHAPES = ["--example", "torch.ones(2, 3)", "--example", "torch.ones(5, 5)"]


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Run a command as the shell does; its exit code and what it says of the mistake."""
    (tmp_path / "ops_with_mistakes.py").write_text(OPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["pullback", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().err

    yield run
    sys.modules.pop("ops_with_mistakes", None)


@pytest.mark.parametrize("command", [["derive"], ["emit"], ["plan", "--budget", "0"]])
def test_examples_that_do_not_fit_are_told(told, command):
    code, said = told(*command, "ops_with_mistakes:product", *SHAPES)

    assert code == 2
    assert said == (
        "E403 examples: the function must run on the examples of its arguments\n"
        "  at:       ops_with_mistakes.py:6\n"
        "  got:      RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 5x5)\n"
        "  fix:      call it on the same examples in Python, and change one or the other\n"
    )


@pytest.mark.parametrize("command", ["derive", "emit", "plan"])
def test_missing_example_is_told(told, command):
    code, said = told(command, "ops_with_mistakes:product", "--example", "torch.ones(2, 2)")

    assert code == 2
    assert said == (
        "E403 examples: `ops_with_mistakes:product` must have one --example for each argument\n"
        "  expected: (x, w, bias=None)\n"
        "  got:      1: missing a required argument: 'w'\n"
    )


def test_context_is_no_argument(told):
    code, said = told("derive", "ops_with_mistakes:Square", "--example", "1", "--example", "2")

    assert code == 2
    assert "  expected: (x)\n  got:      2: too many positional arguments\n" in said


def test_module_cannot_be_called(told):
    code, said = told("derive", "ops_with_mistakes:torch", "--example", "1")

    assert code == 2
    assert "E401 target: `ops_with_mistakes:torch` must be something that can be called" in said


def test_mistyped_command_says_what_may_be_meant(told):
    code, said = told("chek", "ops_with_mistakes.py")

    assert code == 2
    assert "No such command 'chek'. Did you mean 'check'?" in said


def test_ctrl_c_has_a_code_of_its_own(told, monkeypatch):
    monkeypatch.setattr("pullback.cli.derive.load", _interrupt)
    code, said = told("derive", "ops_with_mistakes:product")

    assert code == 130
    assert said == "interrupted\n"


def _interrupt(target):
    raise KeyboardInterrupt


def test_bug_of_ours_is_not_the_users():
    try:
        raise_inside_of_ours()
    except InternalError as error:
        caught = error

    assert of_users_code(caught) is None


def raise_inside_of_ours():
    """A frame of the user's, and one of ours below it."""
    source = compile("raise InternalError('a law')", "pullback_made_this", "exec")
    exec(source, {"__name__": "pullback.graph.laws", "InternalError": InternalError})


def test_version_is_there_without_an_install(monkeypatch):
    def missing(name):
        raise cli.PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", missing)

    assert cli._version().startswith("unknown: it runs from its source")
