"""`pullback record`: run a Python program, and keep the inputs of the Functions it calls."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

import click

from pullback.capture.places import is_users
from pullback.check.ranks.parts import begin_parts, brought_together, rank_here
from pullback.check.recordings.recorded import Recording
from pullback.cli.complete import complete_files
from pullback.errors import RecordingError, TargetError

FILE = "pullback-recording.pt"
INTERRUPTED = 130  # as shells count it
LAUNCHER = "torch.distributed.run"


@click.command("record", context_settings={"ignore_unknown_options": True})
@click.option(
    "-o",
    "--output",
    "--out",
    "output",
    default=FILE,
    show_default=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Where to write the recording.",
)
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files
)
def command(output: str, program: tuple[str, ...]) -> None:
    """Run a Python PROGRAM, and write the inputs of every custom Function that it calls.

    PROGRAM is `python train.py` with its options, `python -m train`, or the file alone; or
    `torchrun` with its options, whose ranks each record their own, into one file. A few calls
    of each Function and custom op are kept, those that differ in shape, dtype or plain arguments;
    they are in the file even if the program is ended or crashes. What runs in other threads or
    processes, or compiled, is not seen. The exit code is the program's.

    \b
    Examples:
      pullback record -- python train.py --steps 3
      pullback record -- torchrun --nproc-per-node 2 train.py
      pullback check --inputs pullback-recording.pt
    """
    _require_folder(output)
    launched = _launched(program, os.path.abspath(output))
    if launched:
        click.get_current_context().exit(_called(launched))
    python, flags, rest = _parted(program)
    _require_program(rest)
    _require_python(python, flags)
    this = [python, *flags, "-m", __name__, os.path.abspath(output), *rest]
    click.get_current_context().exit(_called(this))


def _called(command: list[str]) -> int:
    """The exit code of a command; Ctrl-C is for the command, which then writes what it has."""
    process = subprocess.Popen(command)
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue
        return code if code >= 0 else 128 - code  # ended by a signal: as shells count it


def _launched(program: tuple[str, ...], out: str) -> list[str]:
    """The command that records every rank of a program that torchrun starts; else empty."""
    is_module = program[1:3] == ("-m", LAUNCHER)
    if Path(program[0]).name != "torchrun" and not is_module:
        return []
    from torch.distributed.run import get_args_parser  # heavy, and for this only

    given = list(program[3 if is_module else 1 :])
    parsed = get_args_parser().parse_args(given)
    rest = list(parsed.training_script_args)
    options = given[: len(given) - len(rest) - 1]
    kept = [option for option in options if option not in ("-m", "--module")]
    script = [*(["-m"] if parsed.module else []), parsed.training_script, *rest]
    return [sys.executable, "-m", LAUNCHER, *kept, "-m", __name__, out, *script]


def _parted(program: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    """The interpreter, its flags, and what it runs: a file, `-m module` or `-c code`."""
    python, *rest = program if not program[0].endswith(".py") else (sys.executable, *program)
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


# ---- what would go wrong only after hours, or far from its cause ----


def _require_folder(output: str) -> None:
    """Raise unless the recording can be written: before the program runs, not after."""
    folder = Path(output).resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RecordingError(
            f"`{output}` must be a file that can be written",
            got=f"a folder that is {'not writable' if folder.is_dir() else 'not there'}: {folder}",
            fix="name another file: -o FILE",
        )


def _require_program(rest: list[str]) -> None:
    if rest and rest[0] not in ("-m", "-c") and not Path(rest[0]).exists():
        raise TargetError(f"`{rest[0]}` must be a Python program", got="no such file")


def _require_python(python: str, flags: list[str]) -> None:
    """Raise unless `python` is there, and has pullback to record with."""
    found = shutil.which(python)
    if found is None:
        raise TargetError(f"`{python}` must be a Python interpreter", got="no such program")
    if os.path.samefile(found, sys.executable):
        return
    names = "map(importlib.util.find_spec, ('pullback', 'torch'))"
    asked = [python, *flags, "-c", f"import importlib.util; exit(not all({names}))"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        raise TargetError(
            f"`{python}` must be a Python that has pullback and torch",
            expected=f"such as {sys.executable}, which runs this",
            got=found,
            fix="install pullback there, or name that Python",
        )


# ---- in the process that is recorded ----


def run(out: str, program: list[str]) -> None:
    """Run a program as Python would, and write what was recorded while and after it runs."""
    recorded = Recording()
    begin_parts(out)
    if rank_here() == (0, 1):
        recorded.on_call = _Journal(recorded, out).update
    try:
        with recorded.watching():
            _run(program)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # printed as Python would, without our own frames
        traceback.print_exception(error.with_traceback(_own_part(error)))
        sys.exit(1)
    finally:
        whole = brought_together(recorded, out)
        if whole is not None:
            click.echo(f"pullback: {_written(whole, out)}", err=True)


def _own_part(error: BaseException) -> TracebackType | None:
    """The traceback of `error` from the first line of the program on."""
    entry = error.__traceback__
    while entry is not None and not is_users(entry.tb_frame):
        entry = entry.tb_next
    return entry or error.__traceback__


def _terminate(*_: object) -> None:
    """End as `sys.exit` does, so that the recording is written."""
    sys.exit(128 + signal.SIGTERM)


class _Journal:
    """Keeps the file up to date while the program runs: it may be killed, or crash.

    Writing takes at most a tenth of the time: after one, the next waits ten times as long as it
    took.
    """

    def __init__(self, recorded: Recording, out: str) -> None:
        self.recorded = recorded
        self.out = out
        self.next = 0.0

    def update(self) -> None:
        """Write what there is, unless the last time was just now."""
        start = time.monotonic()
        if start < self.next:
            return
        with contextlib.suppress(OSError):  # said at the end; the program must not notice
            self.recorded.save(self.out)
        end = time.monotonic()
        self.next = end + 10 * (end - start)


def _written(recorded: Recording, out: str) -> str:
    """Write a recording, unless it is empty; what to say of it."""
    try:
        saved = recorded.save(out)
    except OSError as error:
        return f"nothing is written: {error}"
    lost = [f"\n  not in the file: {why}" for why in saved.lost]
    lost += [f"\n  left out, {times} times: {why}" for why, times in recorded.left_out.items()]
    if not saved.calls:
        seen = "no call of a custom Function was seen" if not saved.lost else "no call can be kept"
        return f"{seen}, and nothing is written{''.join(lost)}"
    name = os.path.relpath(out)
    counted = f"{_counted(saved.calls, 'call')} of {_counted(saved.functions, 'Function')}"
    ranks = f" --ranks {recorded.ranks}" if recorded.ranks > 1 else ""
    then = f"next: pullback check --inputs {shlex.quote(name)}{ranks}"
    return f"{counted} written to {name}; {then}{''.join(lost)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


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
    signal.signal(signal.SIGTERM, _terminate)
    run(sys.argv[1], sys.argv[2:])
