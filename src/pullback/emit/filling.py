"""The longer texts of emitted files, as templates: see the folder `templates/`."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined


def template_text(template: str, **values: Any) -> str:
    """The text of a template, such as `inputs.py`, with these values in it."""
    return _templates().get_template(f"{template}.jinja").render(values)


def template_function(template: str, **values: Any) -> Any:
    """The one function of a template, to do here what an emitted file does."""
    space: dict[str, Any] = {"torch": torch}
    exec(template_text(template, **values), space)
    return next(value for name, value in space.items() if name not in ("torch", "__builtins__"))


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("pullback.emit"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # what is made is source code
    )
