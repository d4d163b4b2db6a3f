"""Rules as they are tried: those of this package, and those that other packages bring.

Another package names the module of a rule in the entry-point group `pullback.checks`. One that
cannot be used is never an error: it becomes a rule that is skipped, with the reason. `KNOWN` is
where the repros of a rule, and what it explains, are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pullback.check.findings.explaining import Cause
from pullback.check.findings.finding import PROFILES, Finding, Rule, Severity, Skip
from pullback.judge.run import describe

if TYPE_CHECKING:
    from pullback.check.repro.context import Form

GROUP = "pullback.checks"

Check = Callable[[Any], Iterator["Finding | Skip"]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A rule with the function that tries it and its page.

    A file with several rules writes them as these, in `RULES`; `module` is filled in then.
    """

    rule: Rule
    check: Check
    page: str
    module: str = ""
    # What must be loaded once, before the workers are forked; most rules need nothing.
    prepare: Callable[[], None] | None = None
    # How its findings are shown, and those that raise; None where as usual.
    repros: Sequence[Form] | None = None
    raising: Sequence[Form] | None = None
    # Which findings of other rules follow from its own.
    explains: Sequence[Cause] = ()


# The rules by code, as far as they were registered.
KNOWN: dict[str, Registered] = {}


def registered(module: ModuleType) -> list[Registered]:
    """The rules that a module defines, from now on known: those in its `RULES`, or the only one."""
    found = [_named(one, module) for one in getattr(module, "RULES", ()) or [_only(module)]]
    KNOWN.update((one.rule.code, one) for one in found)
    return found


def _only(module: ModuleType) -> Registered:
    """The rule of a module that has one, whose docstring is its page."""
    return Registered(
        module.RULE,
        module.check,
        module.__doc__ or "",
        prepare=getattr(module, "prepare", None),
        repros=getattr(module, "REPROS", None),
        raising=getattr(module, "RAISING", None),
        explains=getattr(module, "EXPLAINS", ()),
    )


def _named(one: Registered, module: ModuleType) -> Registered:
    """With its module, and the first line of its page as the sentence of the rule."""
    page = one.page.strip()
    sentence = page.splitlines()[0].rstrip(".") if page else ""
    rule = replace(one.rule, sentence=sentence)
    return replace(one, rule=rule, page=page, module=module.__name__)


def third_party(known: Sequence[Registered]) -> list[Registered]:
    """The rules of other packages, in the order of their names; `known` are those already there."""
    found: list[Registered] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            module = point.load()
            fault = _fault(module, [*known, *found])
        except Exception as error:  # whatever a third-party module raises when it is imported
            fault = f"it cannot be loaded: {describe(error)}"
        found += [_broken(point, fault)] if fault else registered(module)
    return found


def _fault(module: Any, known: Sequence[Registered]) -> str:
    """What keeps a third-party module from being a rule; empty where it is one."""
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        return "it has no `RULE` that is a `pullback.extend.Rule`"
    if not callable(getattr(module, "check", None)):
        return "it has no function `check(subject)`"
    if rule.profile not in PROFILES:
        return f"its profile must be one of {', '.join(PROFILES)}, and is {rule.profile!r}"
    if not all(isinstance(cause, Cause) for cause in getattr(module, "EXPLAINS", ())):
        return "its `EXPLAINS` must hold `pullback.extend.Cause` only"
    for other in known:
        for field in ("code", "name"):
            if getattr(rule, field) == getattr(other.rule, field):
                return f"its {field} {getattr(rule, field)!r} is that of {other.module}"
    return ""


def _broken(point: EntryPoint, fault: str) -> Registered:
    """A rule that says of itself why it cannot be tried."""
    reason = f"this rule of another package ({point.value}) cannot be used: {fault}"
    rule = Rule(
        code=point.name,
        name=point.name,
        group="broken",
        severity=Severity.WASTEFUL,
        profile=PROFILES[0],
        sentence="A rule of another package that cannot be used",
    )

    def check(subject: Any) -> Iterator[Finding | Skip]:
        yield Skip.refused(rule, reason)

    return Registered(rule, check, f"{rule.sentence}.\n\nWhy\n    {reason}", point.value)
