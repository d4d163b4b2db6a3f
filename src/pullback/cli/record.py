"""`pullback record`: run a Python program, and keep the inputs of the Functions it calls."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import click

from pullback.check.recording import Recording
from pullback.errors import TargetError

FILE = "pullback-recording.pt"


@click.command("record", context_settings={"ignore_unknown_options": True})
@click.option(
    "--out",
    default=FILE,
    show_default=True,
    type=click.Path(dir_okay=False),
    help="Where to write the recording.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(out: str, program: tuple[str, ...]) -> None:
    """Run a Python PROGRAM, and write the inputs of every custom Function that it calls.

    A few calls of each Function are kept, those that differ in shape, dtype or plain arguments.
    What runs in other threads or processes, or compiled, is not seen. The exit code is the
    program's.

    \b
    Examples:
      pullback record -- python train.py --steps 3
      pullback check --inputs pullback-recording.pt
    """
    python, flags, rest = _parted(program)
    this = [python, *flags, "-m", __name__, os.path.abspath(out), *rest]
    code = subprocess.call(this)
    click.get_current_context().exit(code)


def _parted(program: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    """The interpreter, its flags, and what it runs: a file, `-m module` or `-c code`."""
    python, *rest = program
    if not Path(python).name.startswith("python") or not rest:
        raise TargetError(
            "what is recorded must be a Python program",
            expected="python train.py, or python -m train",
            got=" ".join(program),
        )
    flags: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        flags.append(rest.pop(0))
        if flags[-1] in ("-W", "-X") and rest:
            flags.append(rest.pop(0))
    return python, flags, rest


# ---- in the process that is recorded ----


def run(out: str, program: list[str]) -> None:
    """Run a program as Python would, and write what was recorded when it ends in any way."""
    recorded = Recording()
    try:
        with recorded.watching():
            _run(program)
    finally:
        recorded.save(out)
        told = f"{len(recorded.calls)} calls of {len(recorded.targets)} Functions"
        click.echo(f"pullback: {told} written to {os.path.relpath(out)}", err=True)


def _run(program: list[str]) -> None:
    kind, *rest = program
    if kind == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = program
        sys.path[0] = str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
