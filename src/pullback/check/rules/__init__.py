"""The rules, one file each: `rules/<group>/<fault>.py` with a `RULE` and a `check(subject)`.

A rule is found because its file is there; a stranger's package adds rules through the entry point
`pullback.checks`, each entry a module of the same form.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from pullback.check import crash
from pullback.check.finding import PROFILES, Finding, Rule, Skip
from pullback.errors import RuleNameError

Check = Callable[[Any], Iterator["Finding | Skip"]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A rule with the function that tries it and its page."""

    rule: Rule
    check: Check
    page: str
    module: str
    # What must be loaded once, before the workers are forked; most rules need nothing.
    prepare: Callable[[], None] | None = None


@cache
def all_rules() -> tuple[Registered, ...]:
    """Every rule there is, in order of code."""
    found = [_registered(module) for module in _modules()]
    return tuple(sorted(found, key=lambda registered: registered.rule.code))


def explained() -> tuple[Registered, ...]:
    """Every rule with a page: those that are tried, and the crash that the runner finds."""
    return (*all_rules(), _registered(crash))


def _modules() -> Iterator[ModuleType]:
    for group in pkgutil.iter_modules(__path__, f"{__name__}."):
        package = importlib.import_module(group.name)
        for entry in pkgutil.iter_modules(package.__path__, f"{group.name}."):
            module = importlib.import_module(entry.name)
            if hasattr(module, "RULE"):
                yield module
    for point in entry_points(group="pullback.checks"):
        yield point.load()


def _registered(module: ModuleType) -> Registered:
    page = (module.__doc__ or "").strip()
    sentence = page.splitlines()[0].rstrip(".") if page else ""
    rule: Rule = replace(module.RULE, sentence=sentence)
    prepare = getattr(module, "prepare", None)
    return Registered(rule, module.check, page, module.__name__, prepare)


def selected(
    *, profile: str = "standard", select: Sequence[str] = (), allow: Sequence[str] = ()
) -> tuple[Registered, ...]:
    """The rules to try: those of the profile, or those selected; less those allowed to fail.

    Names, codes and groups all count: `wrong-gradient`, `G101`, `gradient`.
    """
    if profile not in PROFILES:
        raise RuleNameError(
            "`profile` must be one that there is",
            expected=", ".join(PROFILES),
            got=repr(profile),
        )
    rules = all_rules()
    for word in (*select, *allow):
        if not any(_answers(r.rule, word) for r in rules):
            raise RuleNameError(
                f"`{word}` must be the name, code or group of a rule",
                expected=f"a group ({', '.join(sorted({r.rule.group for r in rules}))}), or a rule",
                fix="`pullback explain` lists the rules",
            )
    reach = PROFILES[: PROFILES.index(profile) + 1]
    chosen = [
        r
        for r in rules
        if (any(_answers(r.rule, word) for word in select) if select else r.rule.profile in reach)
        and not any(_answers(r.rule, word) for word in allow)
    ]
    return tuple(chosen)


def _answers(rule: Rule, word: str) -> bool:
    return word in (rule.code, rule.name, rule.group)
