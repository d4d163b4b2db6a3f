"""`pullback explain`: the manual page of an error or warning."""

from __future__ import annotations

import inspect
from typing import Any

import click

from pullback import errors
from pullback.errors import TargetError


@click.command("explain")
@click.argument("code", metavar="CODE")
def command(code: str) -> None:
    """Print what an error or warning means and what to do.

    \b
    Example:
      pullback explain E103
    """
    classes: list[Any] = [cls for cls in vars(errors).values() if hasattr(cls, "code")]
    known = {cls.code: cls for cls in classes if cls.code}
    cls = known.get(code.upper())
    if cls is None:
        raise TargetError(
            f"`{code}` must be the code of an error or warning",
            expected=", ".join(sorted(known)),
            got=repr(code),
        )
    click.echo(f"{cls.code} {cls.name}\n\n{inspect.getdoc(cls)}")
