"""What the shell completes beside options: rule names, and targets, which are files or modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from pullback import errors
from pullback.check.rules import explained


def complete_rules(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The groups, names and codes of rules that begin so."""
    rules = [one.rule for one in explained()]
    words = {rule.group: "a group of rules" for rule in rules}
    words |= {rule.name: f"{rule.code}, {rule.group}" for rule in rules}
    words |= {rule.code: rule.name for rule in rules}
    return [CompletionItem(w, help=h) for w, h in words.items() if w.startswith(incomplete)]


def complete_codes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """What has a page: rules and groups, and the codes and names of errors."""
    classes = [cls for cls in vars(errors).values() if getattr(cls, "code", "")]
    words = {word: cls.__name__ for cls in classes for word in (cls.code, cls.name)}
    named = [CompletionItem(w, help=h) for w, h in words.items() if w.startswith(incomplete)]
    return [*complete_rules(ctx, param, incomplete), *named]


def complete_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Files, which the shell knows best."""
    return [CompletionItem(incomplete, type="file")]


def complete_targets(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Files, which the shell knows best; after `file.py:`, the classes and functions of that.

    Bash takes a colon for a word of its own, and wants what comes after it alone.
    """
    before = ctx.params.get(param.name or "") or ()
    if isinstance(before, tuple) and before[-1:] == (":",) and len(before) > 1:
        names = _defined(Path(before[-2]))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    file, colon, name = incomplete.rpartition(":")
    if not colon or not file.endswith(".py"):
        return complete_files(ctx, param, incomplete)
    return [CompletionItem(f"{file}:{one}") for one in _defined(Path(file)) if one.startswith(name)]


def _defined(path: Path) -> Iterator[str]:
    """The public classes and functions at the top of a file, which is not run for it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield node.name
