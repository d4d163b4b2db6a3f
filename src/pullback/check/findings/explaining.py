"""What one rule says of the findings of others: that they follow from its own.

A rule module has `EXPLAINS`, a row of `Cause`. The sets below name the rules and groups that many
causes have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pullback.check.findings.finding import Finding

Test = Callable[[Finding], bool]


class Sign(Enum):
    """What a finding may be besides one of its rule and its group: a detail that causes explain."""

    AGAIN = "it says no more than that a second backward differs from the first"


# Groups and rules that compare numbers: of one call with another, or with what they must be.
GROUPS = (
    *("gradient", "linearity", "layout", "shape", "dtype", "domain", "second", "compile"),
    *("forward", "batching"),
)
CALLS = (
    *("stale-after-edit", "backward-twice", "freed-storage", "hooks-bypassed", "subclass-input"),
    *("wrong-in-threads", "wrong-under-no-grad", "parameter-input"),
)
STATES = ("two-live-calls", "stale-cache", "result-depends-on-history")
COMPARING: frozenset[str | Sign] = frozenset({*GROUPS, *CALLS, *STATES, Sign.AGAIN})
# What a backward shows that finds other numbers at its second call, or in another thread.
REPEATING: frozenset[str | Sign] = frozenset(
    {
        *CALLS,
        Sign.AGAIN,
        *("detached-double-backward", "wrong-double-backward", "hessian-asymmetry"),
        *("checkpoint-differs", "compiled-differs"),
    }
)
# What a gradient of the wrong size seems to be, whatever bends it.
PATTERNS = frozenset({"wrong-factor", "flipped-sign", "missing-reduction"})
# What autograd cannot see of a tensor that it does not watch.
UNWATCHED = frozenset({"stale-after-edit", "leaked-graph", "freed-storage"})

# What PyTorch says where a tensor was written into that it still needs.
IN_PLACE = "modified by an inplace operation"
SHARED = f"single memory location|{IN_PLACE}"
ANYTHING = "."


@dataclass(frozen=True, slots=True)
class Cause:
    """What a finding of a rule explains: findings of which rules or groups, and since when.

    `holds` looks at the data of the finding. A finding is explained by the first cause that can,
    in the order of `rank`; those of other packages come last unless they say otherwise.
    """

    explains: frozenset[str | Sign] | frozenset[str]
    since: str
    rank: int = 1000
    holds: Test = lambda finding: True
    is_partial: bool = False  # whether a gradient may be wrong for a reason of its own besides
    even: frozenset[str] = frozenset()  # rules whose own reason does not count
    weighs: bool = False  # whether it is as bad as the worst of what it explains
    raising: str = ""  # what an explained finding may raise; otherwise it compares numbers

    def is_behind(self, cause: Finding, other: Finding) -> bool:
        """Whether `other` follows from `cause`, a finding of the rule."""
        rule, about = other.rule, other.about
        if rule.name == cause.rule.name:
            return False
        is_own = about.is_explained and rule.name not in self.even
        if self.is_partial and rule.group == "gradient" and is_own:
            return False  # it has a reason of its own
        known = {rule.name, rule.group, about.detail if isinstance(about.detail, Sign) else ""}
        if not known & self.explains:
            return False
        if about.raised is not None:
            return bool(self.raising) and re.search(self.raising, str(about.raised)) is not None
        return True
