"""`pb.check`: a target, its inputs and the rules become a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.collected import Collected, TimeIsUp
from pullback.check.driving import Driver, Where
from pullback.check.findings.finding import Severity
from pullback.check.findings.report import Report
from pullback.check.inputs.given import arguments_from, examples_from
from pullback.check.inputs.stated import stated
from pullback.check.job import Job
from pullback.check.kernels.sanitizer import sanitized
from pullback.check.models.examine import ModelRequest
from pullback.check.models.runner import check_model
from pullback.check.options import CheckOptions
from pullback.check.proving import proved_of
from pullback.check.ranks.runner import check_ranks
from pullback.check.recordings.inside import functions_inside, joined, reports_inside
from pullback.check.rules import Registered, selected
from pullback.check.surroundings import usual_modes
from pullback.check.target.target import Target, target_of, with_options
from pullback.errors import DeclarationError
from pullback.judge.example import example_of
from pullback.judge.run import describe


def check(target: Any, inputs: Any = None, **options: Any) -> Report:
    """`checked`, with options by their names."""
    return checked(target, inputs, CheckOptions(**options))


@usual_modes()
def checked(target: Any, inputs: Any, options: CheckOptions) -> Report:
    """Try every rule on `target` at `inputs` and what can be generated from them: see `pb.check`.

    With `ranks`, the rules across ranks are tried, by so many processes, and `inputs` may be a
    function of the rank.
    """
    known = with_options(target_of(target), options.declares, options.reference)
    if options.ranks is not None:
        return _across_ranks(known, inputs, options, options.ranks)
    if options.placements is not None:
        raise DeclarationError(
            "`placements` must come with `ranks`: they say what the values of ranks are",
            got=repr(options.placements),
            fix=f"pb.check({known.name}, inputs, ranks=2, placements=...)",
        )
    if isinstance(known.thing, torch.nn.Module):
        return check_model(_model_request(known, inputs, options), checked)
    return _in_one_process(_job(known, inputs, options), options)


def _across_ranks(target: Target, inputs: Any, options: CheckOptions, ranks: int) -> Report:
    return check_ranks(
        target,
        inputs,
        ranks,
        select=options.select,
        allow=options.allow,
        profile=options.profile,
        placements=options.placements,
        progress=options.progress,
    )


def _model_request(target: Target, inputs: Any, options: CheckOptions) -> ModelRequest:
    arguments = arguments_from(target, inputs)
    first = enumerate(arguments[0])
    wanted = (i for i, arg in first if isinstance(arg, Tensor) and arg.requires_grad)
    examples = tuple(example_of(args) for args in arguments)
    return ModelRequest(target, examples, frozenset(wanted), options)


def _job(target: Target, inputs: Any, options: CheckOptions) -> Job:
    """What is to be tried: the rules in their turns, at examples within the domain."""
    rules = selected(profile=options.profile, select=options.select, allow=options.allow)
    examples = examples_from(target, inputs)
    names = target.names_of(max(len(example.args) for example in examples))
    domain = target.intent.domain if options.domain is None else options.domain
    target = replace(target, domain=stated(domain, names, examples, target.name))
    rules = tuple(sorted(rules, key=_turn))
    return Job(target, examples, rules, options.profile, options.options_of)


def _turn(registered: Registered) -> int:
    """When a rule is tried: the later, the less time is left for it.

    What leaves its memory may end the process, or change what other rules see: it comes first.
    What a wrong gradient costs is more than what a slow one does.
    """
    rule = registered.rule
    if rule.group == "bounds":
        return 0
    return 2 if rule.group == "compile" or rule.severity is Severity.WASTEFUL else 1


def _in_one_process(job: Job, options: CheckOptions) -> Report:
    """The report on a function of one process, and on the Functions that it calls."""
    collected = Collected(job, options.progress, options.seconds)
    driver = Driver(job, collected)
    inside: tuple[Sequence[Report], Sequence[str]] | None = None
    try:
        driver.try_rules(isolate=options.isolate)
        if options.sanitize:
            _sanitize(job, collected)
        if driver.where is not Where.FRESH and not collected.surrogates:
            is_here = driver.where is Where.HERE
            collected.proved = proved_of(job, collected.results, is_here=is_here)
        if collected.inside and driver.where is Where.FORK:
            inside = _inside(job, replace(options, seconds=collected.seconds_left()))
    except TimeIsUp:
        collected.leave_rest()
    except KeyboardInterrupt:
        collected.interrupted = True
    report = collected.report(confirms=driver.where is Where.FORK)
    return joined(report, *(inside or ((), collected.inside)))


def _inside(job: Job, options: CheckOptions) -> tuple[Sequence[Report], Sequence[str]]:
    """Reports on the Functions that a program calls, and the names of those without one."""
    found, lost = functions_inside(job.target, job.examples, options.options_of)
    reports, missing = reports_inside(found, job.target, options, checked)
    return reports, (*lost, *missing)


def _sanitize(job: Job, collected: Collected) -> None:
    """What NVIDIA's sanitizer says of the kernels."""
    try:
        for said in sanitized(job):
            where: list[Any] = collected.notes if isinstance(said, str) else collected.results
            where.append(said)
    except Exception as error:  # what cannot be sent
        collected.notes.append(f"compute-sanitizer was not asked: {describe(error)}")
