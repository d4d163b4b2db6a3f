"""`pullback graph`: forward and backward of a function as a page to explore."""

from __future__ import annotations

from pathlib import Path

import click

from pullback.cli.complete import complete_targets
from pullback.cli.mistakes import require_call
from pullback.cli.target import example_option, examples_of, load
from pullback.cli.targets import model_of
from pullback.cli.waiting import waiting
from pullback.errors import ExamplesError
from pullback.judge.example import describe_value, tensors_in
from pullback.plan.store import require_folder
from pullback.report.graphs.drawn import drawn_graph
from pullback.report.graphs.page import GraphPage
from pullback.report.graphs.text import graph_table


@click.command("graph")
@click.argument("target", metavar="TARGET", shell_complete=complete_targets)
@example_option
@click.option(
    "--save",
    metavar="POLICY",
    help="What forward keeps: auto, factors, inputs, everything, or a number of bytes.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the page here; without it, the graph is printed as a table.",
)
@click.option("--no-time", is_flag=True, help="Do not measure how long each op takes.")
def command(
    target: str, expressions: tuple[str, ...], save: str | None, html: Path | None, no_time: bool
) -> None:
    """Show forward and backward of TARGET as a graph: ops, what is kept and why, bytes and time.

    TARGET is a Function class (with its own backward), a program, something that pullback made, a
    module or a function that makes one: file.py:Name or module:Name. The page needs no network.

    \b
    Examples:
      pullback graph my_ops:swish --example "torch.randn(8, requires_grad=True)" --html swish.html
      pullback graph my_ops.py:Swish --save inputs
    """
    if html is not None:
        require_folder(html)
    thing = model_of(load(target), target)
    arguments = examples_of(thing, target, expressions)
    require_call(thing, target, arguments)
    if not tensors_in(arguments):
        raise ExamplesError(
            f"`{target}` must be given a tensor, or there is nothing to draw",
            expected="at least one tensor among the examples",
            got=", ".join(map(describe_value, arguments)) or "no argument",
            fix='--example "torch.randn(3, 4, requires_grad=True)"',
        )
    policy = int(save) if save is not None and save.isdigit() else save
    with waiting(f"capturing {target}"):
        drawn = drawn_graph(thing, *arguments, save=policy, is_timed=not no_time)
    if html is None:
        click.echo(graph_table(drawn))
        return
    GraphPage(drawn).save(html)
    click.echo(f"graph: {html}")
