"""`pullback explain`: the manual page of an error, a warning or a rule, or the list of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from pullback import errors
from pullback.candidates.rules import ALL as JUDGED
from pullback.check.rules import Registered, explained
from pullback.cli.complete import complete_codes
from pullback.errors import TargetError


@click.command("explain")
@click.argument("code", metavar="[CODE]", required=False, shell_complete=complete_codes)
def command(code: str | None) -> None:
    """Print what an error, a warning or a rule of `pullback check` means and what to do.

    CODE is a code or a name; of a group of rules, the rules are listed. Without CODE, all are.

    \b
    Examples:
      pullback explain E103
      pullback explain wrong-gradient
      pullback explain layout
    """
    classes: list[Any] = [cls for cls in vars(errors).values() if getattr(cls, "code", "")]
    rules = explained()
    click.echo(_page(code, classes, rules) if code else _list(classes, rules))


def _page(code: str, classes: list[Any], rules: tuple[Registered, ...]) -> str:
    for cls in classes:
        if code.upper() == cls.code or code.lower() == cls.name:
            return f"{cls.code} {cls.name}\n\n{inspect.getdoc(cls)}"
    for registered in rules:
        rule = registered.rule
        if code.upper() == rule.code or code.lower() == rule.name:
            facts = f"{rule.severity}, group {rule.group}, from profile {rule.profile} on"
            return f"{rule.code} {rule.name} ({facts})\n\n{registered.page}"
    for judged in JUDGED:
        if code.upper() == judged.code or code.lower() == judged.name:
            takes = f"not {' and not '.join(judged.breaks)}" if judged.breaks else "a note"
            return f"{judged.code} {judged.name} (pullback judge: {takes})\n\n{judged.sentence}"
    group = [registered for registered in rules if registered.rule.group == code.lower()]
    if group:
        return _list([], group)
    known = [word for cls in classes for word in (cls.code, cls.name)]
    known += [word for judged in JUDGED for word in (judged.code, judged.name)]
    known += [word for registered in rules for word in (registered.rule.code, registered.rule.name)]
    near = [*get_close_matches(code.lower(), known, 3), *get_close_matches(code.upper(), known, 3)]
    raise TargetError(
        f"`{code}` must be the code or name of an error, a warning or a rule",
        expected=" or ".join(dict.fromkeys(near)) if near else "such as E103, or wrong-gradient",
        got=repr(code),
        fix="`pullback explain` lists them all",
    )


def _list(classes: Sequence[Any], rules: Sequence[Registered]) -> str:
    lines = ["Errors and warnings"] if classes else []
    for cls in sorted(classes, key=lambda cls: (cls.code[0] != "E", cls.code)):
        lines.append(f"  {cls.code} {cls.name}")
    group = ""
    width = max(len(registered.rule.name) for registered in rules)
    for registered in sorted(rules, key=lambda r: (r.rule.group, r.rule.code)):
        rule = registered.rule
        if rule.group != group:
            group = rule.group
            lines += ["", f"Rules: {group}"]
        lines.append(f"  {rule.code} {rule.name:<{width}}  {rule.sentence}")
    if classes:
        lines += ["", "Findings of pullback judge"]
        lines += [f"  {one.code} {one.name:<{width}}  {one.sentence}" for one in JUDGED]
    return "\n".join(lines).lstrip()
