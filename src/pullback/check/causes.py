"""Causes before echoes: one defect is told once, by the rule that names its cause.

A function that overwrites its cotangent, reads memory that nobody wrote, or remembers earlier calls
gives wrong numbers wherever numbers are compared, so that a dozen rules find it. `CAUSES` says
which rule names the cause of what others find, and why. What is explained so becomes a line of the
cause; findings of one rule with one remedy, for several inputs, become lines of the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pullback.check.finding import Finding, Severity
from pullback.check.snapshot import FREED

Test = Callable[[Finding], bool]

ALSO = "also"  # the label of what is folded into a finding

_NAME = re.compile(r"`[^`]*`|the cotangent(?: of output \d+)?")
_RAISED = re.compile(r"^[A-Za-z_.]*(?:Error|Exception|Interrupt)\b")

AGAIN = "second backward"  # a finding that says no more than that it differs from the first

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
COMPARING = frozenset({*GROUPS, *CALLS, *STATES, AGAIN})
# What a backward shows that finds other numbers at its second call, or in another thread.
REPEATING = frozenset(
    {
        *CALLS,
        AGAIN,
        *("detached-double-backward", "wrong-double-backward", "hessian-asymmetry"),
        *("checkpoint-differs", "compiled-differs"),
    }
)
# What a gradient of the wrong size seems to be, whatever bends it.
PATTERNS = frozenset({"wrong-factor", "flipped-sign", "missing-reduction"})
UNWATCHED = frozenset({"stale-after-edit", "leaked-graph", "freed-storage"})


@dataclass(frozen=True, slots=True)
class Cause:
    """A rule whose finding explains those of others: of which rules or groups, and since when."""

    rule: str
    explains: frozenset[str]
    since: str
    holds: Test = lambda finding: True
    is_partial: bool = False  # whether a gradient may be wrong for a reason of its own besides
    weighs: bool = False  # whether it is as bad as the worst of what it explains
    raising: str = ""  # what an explained finding may raise; otherwise it compares numbers

    def is_behind(self, cause: Finding, other: Finding) -> bool:
        """Whether `other` is an echo of `cause`, a finding of this rule."""
        if other.rule.name == self.rule:
            return False
        is_pattern = self.rule == "nonlinear-backward" and other.rule.name in PATTERNS
        if self.is_partial and other.rule.group == "gradient" and other.why and not is_pattern:
            return False  # it has a reason of its own
        words = {other.rule.name, other.rule.group} | ({AGAIN} if _repeats(other) else set())
        if not words & self.explains:
            return False
        if _RAISED.match(other.got):
            return bool(self.raising) and re.search(self.raising, other.got) is not None
        return True


def _repeats(finding: Finding) -> bool:
    """Whether it says no more than that a second backward differs from the first."""
    return finding.rule.name == "mutated-saved" and "second backward" in finding.at


def _is_poisoned(finding: Finding) -> bool:
    return finding.got.startswith("nan")


def _changes_numbers(finding: Finding) -> bool:
    return not finding.at.startswith("the state of")


# From the first on: a finding is explained by the first cause that can.
CAUSES = (
    Cause(
        "uninitialised-memory",
        COMPARING,
        "memory that nobody wrote holds other numbers each time",
        holds=_is_poisoned,  # where it only differs, an earlier call may have made the difference
    ),
    Cause(
        "random-in-backward",
        COMPARING | {"uninitialised-memory"},
        "each backward draws other numbers",
        holds=_changes_numbers,
    ),
    Cause(
        "result-depends-on-history",
        COMPARING | {"uninitialised-memory"},
        "no two calls give the same",
    ),
    Cause("stale-cache", COMPARING, "a call is served with the numbers of an earlier one"),
    Cause(
        "two-live-calls",
        REPEATING,
        "what is not on ctx belongs to the last call",
        raising=".",
    ),
    Cause(
        "mutated-cotangent",
        COMPARING,
        "what is computed from the cotangent after that is wrong",
        is_partial=True,
        raising="single memory location|modified by an inplace operation",
    ),
    Cause(
        "mutated-input",
        COMPARING | {"unmarked-dirty"},
        "the next use of that input sees other numbers",
        is_partial=True,
        raising="modified by an inplace operation",
    ),
    Cause(
        "unmarked-dirty",
        COMPARING,
        "the next use of that input sees other numbers",
        is_partial=True,
        raising="modified by an inplace operation",
    ),
    Cause(
        "mutated-saved",
        REPEATING | {"crash", "gradient-aliases-input", "layout", "same-tensor-twice"},
        "what is read next from that memory is no longer there",
        holds=lambda finding: finding.got == FREED,
        is_partial=True,
        raising=".",
    ),
    Cause(
        "mutated-saved",
        REPEATING | {"gradient-aliases-input", "layout", "same-tensor-twice", "reused-buffer"},
        "the next backward, and whoever shares that memory, sees other numbers",
        holds=lambda finding: not _repeats(finding),
        is_partial=True,
        raising="single memory location|modified by an inplace operation",
    ),
    Cause(
        "touched-grad",
        frozenset(
            {"checkpoint-differs", "hooks-bypassed", "cut-gradient", "backward-twice", AGAIN}
        ),
        "what is in `.grad` is none of what backward returns",
        raising=".",
    ),
    Cause(
        "mutated-saved",
        REPEATING - {AGAIN},
        "the next backward sees other numbers",
        is_partial=True,
    ),
    Cause(
        "reused-buffer",
        COMPARING,
        "what is kept from one call changes with the next",
    ),
    Cause(
        "backward-twice",
        REPEATING - {AGAIN},
        "no two backwards over one graph give the same",
        holds=lambda finding: not _RAISED.match(finding.got),
    ),
    Cause(
        "wrong-for-subset",
        frozenset({"wrong-under-no-grad"}),
        "forward does something else where no gradient is asked for",
        holds=lambda finding: "when no input" in finding.at,
        raising=".",
    ),
    Cause(
        "tensor-on-ctx",
        UNWATCHED | {"detached-double-backward"},
        "autograd neither watches nor follows what is on ctx and not saved",
        holds=lambda finding: finding.got.startswith(("output", "input")),
        weighs=True,
    ),
    Cause(
        "tensor-on-ctx",
        UNWATCHED,
        "autograd does not watch what is on ctx and not saved",
        weighs=True,
    ),
    Cause(
        "wrong-gradient",
        frozenset({"linearity"}),
        "the same edit mends that too",
        holds=lambda finding: bool(finding.why),  # an edit that was tried with large cotangents
    ),
    Cause(
        "nonlinear-backward",
        frozenset({"gradient", "linearity"}),
        "what bends with the cotangent is wrong for some",
        is_partial=True,
    ),
    Cause(
        "wrong-dtype-branch",
        frozenset({"mixed-cotangent", "far-from-zero", "lost-digits", "autocast-differs"}),
        "they compare numbers of that dtype",
    ),
    Cause(
        "silent-repair",
        frozenset(
            {
                *("needless-rounding", "rounded-input", "coarse-constant", "default-dtype"),
                "hessian-asymmetry",
            }
        ),
        "the digits are those of the dtype that is returned",
        holds=lambda finding: "which the engine casts" in finding.got,
        weighs=True,
    ),
    Cause("needless-rounding", frozenset({"hessian-asymmetry"}), "the digits are lost there"),
    Cause("silent-repair", frozenset({"hessian-asymmetry"}), "the digits are lost there"),
    Cause(
        "backward-fails-at-shape",
        frozenset({"empty-input"}),
        "an empty input is one of these shapes",
        holds=lambda finding: "is invalid for input of size" in finding.got,
        raising="is invalid for input of size",
    ),
    Cause(
        "same-tensor-twice",
        frozenset({"subclass-input"}),
        "wrappers have no memory of their own, so that any two of them look like one tensor",
    ),
)


def by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with echoes folded into their causes: causes first, then by severity, code."""
    order = list(Severity)
    left = sorted(findings, key=lambda f: (order.index(f.weight), f.rule.code))
    causes: list[Finding] = []
    for cause in CAUSES:
        own = [f for f in left if f.rule.name == cause.rule and cause.holds(f)]
        if not own:
            continue
        echoes = [f for f in left if cause.is_behind(own[0], f)]
        if echoes:
            told = f"seen as {_names(echoes)}, since {cause.since}"
            left = [f for f in left if f not in echoes and f not in own]
            if cause.weighs:
                worst = min((f.weight for f in (own[0], *echoes)), key=order.index)
                own[0] = replace(own[0], severity=worst)
            causes += _grouped([_with(own[0], told), *own[1:]])
    return [*causes, *_grouped(left)]


