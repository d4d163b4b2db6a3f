"""`pullback derive`: print a function with its derived backward, as a module."""

from __future__ import annotations

import click

from pullback.cli.target import examples_of, load
from pullback.derive.backward import derive


@click.command("derive")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--example",
    "expressions",
    multiple=True,
    metavar="EXPR",
    help="A Python expression for one argument; repeat it for each.",
)
@click.option(
    "--save",
    default="auto",
    show_default=True,
    metavar="POLICY",
    help="What forward keeps: auto, inputs, everything, or a number of bytes.",
)
def command(target: str, expressions: tuple[str, ...], save: str) -> None:
    """Print the Function of MODULE:FUNCTION with a derived backward.

    The text is a module that imports only torch, and is yours.

    \b
    Examples:
      pullback derive my_ops:swish --example "torch.randn(8, requires_grad=True)"
      pullback derive my_ops.py:swish --save inputs > swish_function.py
    """
    program = load(target)
    arguments = examples_of(program, target, expressions)
    derived = derive(program, *arguments, save=int(save) if save.isdigit() else save)
    click.echo(derived.source(), nl=False)
