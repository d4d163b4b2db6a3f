"""`pullback check` checks files, names and ops, says what it used, and ends with the right code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from pullback.check.recordings.file import SCHEMA
from pullback.cli import check as cli
from pullback.cli import targets
from pullback.cli.main import app
from pullback.errors import PullbackError

OPS = """
import torch
from torch import Tensor


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: float = 1.0):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * ctx.scale * x * g, None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.T, 2 * a.T @ g


class Never(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("not today")


class WithExamples(Square):
    @staticmethod
    def examples():
        return [(torch.ones(2, 2), 3.0), (torch.ones(7), 1.0)]


def doubled(x):
    return 2 * x
"""


@pytest.fixture
def ops(tmp_path, monkeypatch):
    """A module `ops_to_check` in the folder where the command runs."""
    (tmp_path / "ops_to_check.py").write_text(OPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("ops_to_check", None)


def run(*args):
    options = ["--profile", "quick", "--select", "wrong-factor", "--no-cache"]
    return CliRunner().invoke(app, ["check", *options, *args])


def test_sound_function_ends_with_code_zero(ops):
    result = run("ops_to_check.py:Square")

    assert result.exit_code == 0
    assert result.stdout.startswith("Square: nothing found. 1 rule, ")


@pytest.mark.parametrize("target", ["ops_to_check:Product", "ops_to_check.py:Product"])
def test_finding_ends_with_code_one(ops, target):
    result = run(target)

    assert result.exit_code == 1
    assert result.stdout.startswith("G103 wrong-factor (wrong): ")
    assert "  place:    ops_to_check.py:26\n" in result.stdout


def test_every_function_of_file_is_checked(ops):
    result = run("ops_to_check.py")

    subjects = ["Square: nothing found", "Product: 1 finding", "WithExamples: nothing found"]
    assert [subject in result.stdout for subject in subjects] == [True] * 3
    assert (
        "3 Functions checked, 1 with findings: Product; 1 could not be checked: Never."
        in result.stdout
    )
    assert "E403 examples: `ops_to_check.py:Never` must come with inputs" in result.stderr
    assert result.exit_code == 1


@pytest.mark.parametrize("call", ["raise RuntimeError('boom')", "raise SystemExit(3)"])
def test_examples_that_raise_are_an_error_of_their_function(ops, call):
    path = ops / "ops_to_check.py"
    path.write_text(OPS.replace("return [(torch.ones(2, 2), 3.0), (torch.ones(7), 1.0)]", call))
    result = run("ops_to_check.py")

    assert "Product: 1 finding" in result.stdout
    assert "2 could not be checked: Never, WithExamples." in result.stdout
    assert "E403 examples: the examples of `WithExamples` must be made without" in result.stderr
    assert "at:       ops_to_check.py:" in result.stderr
    assert result.exit_code == 1


def test_target_without_inputs_ends_with_code_two(ops):
    result = run("ops_to_check.py:Never")

    assert result.exit_code == 2
    assert "E403 examples: " in result.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("ops_to_check:Nothing", "E401 target: `ops_to_check` must have `Nothing`"),
        ("no_such.py", "E401 target: `no_such.py` must be a file"),
        ("json", "E401 target: `json` must define a Function to check"),
        ("torch.ops.no_such.op", "E401 target: `torch.ops.no_such.op` must be an op"),
    ],
)
def test_missing_target_ends_with_code_two(ops, target, said):
    result = run(target)

    assert result.exit_code == 2
    assert said in result.stderr


def test_no_target_is_a_usage_error(ops):
    result = run()

    assert result.exit_code == 2
    assert "Name a TARGET, a recording with --inputs, --changed, or `targets`" in result.stderr


def test_guessed_inputs_are_said(ops):
    result = run("ops_to_check.py:Product", "--json")

    (report,) = json.loads(result.stdout)["reports"]
    assert report["examples"] == ["a: float32[3, 4], b: float32[4, 5]"]
    assert report["notes"] == [
        "the inputs are guessed, from the type hints of forward where there are any"
    ]


def test_report_without_findings_names_inputs(ops):
    result = run("ops_to_check.py:Square")

    assert "  inputs: x: float32[3, 4], scale: 1.0\n" in result.stdout


def test_refusal_of_forward_is_told(ops):
    result = run("ops_to_check.py:Never")

    assert "got:      none, and every guess was refused: ValueError: not today" in result.stderr


def test_wrong_expression_is_told_once(ops):
    result = run("ops_to_check.py", "--example", "torch.(")

    assert result.exit_code == 2
    assert result.stderr.count("E401 target: `--example` must be") == 1
    assert result.stdout == ""


def test_unchecked_function_alone_ends_with_two(ops):
    result = run("ops_to_check.py:Square", "ops_to_check.py:Never")

    assert result.exit_code == 2
    assert "1 Function checked, 0 with findings; 1 could not be checked: Never." in result.stdout


def test_guess_that_kills_is_survived(ops):
    text = (
        OPS
        + """

class Deadly(Square):
    @staticmethod
    def forward(ctx, x: Tensor):
        import os

        os.kill(os.getpid(), 9)
"""
    )
    (ops / "ops_to_check.py").write_text(text, encoding="utf-8")

    result = run("ops_to_check.py:Deadly")

    assert result.exit_code == 2
    assert "a process in which they were tried was lost: it was ended by SIGKILL" in result.stderr


def test_examples_on_class_come_before_hints(ops):
    result = run("ops_to_check.py:WithExamples", "--json")

    (report,) = json.loads(result.stdout)["reports"]
    assert report["examples"] == ["x: float32[2, 2], scale: 3.0", "x: float32[7], scale: 1.0"]
    assert report["notes"] == []


def test_given_examples_come_first(ops):
    result = run(
        "ops_to_check.py:WithExamples", "--example", "torch.ones(5)", "--example", "2.0", "--json"
    )

    (report,) = json.loads(result.stdout)["reports"]
    assert report["examples"] == ["x: float32[5], scale: 2.0"]


def test_json_is_all_of_the_output(ops):
    result = run("ops_to_check.py", "--json")

    document = json.loads(result.stdout)
    assert [report["subject"] for report in document["reports"]] == [
        "Square",
        "Product",
        "WithExamples",
    ]
    assert [(error["code"], error["target"]) for error in document["errors"]] == [
        ("E403", "ops_to_check.py:Never")
    ]
    assert result.exit_code == 1


NOISY = """
import os
import torch

print("imported")
os.write(1, b"imported by C\\n")


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        print("x" * 100_000)
        os.write(1, b"forward by C\\n")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3

    @staticmethod
    def examples():
        print("examples")
        return (torch.ones(3, dtype=torch.float64),)
"""


def test_json_is_whole_whatever_is_printed(ops, capfd):
    (ops / "noisy.py").write_text(NOISY, encoding="utf-8")
    result = run("noisy.py", "--json")
    (report,) = json.loads(result.stdout)["reports"]
    out, err = capfd.readouterr()

    assert [finding["rule"]["name"] for finding in report["findings"]] == ["wrong-factor"]
    assert "imported by C" in err
    assert "by C" not in out
    assert len(result.stderr) < 50_000


def test_wrong_expression_is_told_in_json(ops):
    result = run("ops_to_check.py:Square", "--json", "--example", "torch.nonsense()")
    (error,) = json.loads(result.stdout)["errors"]

    assert result.exit_code == 2
    assert "torch.nonsense()" in str(error)


@pytest.mark.parametrize("code", ["exit()", "exit(0)", "__import__('sys').exit('bye')"])
def test_expression_that_ends_python_is_a_mistake(ops, code):
    result = run("ops_to_check.py:Square", "--example", code)

    assert result.exit_code == 2
    assert f"{code!r}: it would end Python" in result.stderr


@pytest.mark.parametrize("is_found", [True, False])
def test_interrupt_between_targets_keeps_what_was_found(ops, monkeypatch, is_found):
    real, asked = cli.inputs_for, []

    def inputs(name, *rest):
        asked.append(name)
        if len(asked) > 1:
            raise KeyboardInterrupt
        return real(name, *rest)

    monkeypatch.setattr(cli, "inputs_for", inputs)
    first, second = ("Product", "Square") if is_found else ("Square", "Product")
    result = run(f"ops_to_check.py:{first}", f"ops_to_check.py:{second}", "--json")
    told = json.loads(result.stdout)

    assert [report["subject"] for report in told["reports"]] == [first]
    assert "Ctrl-C" in str(told["errors"])
    assert result.exit_code == (1 if is_found else 130)


def test_github_prints_annotations(ops):
    result = run("ops_to_check.py:Product", "--github")

    assert result.stdout.startswith("::error file=ops_to_check.py,line=26,title=G103 wrong-factor")
    assert len(result.stdout.splitlines()) == 1


def test_op_of_the_dispatcher_is_checked(ops):
    result = run("torch.ops.aten.sin")

    assert result.exit_code == 0
    assert result.stdout.startswith("aten.sin: nothing found.")


def test_allowed_rule_is_left_out(ops):
    result = CliRunner().invoke(
        app,
        ["check", "ops_to_check:Product", "--select", "gradient", "--allow", "wrong-factor"],
    )

    assert result.exit_code == 0


def test_unknown_rule_is_told(ops):
    result = CliRunner().invoke(app, ["check", "ops_to_check:Product", "--select", "nothing"])

    assert result.exit_code == 2
    assert "E404 rule-name: `nothing` must be" in result.stderr


def test_unknown_rule_is_told_once(ops):
    result = CliRunner().invoke(app, ["check", "ops_to_check.py", "--json", "--select", "layuot"])

    assert result.stderr.count("E404 rule-name") == 1
    assert [error["code"] for error in json.loads(result.stdout)["errors"]] == ["E404"]


def test_every_op_of_a_namespace_is_checked(monkeypatch):
    monkeypatch.setattr(targets, "ops_of", lambda space: ["sin", "cos"])
    result = run("torch.ops.aten")

    assert "aten.sin: nothing found" in result.stdout
    assert "aten.cos: nothing found" in result.stdout
    assert "note: the inputs are guessed, from the schema\n" in result.stdout


def test_recording_without_calls_is_told(tmp_path):
    path = tmp_path / "empty.pt"
    torch.save({"schema": SCHEMA, "calls": []}, path)
    result = CliRunner().invoke(app, ["check", "--inputs", str(path)])

    assert result.exit_code == 2
    assert "must hold the calls of a Function" in result.stderr


def test_progress_is_only_for_terminals(ops):
    with cli._progress("Square") as tell:
        assert tell is None


def test_recorded_inputs_are_taken(ops):
    import torch

    from pullback.check import recording

    sys.path.insert(0, str(ops))
    module = __import__("ops_to_check")
    with recording() as rec:
        module.Square.apply(torch.ones(6), 4.0)
    rec.save("calls.pt")

    result = run("--inputs", "calls.pt", "--json")
    named = run("ops_to_check.py:Square", "--inputs", "calls.pt", "--json")

    for found in (result, named):
        (report,) = json.loads(found.stdout)["reports"]
        assert report["examples"] == ["x: float32[6], scale: 4.0"]


SLOW = """
import time
import torch


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        if open("count", "a").write("x") and len(open("count").read()) > 12:
            open("waiting", "w").close()
            time.sleep(60)
        return g
"""


def test_interrupt_prints_what_was_found(ops, run_python):
    (ops / "slow_ops.py").write_text(SLOW, encoding="utf-8")
    source = os.path.dirname(os.path.dirname(os.path.dirname(cli.__file__)))
    environment = {**os.environ, "PYTHONPATH": source}
    command = [
        sys.executable,
        "-m",
        "pullback",
        "check",
        "slow_ops.py",
        "--profile",
        "quick",
        "--example",
        "torch.ones(3)",
    ]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (ops / "waiting").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)

    assert "interrupted: the rules after this were not tried" in out
    assert process.returncode in (1, 2)


# ---- explain ----


def explain(*args):
    return CliRunner().invoke(app, ["explain", *args])


@pytest.mark.parametrize("code", ["G103", "g103", "wrong-factor"])
def test_explain_prints_page_of_rule(code):
    result = explain(code)

    assert result.stdout.startswith(
        "G103 wrong-factor (wrong, group gradient, from profile quick on)\n\nA gradient must have"
    )
    assert "Cannot see" in result.stdout


def test_explain_alone_lists_everything():
    output = explain().stdout

    assert "  E103 backward-arity\n" in output
    assert "Rules: gradient\n" in output
    assert "  G103 wrong-factor " in output


def test_explain_of_nothing_is_refused():
    error = explain("Z999").exception

    assert isinstance(error, PullbackError)
    assert "E401 target: `Z999` must be the code or name" in str(error)


def test_explain_of_near_name_suggests():
    error = explain("wrong-gradiant").exception

    assert "expected: wrong-gradient" in str(error)


# ---- what the documents show ----

ROOT = Path(__file__).resolve().parents[2]


def session():
    """What `docs/check.md` shows to be typed, and to be printed."""
    text = (ROOT / "docs" / "check.md").read_text("utf-8")
    typed, _, printed = text.partition("$ pullback ")[2].partition("```")[0].partition("\n")
    return shlex.split(typed), printed.strip()


def without_counts(text):
    return re.sub(r"\d+ rules?, \d+ runs, (.*), [\d.]+ s\.", r"\1", text)


def test_shown_session_is_what_is_printed(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    typed, printed = session()
    result = CliRunner().invoke(app, typed)

    assert without_counts(result.stdout.strip()) == without_counts(printed)


def test_guide_shows_the_same_finding():
    _, printed = session()
    finding = printed.partition("  repro:")[0].strip()

    assert finding in (ROOT / "docs" / "i-have-a-function.md").read_text("utf-8")
