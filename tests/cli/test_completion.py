"""Completion in the shell: by the lines that `docs/install.md` gives, for commands and options."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def pullback(warm_python, tmp_path):
    """Run a command called `pullback`, as it is installed, with settings of the environment."""
    program = tmp_path / "pullback"
    program.write_text("from pullback.cli.main import main\nmain()\n")

    def run(**settings):
        return warm_python(str(program), **settings).stdout

    return run


def completed(output):
    """What bash is told: the words, without their kind."""
    return [line.split(",")[1] for line in output.splitlines() if line]


def test_commands_are_completed(pullback):
    output = pullback(_PULLBACK_COMPLETE="bash_complete", COMP_WORDS="pullback e", COMP_CWORD="1")

    assert completed(output) == ["emit", "explain"]


def test_options_are_completed(pullback):
    words = "pullback emit --"
    output = pullback(_PULLBACK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="2")

    assert {"--to", "--example", "--output", "--force", "--build"} <= set(completed(output))


def test_values_of_options_are_completed(pullback):
    words = "pullback emit --to "
    output = pullback(_PULLBACK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="3")

    assert completed(output) == ["python", "cpp", "triton"]


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_documented_line_is_the_right_one(pullback, shell):
    if shell == "bash" and not shutil.which("bash"):
        pytest.skip("needs bash, whose version is asked for")
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    (line,) = re.findall(rf"`[^`]*(_PULLBACK_COMPLETE={shell}_source) pullback", page)
    script = pullback(**dict([line.split("=")]))

    assert f"_PULLBACK_COMPLETE={shell}_complete" in script


def test_files_are_left_to_the_shell(pullback):
    words = {"COMP_WORDS": "pullback check exam", "COMP_CWORD": "2"}

    assert pullback(_PULLBACK_COMPLETE="bash_complete", **words) == "file,exam\n"


def test_functions_of_a_file_are_completed(pullback):
    words = f"pullback check {ROOT}/examples/my_ops.py:S"
    output = pullback(_PULLBACK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="2")

    assert [word.rpartition(":")[2] for word in completed(output)] == ["Square", "Swish"]


@pytest.mark.parametrize("option", ["--select", "--allow"])
def test_rules_are_completed(pullback, option):
    words = f"pullback check {option} wrong-gra"
    output = pullback(_PULLBACK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="3")

    assert completed(output) == ["wrong-gradient"]


def test_pages_are_completed(pullback):
    words = {"COMP_WORDS": "pullback explain E42", "COMP_CWORD": "2"}
    output = pullback(_PULLBACK_COMPLETE="bash_complete", **words)

    assert completed(output) == ["E420", "E421"]


def test_colon_that_bash_takes_for_a_word_is_seen(pullback):
    words = f"pullback check {ROOT}/examples/my_ops.py : S"
    output = pullback(_PULLBACK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="4")

    assert completed(output) == ["Square", "Swish"]
