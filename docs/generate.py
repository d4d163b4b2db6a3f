"""Write the pages of `docs/` that are made from the code: run `python -m docs.generate`.

One text, many readers: an error's page is its class docstring, a rule's that of its
file, and the page of PyTorch's own failures is the table that the tests pin.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from docs.api import api_page
from docs.pictures import pictures
from docs.site import site_text
from pullback import errors
from pullback.candidates.schema import JUDGE_SCHEMA
from pullback.check.rules import Registered, explained
from pullback.report.json import SCHEMA

HERE = Path(__file__).resolve().parent


def error_classes() -> list[type]:
    """Every error and warning class with a code, in the order of the codes."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and getattr(c, "code", "")]
    return sorted(classes, key=lambda c: (c.code[0] != "E", c.code))


def errors_page() -> str:
    """The manual page of every error and warning."""
    lines = [
        "# Errors and warnings",
        "",
        "Made by `python -m docs.generate` from `src/pullback/errors.py`: do not edit by hand.",
        "",
        "Each error is also the builtin that PyTorch raises for the same mistake. A warning is",
        "said once per Function class; `warnings.simplefilter` treats it like any other.",
        "",
    ]
    for cls in error_classes():
        builtin = next(b.__name__ for b in cls.__mro__ if b.__module__ == "builtins")
        lines += [f"## {cls.code} {cls.name}", "", f"`{cls.__name__}`, a `{builtin}`.", ""]
        lines += [inspect.getdoc(cls) or "", ""]
    return "\n".join(lines)


def torch_failures_page() -> str:
    """Where PyTorch itself fails a custom Function, as the tests pin it."""
    from tests.function.everywhere.known import KNOWN_TORCH_FAILURES  # needs Dynamo: slow to import

    lines = [
        "# Where PyTorch itself fails",
        "",
        "Made by `python -m docs.generate` from `tests/function/everywhere/known.py`: do not edit",
        "by hand. Each line is pinned by a test that fails when PyTorch fixes it. The last column",
        "says what `pullback.Function` does in the same place.",
        "",
        "| what happens with `torch.autograd.Function` | with `pullback.Function` |",
        "|---|---|",
    ]
    does = {
        "works": "works",
        "works or raises": "works, or raises an error that says so",
        "anything": "the same: no class can avoid it",
    }
    lines += [f"| {known.because} | {does[known.ours]} |" for known in KNOWN_TORCH_FAILURES]
    return "\n".join([*lines, ""])


# ---- the rules of check ----

SECTIONS = ("What it checks", "Why it matters", "Fails", "Passes", "Cannot see")
CODE = ("Fails", "Passes")


def own_rules() -> list[Registered]:
    """The rules of this repository; those of other packages have pages elsewhere."""
    return [r for r in explained() if r.module.startswith("pullback.")]


def rule_page(registered: Registered) -> str:
    """The manual page of one rule."""
    rule = registered.rule
    path = f"src/{registered.module.replace('.', '/')}.py"
    lines = [
        f"# {rule.code} {rule.name}",
        "",
        f"{rule.sentence}.",
        "",
        f"Severity *{rule.severity}*, group [{rule.group}](README.md#{rule.group}), from profile "
        f"*{rule.profile}* on. Made by `python -m docs.generate` from `{path}`.",
    ]
    for title, text in sections_of(registered.page):
        body = ["```text", text, "```"] if title in CODE else [text]
        lines += ["", f"## {title}", "", *body]
    return "\n".join([*lines, ""])


def sections_of(page: str) -> Iterator[tuple[str, str]]:
    """The sections of a rule's docstring: title and text."""
    title, body = "", list[str]()
    for line in [*page.splitlines()[1:], "end"]:
        if line and not line.startswith(" "):
            if title:
                yield title, textwrap.dedent("\n".join(body)).strip()
            title, body = line, []
        else:
            body.append(line)


def rules_index() -> str:
    """Every rule in a table, by group."""
    lines = [
        "# The rules of `pullback check`",
        "",
        "Made by `python -m docs.generate` from the files in `src/pullback/check/rules/`: do not",
        "edit by hand. `pullback explain CODE` prints the same pages.",
    ]
    for group, rules in groupby(
        sorted(own_rules(), key=lambda r: (r.rule.group, r.rule.code)), lambda r: r.rule.group
    ):
        lines += ["", f"## {group}", "", "| rule | severity | profile | what must hold |"]
        lines.append("|---|---|---|---|")
        for registered in rules:
            rule = registered.rule
            link = f"[{rule.code} {rule.name}]({rule.name}.md)"
            lines.append(f"| {link} | {rule.severity} | {rule.profile} | {rule.sentence} |")
    return "\n".join([*lines, ""])


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page and its text."""
    yield HERE / "api.md", api_page()
    yield HERE / "errors.md", errors_page()
    yield HERE / "torch-failures.md", torch_failures_page()
    yield HERE / "check-schema.json", json.dumps(SCHEMA, indent=2) + "\n"
    yield HERE / "judge-schema.json", json.dumps(JUDGE_SCHEMA, indent=2) + "\n"
    yield HERE / "rules" / "README.md", rules_index()
    for registered in own_rules():
        yield HERE / "rules" / f"{registered.rule.name}.md", rule_page(registered)
    yield from pictures()
    named = [(registered.rule.name, registered.rule.group) for registered in own_rules()]
    yield HERE.parent / "mkdocs.yml", site_text(named)


def main() -> None:
    """Write every page, and remove those of rules that are gone."""
    for folder in ("rules", "pictures"):
        (HERE / folder).mkdir(exist_ok=True)
    current = dict(pages())
    for old in (HERE / "rules").glob("*.md"):
        if old not in current:
            old.unlink()
    for path, text in current.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
