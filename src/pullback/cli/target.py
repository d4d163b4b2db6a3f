"""Targets on the command line, and the arguments to call them with."""

from __future__ import annotations

from typing import Any

import click
import torch

from pullback.check.target.naming import load as load
from pullback.errors import TargetError

example_option = click.option(
    "--example",
    "expressions",
    multiple=True,
    metavar="EXPR",
    help="A Python expression for one argument; repeat it for each.",
)


def examples_of(target: Any, name: str, expressions: tuple[str, ...]) -> tuple[Any, ...]:
    """The arguments to try `target` with: from `--example`, else from its `examples`."""
    if expressions:
        return tuple(value_of(expression) for expression in expressions)
    given = getattr(target, "examples", None)
    given = given() if callable(given) else given
    if given is None:
        raise TargetError(
            f"`{name}` must come with examples of its arguments",
            expected="one --example for each argument, or an attribute `examples`",
            got="neither",
            fix="""add --example "torch.randn(3, requires_grad=True)" """.strip(),
        )
    return tuple(given)


def value_of(expression: str, **names: Any) -> Any:
    """What a Python expression gives, with `torch` and `names` at hand."""
    try:
        return eval(expression, {"torch": torch, **names})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also `exit()`
        said = "it would end Python" if isinstance(error, SystemExit) else str(error)
        raise TargetError(
            "`--example` must be a Python expression, with `torch` at hand",
            got=f"{expression!r}: {said}",
        ) from None
