"""`pullback emit`: write a Function as a file that needs nothing of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from pullback.cli.target import load, value_of
from pullback.emit import TARGETS, build, emit
from pullback.errors import ExamplesError


@click.command("emit")
@click.argument("target", metavar="MODULE:NAME")
@click.option(
    "--to",
    "language",
    type=click.Choice(TARGETS),
    default=TARGETS[0],
    show_default=True,
    help="The language to write.",
)
@click.option(
    "--example",
    "expressions",
    multiple=True,
    metavar="EXPR",
    help="A Python expression for one argument; repeat it for each.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where to write: a file, or a folder. Without it, the text is printed.",
)
@click.option("--force", is_flag=True, help="Replace a file that holds another text.")
@click.option(
    "--build",
    "is_built",
    is_flag=True,
    help="Compile the C++ as well, and say how the op is called. Needs --to cpp and -o.",
)
def command(
    target: str,
    language: str,
    expressions: tuple[str, ...],
    output: Path | None,
    force: bool,
    is_built: bool,
) -> None:
    """Write MODULE:NAME as a file that needs torch and nothing else.

    NAME is a Function class, something that pullback derived, composed or planned, or a function of
    tensors. The arguments come from --example, or from `examples` of the thing itself.

    Python is one module that tests itself when it is run. C++ is an op of PyTorch; a folder as
    PATH also gets a CMake file and a small program that uses the op without Python.

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
    try:
        with _working(f"emitting {target}"):
            text = emit(thing, language, examples=given, path=output, force=force)
    except ExamplesError as error:
        raise _by_option(target, error, is_asked=given is None) from None
    if output is None:
        click.echo(text, nl=False)
        return
    click.echo(f"written: {output}", err=True)
    if is_built:
        with _working(f"compiling {output}"):
            op = build(output)
        click.echo(f"built: torch.ops.{op}", err=True)


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


@contextmanager
def _working(what: str) -> Iterator[None]:
    """A line that moves while something takes its time, on a terminal; gone when it is done."""
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stdout.isatty():
        yield
        return
    with console.status(what):
        yield
