"""`pullback`: finds the commands beside this file, and turns errors into messages.

Exit codes: 0 when all is well, 1 when a command found something to say against the target, 2 when
it could not run, 130 when Ctrl-C ended it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any

import click
import torch

from pullback import cli
from pullback.cli.mistakes import of_users_code
from pullback.errors import PullbackError

INTERRUPTED = 130  # as shells count it
NO_COMMANDS = (
    "aside",
    "main",
    "mistakes",
    "target",
    "waiting",
)  # modules of this package that are none


class Commands(click.Group):
    """The commands of this package, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        names = [module.name for module in pkgutil.iter_modules(cli.__path__)]
        return sorted(name for name in names if name not in NO_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command called `name`."""
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{cli.__name__}.{name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that `args` begin with; of one that is not there, the one that is like it."""
        near = get_close_matches(args[0], self.list_commands(ctx), 1)
        if near and near[0] != args[0]:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it with a code of its own, since 1 means a finding."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _version() -> str:
    try:
        return version_of("pullback")
    except PackageNotFoundError:
        return "unknown: it runs from its source, and is not installed"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="pullback")
def app() -> None:
    """Custom autograd functions for PyTorch, right and fast."""
    torch.manual_seed(0)  # the same command draws the same examples, and says the same


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    try:
        app(standalone_mode=True)
    except PullbackError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except Exception as error:
        told = of_users_code(error)
        if told is None:
            raise
        click.echo(str(told), err=True)
        sys.exit(2)
