"""The result of a check: what was found, what was not tried and why, and what no check can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from pullback.check.findings.finding import Finding, Severity, Skip
from pullback.graph.cost import bytes_text
from pullback.pages import page_of

BLIND = (
    "values, shapes and dtypes that were not tried",
    "a wrong forward: the gradient is compared with what forward computes",
    "races between kernels that did not show in the repeats",
)

ABOVE = "the error above comes first"
MOST = 3  # examples that are shown, and rules of those that were not tried


@dataclass(frozen=True, slots=True)
class Proved:
    """What a search for a proof came to.

    `gradients` are the inputs whose gradients are right for all inputs, for the shapes of `scope`
    and but for the `provisos`; `unknown` are the others, and `reason` says why.
    """

    gradients: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    scope: str = ""
    provisos: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding that does not count, because a baseline has it or a comment allows it."""

    finding: Finding
    by: str  # the baseline, or the place of the comment
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """A Function or op inside a model: where it is called, and what it keeps for backward.

    `places` are paths in the model. `fewer_derived` is how many bytes fewer the Functions derived
    from its forward would keep, None where there are none; `fewer_combined` the same for modules
    around it as one node each, by the path of the first of its kind.
    """

    name: str
    calls: int = 0
    places: tuple[str, ...] = ()
    signatures: int = 0
    saved: int = 0
    fewer_derived: int | None = None
    fewer_combined: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [_counted(self.calls, "call"), _counted(self.signatures, "signature")]
        if self.places:
            parts.append(f"at {_first([f'`{path}`' for path in self.places])}")
        parts.append(f"keeps {bytes_text(self.saved)}")
        if self.fewer_derived:
            parts.append(f"derived: {bytes_text(self.fewer_derived)} less")
        for path, fewer in self.fewer_combined.items():
            if fewer:
                parts.append(f"`{path}` as one node: {bytes_text(fewer)} less")
        return f"{self.name}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `pb.check` says of one function."""

    subject: str
    place: str = ""
    findings: tuple[Finding, ...] = ()
    skips: tuple[Skip, ...] = ()
    tried: dict[str, int] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    seconds: float = 0.0
    profile: str = "standard"
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    proved: Proved | None = None
    accepted: tuple[Accepted, ...] = ()
    functions: tuple[FunctionUse, ...] = ()  # inside a model
    surrogates: tuple[str, ...] = ()  # inputs whose gradients are others than forward's on purpose
    lost: tuple[str, ...] = ()  # the rules that a process or a GPU was lost at, or before

    @property
    def ok(self) -> bool:
        """Whether every rule could be tried, and nothing was found."""
        return not self.findings and not self.lost

    @property
    def blind(self) -> tuple[str, ...]:
        """What no check can see."""
        return BLIND

    def of(self, severity: Severity | str) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(f for f in self.findings if f.weight == Severity(severity))

    def with_notes(self, *notes: str) -> Report:
        """The same report with something more to note."""
        return replace(self, notes=(*self.notes, *notes))

    def to_html(self) -> str:
        """The report as a page of its own, which needs no network."""
        return page_of("report", [self])

    def _repr_html_(self) -> str:
        return page_of("report", [self], is_framed=True)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        parts = [str(finding) for finding in self.findings]
        parts.append(self.summary())
        return "\n\n".join(parts)

    def summary(self) -> str:
        """The last lines: the verdict, what was tried, what was not."""
        counts = Counter(str(f.weight) for f in self.findings)
        found = ", ".join(f"{counts[s.value]} {s.value}" for s in Severity if counts[s.value])
        verdict = f"{len(self.findings)} findings ({found})" if found else "nothing found"
        if len(self.findings) == 1:
            verdict = f"1 finding ({found.removeprefix('1 ')})"
        if self.interrupted:
            verdict = f"interrupted, {verdict} so far"
        if self.lost and not found:
            verdict = "not checked to its end"
        runs = _counted(self.tried.get("runs", 0), "run")
        rules = _counted(len(self.rules), "rule")
        if self.lost:
            rules = f"{len(self.rules) - len(self.lost)} of {rules} could be tried"
        lines = [
            f"{self.subject}: {verdict}. {rules}, {runs}, "
            f"profile {self.profile}, {self.seconds:.1f} s."
        ]
        if self.ok:
            lines += [f"  inputs: {example}" for example in self.examples[:MOST]]
        lines += [f"  proved: {_proof(self.proved)}"] if self.proved is not None else []
        lines += [f"  inside: {use}" for use in self.functions]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  {line}" for line in self._acceptances()]
        lines += [f"  not tried: {who}: {why}" for why, who in self._refusals().items()]
        routine = dict.fromkeys(s.rule.name for s in self.skips if not s.is_refusal)
        if routine:
            lines.append(f"  not applicable: {_first(list(routine))}")
        if self.interrupted:
            lines.append("  interrupted: the rules after this were not tried")
        return "\n".join(lines)

    def _acceptances(self) -> Iterator[str]:
        """What does not count: what was allowed one by one, and what the baseline has together."""
        counts = Counter(one.by for one in self.accepted if not one.reason)
        for one in self.accepted:
            if one.reason:
                yield f"allowed: {one.finding.rule.name}, at {one.by}: {one.reason}"
        for by, count in counts.items():
            yield f"known: {_counted(count, 'finding')} more, in {by}"

    def _refusals(self) -> dict[str, str]:
        """Why rules could not be tried, each reason once, with its rules."""
        found: dict[str, list[str]] = {}
        raised = [f.about.raised for f in self.findings if f.about.raised is not None]
        for skip in self.skips:
            if skip.is_refusal:
                why = ABOVE if skip.raised in raised else skip.reason
                found.setdefault(why, []).append(f"{skip.rule.name} ({skip.rule.code})")
        return {why: _first(names) for why, names in found.items()}


def _proof(proved: Proved) -> str:
    """What was proved, in a line."""
    if not proved.gradients:
        return f"nothing: {proved.reason}"
    parts = [f"{_gradients(proved.gradients)} for all inputs, {proved.scope}", *proved.provisos]
    if proved.unknown:
        parts.append(f"not {_gradients(proved.unknown)}: {proved.reason}")
    return "; ".join(parts)


def _gradients(names: Sequence[str]) -> str:
    return f"the gradient{'s' * (len(names) > 1)} of {', '.join(f'`{name}`' for name in names)}"


def _first(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MOST
    return ", ".join(names) if more < 2 else f"{', '.join(names[:MOST])} and {more} more"


@dataclass(frozen=True, slots=True)
class Reports(Sequence[Report]):
    """The reports on several Functions; `errors` says which could not be checked, and why."""

    all: tuple[Report, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was checked and nothing was found."""
        return all(report.ok for report in self.all) and not self.errors

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all of them."""
        return tuple(finding for report in self.all for finding in report.findings)

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Report, ...]: ...
    def __getitem__(self, index: int | slice) -> Report | tuple[Report, ...]:
        return self.all[index]

    def to_html(self) -> str:
        """All of them as one page, which needs no network."""
        return page_of("report", self.all, self.errors)

    def _repr_html_(self) -> str:
        return page_of("report", self.all, self.errors, is_framed=True)

    def __len__(self) -> int:
        return len(self.all)

    def __str__(self) -> str:
        return "\n\n".join([*(str(report) for report in self.all), *self.errors])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
