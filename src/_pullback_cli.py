"""The command `pullback`: its commands are found, listed and described without loading PyTorch.

To import anything of `pullback` loads PyTorch, which takes seconds. This module stands beside it,
reads the files of `pullback/cli`, each with a function `command` whose docstring is its help, and
imports one when it is run.

Exit codes: 0 when all is well, 1 when a command found something to say against the target, 2 when
it could not run, 130 when Ctrl-C ended it.
"""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from _pullback_start import INTERRUPTED, interrupt

FOLDER = Path(__file__).resolve().with_name("pullback") / "cli"


@cache
def helps() -> dict[str, str]:
    """The commands, each with the first paragraph of its help."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text("utf-8")
        if "def command(" in text:
            functions = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
            (command,) = (one for one in functions if one.name == "command")
            text = ast.get_docstring(command) or ""
            found[path.stem] = " ".join(text.partition("\n\n")[0].split())
    return found


class Commands(click.Group):
    """The commands, each imported when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(helps())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command called `name`."""
        if name not in helps():
            return None
        command: click.Command = importlib.import_module(f"pullback.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with whole sentences, which break into lines and are not cut."""
        with formatter.section("Commands"):
            formatter.write_dl(list(helps().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The commands that begin so."""
        from click.shell_completion import CompletionItem  # only a shell asks

        names = [name for name in helps() if name.startswith(incomplete)]
        items = [CompletionItem(name, help=helps()[name]) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that `args` begin with; of one that is not there, the one that is like it."""
        from difflib import get_close_matches

        near = get_close_matches(args[0], helps(), 1)
        if near and near[0] != args[0]:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        found = super().resolve_command(ctx, args)
        interrupt()  # all is loaded, and the command begins
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it with a code of its own, since 1 means a finding."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _version() -> str:
    try:
        return version("pullback")
    except PackageNotFoundError:
        return "unknown: it runs from its source, and is not installed"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="pullback")
def app() -> None:
    """Make custom autograd functions for PyTorch right and fast.

    `pullback COMMAND --help` prints the options of a command, with examples.
    """
    import torch  # now a command runs, and needs it

    torch.manual_seed(0)  # the same command draws the same examples, and says the same


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    try:
        app(standalone_mode=True)
    except Exception as error:
        from pullback.cli.mistakes import of_users_code
        from pullback.errors import PullbackError

        shown = error if isinstance(error, PullbackError) else of_users_code(error)
        if shown is None:
            raise
        click.echo(str(shown), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
