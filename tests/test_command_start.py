"""`pullback --version` and `--help` answer at once: neither PyTorch nor pullback is loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import _pullback_cli

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
