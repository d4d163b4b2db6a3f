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

from pullback.check import crash
from pullback.check.finding import PROFILES, Rule
from pullback.check.registered import Registered as Registered
from pullback.check.registered import registered, third_party
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
    are, where they are others than those of a check in one process.
    """
    if profile not in PROFILES:
        raise RuleNameError(
            "`profile` must name a profile",
            expected=", ".join(PROFILES),
            got=repr(profile),
        )
    rules = all_rules() if among is None else among
    for word in (*select, *allow):
        if not any(_answers(r.rule, word) for r in rules):
            raise RuleNameError(
                f"`{word}` must be the name, code or group of a rule",
                expected=_meant(word, rules),
                fix="`pullback explain` lists the rules",
            )
    reach = PROFILES[: PROFILES.index(profile) + 1]
    chosen = [
        r
        for r in rules
        if (any(_answers(r.rule, word) for word in select) if select else r.rule.profile in reach)
        and not any(_answers(r.rule, word) for word in allow)
    ]
    if not chosen:
        raise RuleNameError(
            "`allow` must leave a rule to try",
            expected=f"one of {', '.join(select) or 'those of the profile'} that is not allowed",
            got=f"allow: {', '.join(allow)}",
        )
    return tuple(chosen)


def _meant(word: str, rules: Sequence[Registered]) -> str:
    """The names that are like `word`, else the groups."""
    groups = sorted({r.rule.group for r in rules})
    near = get_close_matches(word, [*groups, *(r.rule.name for r in rules)], 3)
    return " or ".join(near) if near else f"a group ({', '.join(groups)}), or a rule"


def _answers(rule: Rule, word: str) -> bool:
    return word in (rule.code, rule.name, rule.group)
