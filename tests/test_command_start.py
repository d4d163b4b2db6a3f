"""`pullback --version` and `--help` answer at once: neither PyTorch nor pullback is loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import _pullback_cli
from _pullback_start import is_command

SOURCE = Path(__file__).resolve().parents[1] / "src"
LIMIT = 0.2  # seconds of work, so that what else the machine does is not counted

PROBE = """
import json, sys, time
sys.argv = ["pullback", *{args!r}]
import _pullback_cli
try:
    _pullback_cli.main()
except SystemExit as leaving:
    code = leaving.code
heavy = [name for name in ("torch", "rich", "numpy", "pullback") if name in sys.modules]
print(json.dumps([code, time.process_time(), heavy]), file=sys.stderr)
"""


def started(*args, **settings):
    """Exit code, seconds of work and heavy modules of a command, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(args=args)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "80", **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    return *json.loads(done.stderr.splitlines()[-1]), done.stdout


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["-h"]], ids=str)
def test_command_answers_at_once(args):
    tries = [started(*args) for _ in range(3)]
    (_, _, heavy, text) = tries[0]

    assert heavy == []
    assert min(seconds for _, seconds, _, _ in tries) <= LIMIT
    assert "pullback" in text


def test_commands_are_completed_at_once():
    words = {"COMP_WORDS": "pullback ch", "COMP_CWORD": "1"}
    _, seconds, heavy, text = started(_PULLBACK_COMPLETE="bash_complete", **words)

    assert text == "plain,check\n"
    assert heavy == []
    assert seconds <= 2 * LIMIT


def test_help_has_whole_sentences():
    *_, text = started("--help")
    told = " ".join(text.split())

    for name, sentence in _pullback_cli.helps().items():
        assert f"{name} {sentence}" in told
        assert sentence.endswith((".", "?"))
    assert "..." not in text.partition("Options:")[2]


def test_likely_command_is_named():
    done = subprocess.run(
        [sys.executable, "-m", "_pullback_cli", "chek"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "No such command 'chek'. Did you mean 'check'?" in done.stderr


@pytest.mark.parametrize("start", ["main()", "start()"])
def test_missing_numpy_is_not_told_by_every_command(tmp_path, start):
    said = "import warnings; warnings.warn({!r})\n"
    text = said.format("Failed to initialize NumPy: No module named 'numpy'") + said.format("other")
    (tmp_path / "_pullback_cli.py").write_text(f"{text}def main(): pass\n")
    done = subprocess.run(
        [sys.executable, "-c", f"from _pullback_start import *; {start}; import _pullback_cli"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "NumPy" not in done.stderr
    assert "UserWarning: other" in done.stderr


# ---- Ctrl-C while it starts ----

CTRL_C = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
raise SystemExit("went on")
"""
COMMANDS = {
    "pullback": ["-c", "from _pullback_start import main; main()"],
    "python -m pullback": ["-m", "pullback"],
    "python -mpullback": ["-mpullback"],
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("module", ["click", "torch", "pullback.cli.explain"])
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_loading_is_one_line(tmp_path, command, module):
    name = module.replace(".", "/")
    if "." in module:  # one of ours: in a copy of the links to the source
        (tmp_path / "pullback" / "cli").mkdir(parents=True)
        for folder in ("", "pullback", "pullback/cli"):
            for path in (SOURCE / folder).iterdir():
                if not (tmp_path / folder / path.name).exists() and path.stem != "explain":
                    (tmp_path / folder / path.name).symlink_to(path)
    (tmp_path / f"{name}.py").write_text(CTRL_C)
    done = subprocess.run(
        [sys.executable, *COMMANDS[command], "explain", "E103"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_library_leaves_ctrl_c_alone():
    """Also in a program that is run with `-m` and has an argument of our name."""
    probe = "import signal, pullback; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", probe, "-m", "pullback"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "default_int_handler\n"
    assert is_command(["-m", "check"], ["python", "-X", "dev", "-m", "pullback", "check"])
    assert not is_command(["-m", "pullback"], ["python", "-m", "other", "pullback"])
    assert not is_command(["-m", "x"], ["python", "-m", "pullback.cli.main", "x"])
    assert not is_command(["-c"], ["python", "-c"])
    assert not is_command([], [])
