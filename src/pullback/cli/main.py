"""`pullback`: finds the commands beside this file, and turns errors into messages.

Exit codes: 0 when all is well, 1 when a command found something to say against the target, 2 when
it could not run.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import click

from pullback import cli
from pullback.errors import PullbackError


class Commands(click.Group):
    """The commands of this package, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        names = [module.name for module in pkgutil.iter_modules(cli.__path__)]
        return sorted(name for name in names if name not in ("main", "target"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command called `name`."""
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{cli.__name__}.{name}").command
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pullback")
def app() -> None:
    """Custom autograd functions for PyTorch, right and fast."""


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    try:
        app(standalone_mode=True)
    except PullbackError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
