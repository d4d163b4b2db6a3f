"""What holds for all commands: help with examples, and a place on the page of commands."""

import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pullback.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = app.list_commands(click.Context(app))


def test_commands_are_those_of_the_page():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")

    assert [name for name in COMMANDS if f"| [`{name}`](" in page] == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_of_the_command(name):
    command = app.get_command(click.Context(app), name)
    shown = command.get_help(click.Context(command, info_name=f"pullback {name}"))

    assert f"    pullback {name} " in shown.partition("Examples:\n")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    command = app.get_command(click.Context(app), name)
    options = [one for one in command.params if isinstance(one, click.Option)]

    assert [one.name for one in options if not one.help] == []


# ---- targets ----

PARTS = "def half(x):\n    return 0.5 * x.sin()\n"
OPS = "from kit_to_try.parts import half\n"
TAKING = {
    "check": ["--profile", "quick", "--select", "wrong-factor"],
    "derive": [],
    "emit": [],
    "plan": ["--budget", "0"],
}


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A folder with a package in it, where the installed command runs: Python does not look there.

    The file that is named imports from the package, which `python -m` would find.
    """
    (tmp_path / "kit_to_try").mkdir()
    (tmp_path / "kit_to_try" / "parts.py").write_text(PARTS, encoding="utf-8")
    (tmp_path / "kit_to_try" / "ops_of_kit.py").write_text(OPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [sysconfig.get_path("scripts"), *filter(None, sys.path)])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("kit_to_try", "ops_of_kit"))]:
        del sys.modules[name]


@pytest.mark.parametrize("target", ["kit_to_try/ops_of_kit.py:half", "kit_to_try.ops_of_kit:half"])
@pytest.mark.parametrize("command", TAKING)
def test_target_is_found_from_current_folder(kit, command, target):
    example = ["--example", "torch.ones(3, requires_grad=True)"]
    done = CliRunner().invoke(app, [command, target, *TAKING[command], *example])

    assert done.exit_code == 0, done.output


def test_command_of_readme_runs_as_installed():
    script = Path(sysconfig.get_path("scripts"), "pullback")
    if not script.is_file():
        pytest.skip("pullback is not installed here")
    said = re.search(r"^pullback (check [^#]*)#", (ROOT / "README.md").read_text(), re.M)
    command = [*shlex.split(said[1]), "--select", "gradient", "--profile", "quick"]
    done = subprocess.run([script, *command], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1, done.stderr
    assert "(wrong):" in done.stdout
