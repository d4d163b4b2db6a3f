"""`pullback judge`: whether kernels are right, honest, and how much faster than their reference."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from pullback.candidates.judging import judge_all
from pullback.candidates.verdict import Verdict, documents
from pullback.cli.aside import Aside
from pullback.cli.complete import complete_targets
from pullback.cli.target import value_of


@click.command("judge")
@click.argument(
    "candidates", nargs=-1, required=True, metavar="FILE:NAME...", shell_complete=complete_targets
)
@click.option(
    "--reference",
    required=True,
    metavar="FILE:NAME",
    shell_complete=complete_targets,
    help="The plain PyTorch function that says what is right.",
)
@click.option(
    "--inputs",
    metavar="FILE:NAME",
    help="A function that gives the arguments, instead of `examples` beside the reference.",
)
@click.option(
    "--example",
    "expressions",
    multiple=True,
    metavar="EXPR",
    help="A Python expression for one argument, instead of --inputs; repeat it for each.",
)
@click.option(
    "--gradients/--forward-only",
    default=None,
    help="Whether it must have a gradient; one that has none is judged by its forward otherwise.",
)
@click.option("--seed", type=int, help="The seed of an earlier verdict, for the same inputs.")
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Whether to run `pb.check`, too."
)
@click.option(
    "--compiled/--no-compiled",
    default=True,
    show_default=True,
    help="Whether to time torch.compile of the reference as well.",
)
@click.option("--warm", is_flag=True, help="Leave the caches warm between timed calls.")
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to time each candidate.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the JSON document here, too.",
)
def command(
    candidates: tuple[str, ...],
    reference: str,
    inputs: str | None,
    expressions: tuple[str, ...],
    warm: bool,
    as_json: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Judge kernels against a reference: right, honest, and how much faster.

    A candidate's code runs in a process of its own and in no other. Several candidates are judged
    one after the other, against one reference.

    Exit code 0: all are right and honest. 1: one is not. 2: the reference or its inputs do not run.

    \b
    Examples:
      pullback judge kernel.py:Softmax --reference ref.py:softmax
      pullback judge a.py:F b.py:F --reference ref.py:f --inputs ref.py:inputs --json
      pullback judge k.py:f --reference ref.py:f --example "torch.randn(64, 64)"
    """
    aside = Aside(is_asked=as_json)
    given = partial(_values, expressions) if expressions else inputs
    verdicts: list[Verdict] = []
    for verdict in judge_all(candidates, reference, given, cold=not warm, **options):
        verdicts.append(verdict)
        if not as_json:
            click.echo(f"{verdict}\n")
    document = json.dumps(documents(verdicts), indent=2)
    aside.end()
    if output:
        output.write_text(f"{document}\n", encoding="utf-8")
    if as_json:
        click.echo(document)
    if not all(verdicts):
        raise SystemExit(1)


def _values(expressions: tuple[str, ...]) -> tuple[Any, ...]:
    """The arguments; they are made in the process of the reference, which may use a GPU."""
    return tuple(value_of(text) for text in expressions)
