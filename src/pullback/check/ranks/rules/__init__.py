"""The rules of a check across ranks: files with a `RULE` and a `check(joint)`, or with `RULES`.

They have the form of those in `check/rules/`, and are tried where a check is asked for `ranks=`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from pullback.check.findings.registered import Registered, registered


@cache
def rank_rules() -> tuple[Registered, ...]:
    """Every rule across ranks, in order of code."""
    names = [entry.name for entry in pkgutil.iter_modules(__path__, f"{__name__}.")]
    found = [one for name in names for one in registered(importlib.import_module(name))]
    return tuple(sorted(found, key=lambda each: each.rule.code))
