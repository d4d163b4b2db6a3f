"""What holds for all commands: help with examples, and a place on the page of commands."""

from pathlib import Path

import click
import pytest

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
