"""The rules: files `rules/<group>/<fault>.py` with a `RULE` and a `check(subject)`.

A file may also have `REPROS` and `RAISING`, the forms in which its findings are shown, and
`EXPLAINS`, the findings of other rules of which its own are the cause. Rules that share most of
their code stand in one file, `rules/<group>/<what they share>.py`, with a `RULES` in which each has
its page.

A rule is found because its file is there; another package adds rules through the entry point
`pullback.checks`, each entry a module of the same form.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from types import ModuleType

from pullback.check.findings.finding import PROFILES
from pullback.check.findings.registered import Registered as Registered
from pullback.check.findings.registered import registered, third_party
from pullback.check.processes import crash
from pullback.errors import RuleNameError


@cache
def all_rules() -> tuple[Registered, ...]:
    """Every rule there is, in order of code."""
    found = [one for module in _modules() for one in registered(module)]
    found += third_party([*found, *registered(crash)])
    return tuple(sorted(found, key=lambda each: each.rule.code))


def explained() -> tuple[Registered, ...]:
    """Every rule with a page: those tried on Functions, across ranks, on models; and the crash."""
    from pullback.check.kernels import sanitizer  # these ask of the rules here
    from pullback.check.models.rules import model_rules
    from pullback.check.ranks.rules import rank_rules

    found = (*all_rules(), *registered(crash), *registered(sanitizer))
    return (*found, *rank_rules(), *model_rules())


def _modules() -> Iterator[ModuleType]:
    for group in pkgutil.iter_modules(__path__, f"{__name__}."):
        package = importlib.import_module(group.name)
        for entry in pkgutil.iter_modules(package.__path__, f"{group.name}."):
            module = importlib.import_module(entry.name)
            if hasattr(module, "RULE") or hasattr(module, "RULES"):
                yield module


def selected(
    *,
    profile: str = "standard",
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    among: Sequence[Registered] | None = None,
) -> tuple[Registered, ...]:
    """The rules to try: those of the profile, or those selected; less those allowed to fail.

    Names, codes and groups all count: `wrong-gradient`, `G101`, `gradient`. `among` are those there
    are, where they are others than those of a check in one process; other rules may be named, too.
    """
    if profile not in PROFILES:
        raise RuleNameError(
            "`profile` must name a profile",
            expected=", ".join(PROFILES),
            got=repr(profile),
        )
    require_known((*select, *allow))
    rules = all_rules() if among is None else among
    reach = PROFILES[: PROFILES.index(profile) + 1]
    chosen = [
        r
        for r in rules
        if (r.rule.is_called(*select) if select else r.rule.profile in reach)
        and not r.rule.is_called(*allow)
    ]
    if chosen:
        return tuple(chosen)
    if any(r.rule.is_called(*select) for r in rules) or not select:
        raise RuleNameError(
            "`allow` must leave a rule to try",
            expected=f"one of {', '.join(select) or 'those of the profile'} that is not allowed",
            got=f"allow: {', '.join(allow)}",
        )
    raise RuleNameError(
        "`select` must name a rule that can be tried here",
        expected=f"a group ({_groups(rules)}), or a rule of one",
        got=f"select: {', '.join(select)}",
        fix="some rules are for models alone, or for ranks: `pullback explain` lists them",
    )


def require_known(words: Sequence[str]) -> None:
    """Raise `RuleNameError` unless each of these is a name, a code or a group of rules."""
    rules = explained() if words else ()
    for word in words:
        if not any(one.rule.is_called(word) for one in rules):
            raise RuleNameError(
                f"`{word}` must be the name, code or group of a rule",
                expected=_meant(word, rules),
                fix="`pullback explain` lists the rules",
            )


def _meant(word: str, rules: Sequence[Registered]) -> str:
    """The names that are like `word`, else the groups."""
    names = [name for r in rules for name in (r.rule.group, r.rule.name)]
    near = get_close_matches(word, dict.fromkeys(names), 3)
    return " or ".join(near) if near else f"a group ({_groups(rules)}), or a rule"


def _groups(rules: Sequence[Registered]) -> str:
    return ", ".join(sorted({r.rule.group for r in rules}))