def _grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Those of one rule with one remedy, the names of inputs aside, as one."""
    found: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        found.setdefault(_remedy(finding), []).append(finding)
    return [_as_one(several) for several in found.values()]


def _remedy(finding: Finding) -> tuple[str, ...]:
    """What two findings share that are one: the rule, how bad it is, the reason, and the fix."""
    why, fix = (_NAME.sub("`", text) for text in (finding.why, finding.fix))
    raised = _RAISED.match(finding.got)
    return finding.rule.code, finding.weight, why, fix, raised.group() if raised else ""


def _as_one(several: Sequence[Finding]) -> Finding:
    first, *others = several
    if not others:
        return first
    return _with(first, "for " + "; ".join(_brief(other) for other in others))


def _brief(finding: Finding) -> str:
    """A finding in a line: where, and what is wrong."""
    at = finding.at.removeprefix("gradient of ")
    if finding.expected and finding.got:
        return f"{at}: expected {finding.expected}, got {finding.got}"
    return f"{at}: {finding.got}" if finding.got else at


def _with(finding: Finding, told: str) -> Finding:
    before = finding.facts.get(ALSO)
    return replace(finding, facts={**finding.facts, ALSO: f"{before}; {told}" if before else told})


def _names(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(f"{f.rule.name} ({f.rule.code})" for f in findings))
