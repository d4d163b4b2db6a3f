"""`pullback emit`: write a Function as a standalone file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import torch

from pullback.cli.complete import complete_targets
from pullback.cli.mistakes import require_call
from pullback.cli.target import example_option, load, value_of
from pullback.cli.waiting import waiting
from pullback.emit import TARGETS, build, emit
from pullback.emit.compiled import has_compiler
from pullback.errors import ExamplesError

COMPILED = "compiling it and comparing it with the program: half a minute the first time"


@click.command("emit")
@click.argument("target", metavar="MODULE:NAME", shell_complete=complete_targets)
@click.option(
    "--to",
    "language",
    type=click.Choice(TARGETS),
    default=TARGETS[0],
    show_default=True,
    help="The language to write.",
)
@example_option
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="PATH",
    help="Where to write: a file, or a folder. Without it, the text is printed.",
)
@click.option("--force", is_flag=True, help="Replace a file that holds another text.")
@click.option(
    "--verify/--no-verify",
    "is_verified",
    default=True,
    show_default=True,
    help="Compile C++ and compare it with the program before it is written.",
)
@click.option(
    "--build",
    "is_built",
    is_flag=True,
    help="Compile the C++ as well, and say what the op is called and where the library is. Needs "
    "--to cpp and -o.",
)
def command(
    target: str,
    language: str,
    expressions: tuple[str, ...],
    output: str | None,
    force: bool,
    is_verified: bool,
    is_built: bool,
) -> None:
    """Write MODULE:NAME as a file that needs torch and nothing else.

    NAME is a Function class, something that pullback derived, composed or planned, or a function of
    tensors. The arguments come from --example, or from `examples` of the thing itself.

    Python is one module that tests itself when it is run. C++ is an op of PyTorch; a folder as
    PATH also gets a CMake file and a small program that uses the op without Python.

    Exit code 0: it was written. 2: the target, the examples or the path would not do, or what would
    be written does not compile or does other things than the program: then nothing is written.

    \b
    Examples:
      pullback emit my_ops:swish --example "torch.randn(8)" > swish_function.py
      pullback emit my_ops.py:Square -o square.py && python square.py
      pullback emit my_ops:Square --to cpp -o square/ --build
    """
    if is_built and (language != "cpp" or output is None):
        raise click.UsageError("--build needs --to cpp, and a path to write to: -o PATH")
    thing = load(target)
    given = tuple(value_of(expression) for expression in expressions) or None
    if given is not None and callable(thing):
        require_call(thing, target, given)
    if language == "cpp" and is_verified and has_compiler():
        click.echo(COMPILED, err=True)
    try:
        with waiting(f"emitting {target}"), _folder(output):
            text = emit(
                thing, language, examples=given, path=output, force=force, verify=is_verified
            )
    except ExamplesError as error:
        raise _by_option(target, error, is_asked=given is None) from None
    if output is None:
        click.echo(text, nl=False)
        return
    click.echo(f"written: {output}", err=True)
    if is_built:
        loaded = set(torch.ops.loaded_libraries)
        with waiting(f"compiling {output}"):
            op = build(output)
        made = sorted(map(str, torch.ops.loaded_libraries - loaded))
        where = "".join(f", in {one}" for one in made)
        click.echo(f"built: torch.ops.{op}{where}", err=True)


@contextmanager
def _folder(output: str | None) -> Iterator[None]:
    """A path that ends in a slash is a folder, and is made; it goes if nothing comes into it."""
    path = Path(output or "")
    if not (output or "").endswith(("/", os.sep)) or path.exists() or not path.parent.is_dir():
        yield
        return
    path.mkdir()
    try:
        yield
    except BaseException:
        path.rmdir()
        raise


def _by_option(target: str, error: ExamplesError, *, is_asked: bool) -> ExamplesError:
    """The error about examples, in the words of the command line."""
    if not is_asked:
        return error
    return ExamplesError(
        f"`{target}` must come with examples of its arguments",
        expected="one --example for each argument, or an attribute `examples`",
        got="neither" if error.facts["got"] == "none" else error.facts["got"],
        fix=f'pullback emit {target} --example "torch.randn(3)"',
    )
