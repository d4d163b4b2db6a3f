"""`pullback plan`: measure every way to run a program, and write down the best."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pullback.cli.complete import complete_targets
from pullback.cli.mistakes import require_call
from pullback.cli.target import examples_of, load, value_of
from pullback.errors import TargetError
from pullback.plan import figure, plan, store
from pullback.report.graphs.page import plan_page


@click.command("plan")
@click.argument("target", metavar="MODULE:PROGRAM", shell_complete=complete_targets)
@click.option(
    "--sizes",
    metavar="N,N,...",
    help="The sizes to plan for: each goes to `examples(size)`, or into --example as `size`.",
)
@click.option(
    "--example",
    "expressions",
    multiple=True,
    metavar="EXPR",
    help="A Python expression for one argument, of `size` if there are --sizes; one for each.",
)
@click.option(
    "--objective",
    default="time",
    show_default=True,
    help="time, memory, or a number between: 0 is time, 1 is memory.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    help="A backend to try; repeat it. All that are available, unless it is given.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="About how long to search. Ctrl-C ends it earlier, and what is known is printed.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the plan here, for pb.load_plan.",
)
@click.option(
    "--figure",
    "figure_path",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Write a figure of time against saved bytes here.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page here: every candidate, and the graph with the groups that were chosen.",
)
def command(
    target: str,
    sizes: str | None,
    expressions: tuple[str, ...],
    objective: str,
    backends: tuple[str, ...],
    budget: float,
    output: Path | None,
    figure_path: Path | None,
    html: Path | None,
) -> None:
    """Print how fast MODULE:PROGRAM runs nested, combined and in groups, and which one is best.

    The arguments come from --example, or from `examples`: an attribute of the program, or a
    function in its module. With --sizes, `examples(size)` is called for each size.

    Exit code 0: there is a plan, which may be to leave the program as it is. 2: there is none.

    \b
    Examples:
      pullback plan my_ops:block --sizes 1000,1000000 -o plan.json --html plan.html
      pullback plan my_ops.py:block --example "torch.randn(64, 128, requires_grad=True)"
      pullback plan my_ops:scale --sizes 1e3,1e6 --example "torch.randn(size, requires_grad=True)"
    """
    for path in filter(None, (output, figure_path, html)):
        store.require_folder(path)
    if figure_path:
        figure.require_svg(figure_path)
    program = load(target)
    arguments = _arguments(program, target, expressions, _numbers(sizes))
    for one in arguments:
        require_call(program, target, one)
    planned = plan(
        program,
        sizes=arguments,
        objective=_number(objective),
        backends=backends or None,
        budget=budget,
    )
    click.echo(f"{planned.table()}\n\n{planned.explain()}")
    if output:
        planned.save(output)
        click.echo(f"plan: {output}")
    if figure_path:
        planned.plot(figure_path)
        click.echo(f"figure: {figure_path}")
    if html:
        plan_page(planned, *arguments[-1]).save(html)
        click.echo(f"page: {html}")


def _number(objective: str) -> str | float:
    try:
        return float(objective)
    except ValueError:
        return objective


def _numbers(sizes: str | None) -> list[int]:
    """The sizes: `1000`, `1_000_000` or `1e6`, with commas between."""
    if sizes is None:
        return []
    try:
        numbers = [float(part) for part in sizes.split(",")]
        if not all(number >= 1 and number.is_integer() for number in numbers):
            raise ValueError
    except (ValueError, OverflowError):
        raise TargetError(
            "`--sizes` must be whole numbers with commas between",
            expected="such as 1000,1000000 or 1e3,1e6",
            got=repr(sizes),
        ) from None
    return [int(number) for number in numbers]


# ---- arguments ----


def _arguments(
    program: Any, target: str, expressions: tuple[str, ...], sizes: list[int]
) -> list[tuple[Any, ...]]:
    """The arguments of each size; those of one where no size is asked for."""
    given = _examples(program)
    if expressions or given is None:
        if not sizes or not expressions:
            return [examples_of(program, target, expressions)]
        return [tuple(value_of(text, size=size) for text in expressions) for size in sizes]
    takes_size = callable(given) and _takes_one(given)
    if takes_size != bool(sizes):
        raise TargetError(
            f"`examples` of `{target}` must take a size where --sizes are given, and only there",
            expected="examples(size)" if sizes else "examples(), or --sizes",
            got="no parameter" if sizes else "a parameter, and no --sizes",
        )
    if sizes:
        return [tuple(given(size)) for size in sizes]
    return [tuple(given() if callable(given) else given)]


def _examples(program: Any) -> Any:
    """The `examples` of a program: its attribute, or those of its module."""
    own = getattr(program, "examples", None)
    module = sys.modules.get(getattr(program, "__module__", ""))
    return own if own is not None else getattr(module, "examples", None)


def _takes_one(examples: Callable[..., Any]) -> bool:
    """Whether a function cannot be called without a size."""
    parameters = inspect.signature(examples).parameters.values()
    return any(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in parameters)
