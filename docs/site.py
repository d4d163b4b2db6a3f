"""`mkdocs.yml`, made from the pages that are there: part of `python -m docs.generate`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent

ORDER = (
    "index",
    "why",
    "install",
    "define",
    "derive",
    "compose",
    "plan",
    "check",
    "check-cpp",
    "ci",
    "check-ranks",
    "judge",
    "emit",
    "commands",
    "extend",
    "glossary",
    "layout",
    "errors",
    "torch-failures",
)
"""The pages for users first. One that is not named here stands behind them."""

HEAD = """\
# Made by `python -m docs.generate`: do not edit by hand. `make docs` builds the site.
site_name: pullback
site_description: Custom autograd functions for PyTorch that are right and fast
docs_dir: docs
theme: readthedocs
exclude_docs: |
  *.py
validation:
  anchors: warn
nav:
"""


def site_text(rules: list[tuple[str, str]]) -> str:
    """The settings of the site; `rules` pairs the name of each rule with its group."""
    lines = [f"  - {_quoted(title_of(path))}: {path.name}" for path in pages()]
    lines += ["  - Rules:", "      - All rules: rules/README.md"]
    by_group = sorted(rules, key=lambda rule: (rule[1], rule[0]))
    for group, members in groupby(by_group, lambda rule: rule[1]):
        lines.append(f"      - {_quoted(group)}:")
        lines += [f"          - {_quoted(name)}: rules/{name}.md" for name, _ in members]
    return HEAD + "\n".join([*lines, ""])


def pages() -> Iterator[Path]:
    """The pages that stand directly in `docs/`, in the order of the site."""
    found = {path.stem: path for path in sorted(HERE.glob("*.md"))}
    known = [name for name in ORDER if name in found]
    return (found[name] for name in [*known, *(name for name in found if name not in known)])


def title_of(path: Path) -> str:
    """What a page is called in the navigation: its first heading, as far as a colon."""
    heading = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return (heading[1] if heading else path.stem).split(":")[0].replace("`", "")


def _quoted(text: str) -> str:
    return json.dumps(text)
