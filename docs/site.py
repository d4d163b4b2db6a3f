"""`mkdocs.yml`, made from the pages that are there: part of `python -m docs.generate`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent

SECTIONS = {
    "": ("index",),
    "I want to": (
        "i-have-a-function",
        "i-have-a-formula",
        "i-have-five-functions",
        "i-have-a-triton-kernel",
        "i-have-a-model",
        "i-train-on-many-gpus",
        "ci",
    ),
    "Verbs": ("define", "derive", "compose", "plan", "check", "judge", "emit", "look"),
    "More": ("why", "install", "commands", "check-cpp", "check-ranks", "extend"),
    "Reference": (
        "api",
        "errors",
        "glossary",
        "versions",
        "torch-failures",
        "wild",
        "layout",
    ),
}
"""The pages by section, in the order of the site. One that is not named here stands at the end."""

HEAD = """\
# Made by `python -m docs.generate`: do not edit by hand. `make docs` builds the site.
site_name: pullback
site_description: Custom autograd functions for PyTorch that are right and fast
docs_dir: docs
use_directory_urls: false
theme:
  name: material
  font: false
  features:
    - navigation.tabs
    - navigation.top
    - content.code.copy
    - search.highlight
    - toc.follow
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: indigo
      toggle: {icon: material/weather-night, name: Dark}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: indigo
      toggle: {icon: material/weather-sunny, name: Light}
plugins: [search, offline]
extra:
  generator: false
  polyfills: [libraries/iframe-worker.js]  # what searches without a server, bundled
markdown_extensions:
  - tables
  - admonition
  - toc: {permalink: true}
  - pymdownx.highlight
  - pymdownx.superfences
extra_css: [site.css]
exclude_docs: |
  *.py
validation:
  anchors: warn
nav:
"""


def site_text(rules: list[tuple[str, str]]) -> str:
    """The settings of the site; `rules` pairs the name of each rule with its group."""
    lines: list[str] = []
    for section, paths in sections():
        indent = "  "
        if section:
            lines.append(f"  - {_quoted(section)}:")
            indent = "      "
        lines += [f"{indent}- {_quoted(title_of(path))}: {path.name}" for path in paths]
    lines += ["  - Rules:", "      - All rules: rules/README.md"]
    by_group = sorted(rules, key=lambda rule: (rule[1], rule[0]))
    for group, members in groupby(by_group, lambda rule: rule[1]):
        lines.append(f"      - {_quoted(group)}:")
        lines += [f"          - {_quoted(name)}: rules/{name}.md" for name, _ in members]
    return HEAD + "\n".join([*lines, ""])


def sections() -> Iterator[tuple[str, list[Path]]]:
    """The pages that stand directly in `docs/`, by section, in the order of the site."""
    found = {path.stem: path for path in sorted(HERE.glob("*.md"))}
    named = {name for names in SECTIONS.values() for name in names}
    for section, names in SECTIONS.items():
        pages = [found[name] for name in names if name in found]
        if section == "Reference":
            pages += [path for name, path in found.items() if name not in named]
        yield section, pages


def pages() -> list[Path]:
    """The pages that stand directly in `docs/`, in the order of the site."""
    return [path for _, paths in sections() for path in paths]


def title_of(path: Path) -> str:
    """What a page is called in the navigation: its first heading, as far as a colon."""
    heading = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return (heading[1] if heading else path.stem).split(":")[0].replace("`", "")


def _quoted(text: str) -> str:
    return json.dumps(text)
