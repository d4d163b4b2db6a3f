"""`pb.check(module, inputs)`: the model as a whole, then each Function inside it, once.

Every distinct call of a Function (shapes, dtypes, layouts, plain arguments) becomes an example of
one check of that Function, however many layers make it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pullback.check.findings.finding import Severity
from pullback.check.findings.registered import Registered
from pullback.check.findings.report import FunctionUse, Report
from pullback.check.models.examine import Examined, ModelRequest, examine, restoring
from pullback.check.models.rules import GROUP, WRONG, model_rules
from pullback.check.models.savings import SharedModule, combined_modules, derived_saving
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of, why_no_fork
from pullback.check.recordings.inside import CheckOne, Inside, grouped_calls, reports_inside
from pullback.check.recordings.recorded import called_at
from pullback.check.rules import all_rules, selected
from pullback.check.target.registration import place_of
from pullback.errors import ExamplesError
from pullback.graph.cost import bytes_text
from pullback.judge.run import ForwardRefusedError, Raised

SECONDS = 120.0  # of work, for the passes through a model


def check_model(asked: ModelRequest, check_one: CheckOne) -> Report:
    """The report on a module and on everything custom inside it."""
    start = time.monotonic()
    rules = _chosen(asked)
    own = {r.rule.name for r in rules if r.rule.group == GROUP}
    _tell(asked, "the model as a whole", 0, 1)
    examined = _examined(asked, own)
    inside, missing = grouped_calls(examined.calls, asked.options.options_of)
    reports, more_missing = _checked(asked, inside, start, check_one)
    missing = tuple(dict.fromkeys([*missing, *examined.lost, *more_missing]))
    return _joined(asked, rules, examined, inside, reports, missing, start)


def _chosen(asked: ModelRequest) -> tuple[Registered, ...]:
    every = (*all_rules(), *model_rules())
    return selected(
        profile=asked.options.profile,
        select=asked.options.select,
        allow=asked.options.allow,
        among=every,
    )


def _tell(asked: ModelRequest, what: str, number: int, total: int) -> None:
    if asked.options.progress is not None:
        asked.options.progress(what, number, total)


# ---- the model as a whole ----


def _examined(asked: ModelRequest, rules: set[str]) -> Examined:
    """The passes, in a worker where that can be; raises `ExamplesError` where forward refuses."""
    name = asked.target.name

    def task() -> Examined | Raised:
        try:
            return examine(asked, rules)
        except ForwardRefusedError as refusal:
            return refusal.raised

    if why_no_fork():
        found = task()
    else:
        try:
            found = answer_of(task, SECONDS)
        except Died as death:
            raise ExamplesError(
                f"`{name}` must run at the inputs it is checked with",
                got=death.how,
                fix="give smaller inputs, or a smaller model",
            ) from None
    if isinstance(found, Raised):
        raise ExamplesError(
            f"`{name}` must accept the inputs it is checked with",
            at=asked.examples[0].words(asked.target.names_of(len(asked.examples[0].args))),
            got=str(found),
            fix="give inputs for which forward runs",
        )
    return found


# ---- what is inside ----


def _checked(
    asked: ModelRequest, inside: Sequence[Inside], start: float, check_one: CheckOne
) -> tuple[list[Report], list[str]]:
    """A report on each Function inside, and the names of those without one."""
    options = asked.options
    if options.select and not any(one.rule.is_called(*options.select) for one in all_rules()):
        return [], []
    if options.seconds is not None:
        options = replace(options, seconds=options.seconds - (time.monotonic() - start))
    return reports_inside(inside, asked.target, options, check_one)


def _uses(
    asked: ModelRequest, inside: Sequence[Inside], examined: Examined
) -> tuple[FunctionUse, ...]:
    """Where each Function is called, what it keeps, and what another form would keep."""
    seen = examined.observed
    is_thorough = asked.options.profile != "quick"
    shared: list[SharedModule] = []
    if is_thorough and inside:
        with restoring(asked.target.thing):
            shared = combined_modules(asked.target.thing, asked.examples[0], examined.places)
    found = []
    for one in inside:
        places = examined.places.get(one.name, {})
        fewer: int | None = None
        if is_thorough and one.target.is_function:
            for number, args in zip(one.numbers, one.inputs, strict=True):
                derived = derived_saving(one.target.function, args)
                if derived is not None:
                    fewer = (fewer or 0) + derived.fewer * examined.times.get(number, 1)
        combined = {s.path: s.saving.fewer * s.count for s in shared if s.holds(places)}
        found.append(
            FunctionUse(
                one.target.name,
                calls=sum(places.values()),
                places=tuple(path for path in places if path),
                signatures=len(one.inputs),
                saved=seen.saved.get(one.name, 0) if seen is not None else 0,
                fewer_derived=fewer,
                fewer_combined=combined,
            )
        )
    return tuple(found)


# ---- the report ----


def _joined(
    asked: ModelRequest,
    rules: Sequence[Registered],
    examined: Examined,
    inside: Sequence[Inside],
    reports: Sequence[Report],
    missing: Sequence[str],
    start: float,
) -> Report:
    """One report: what is wrong inside, with where it is called, and what is wrong with the whole.

    A gradient of the model that is wrong because of a Function which has findings of its own, or
    which is a surrogate, is not reported a second time.
    """
    target = asked.target
    uses = _uses(asked, inside, examined)
    places = {use.name: called_at(dict.fromkeys(use.places, 1)) for use in uses}
    inner = [
        replace(finding, facts={**finding.facts, "called": places.get(report.subject, "")})
        for report in reports
        for finding in report.findings
    ]
    explained = {f.subject for f in inner if f.weight is Severity.WRONG}
    explained |= {r.subject for r in reports if r.surrogates}
    explained |= {one.target.name for one in inside if one.target.intent.has_surrogate}
    suspects = set(examined.suspects)
    own = [
        finding.of(target.name, finding.place or place_of(type(target.thing)))
        for finding in examined.findings
        if not (finding.rule.name == WRONG.name and suspects & explained)
    ]
    notes = [*examined.notes, *(f"`{r.subject}`: {note}" for r in reports for note in r.notes)]
    if missing:
        names = ", ".join(f"`{name.rpartition(':')[2]}`" for name in missing)
        notes.append(f"it calls {names}, which could not be checked with what it is given there")
    seen = examined.observed
    if seen is not None and seen.total:
        notes.append(f"backward keeps {bytes_text(seen.total)} beside parameters and inputs")
    tried: dict[str, int] = {"functions": len(reports)}
    for report in reports:
        for key, count in report.tried.items():
            tried[key] = tried.get(key, 0) + count
    return Report(
        subject=target.name,
        place=place_of(type(target.thing)),
        findings=tuple(sorted([*inner, *own], key=lambda f: list(Severity).index(f.weight))),
        skips=tuple(skip for report in reports for skip in report.skips),
        tried=tried,
        rules=tuple(one.rule.code for one in rules),
        examples=tuple(example.words(asked.names) for example in asked.examples),
        seconds=time.monotonic() - start,
        profile=asked.options.profile,
        notes=tuple(notes),
        interrupted=any(report.interrupted for report in reports),
        functions=uses,
    )
