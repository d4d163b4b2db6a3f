"""`pb.check`: a target, its inputs and the rules become a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.confirm import confirmed
from pullback.check.findings.causes import by_cause
from pullback.check.findings.finding import Finding, Severity, Skip
from pullback.check.findings.report import Proved, Report
from pullback.check.inputs.given import arguments_from, examples_from
from pullback.check.inputs.stated import stated
from pullback.check.kernels.sanitizer import sanitized
from pullback.check.models.examine import ModelRequest
from pullback.check.models.runner import check_model
from pullback.check.processes import fresh
from pullback.check.processes.crash import RULE as CRASH
from pullback.check.processes.crash_diagnosis import CrashCause, cause_of
from pullback.check.processes.forked import messages
from pullback.check.processes.fresh import CannotSendError, fresh_messages
from pullback.check.processes.isolate import CannotForkError, Died, why_no_fork
from pullback.check.processes.warm import warm_up
from pullback.check.proving import proved_of
from pullback.check.ranks.runner import check_ranks
from pullback.check.recordings.inside import functions_inside, joined
from pullback.check.rules import Registered, selected
from pullback.check.subject.surrogates import Surrogate
from pullback.check.surroundings import usual_modes
from pullback.check.target.target import Target, target_of, with_options
from pullback.check.work import Job, Message, work
from pullback.errors import (
    DeclarationError,
    ExamplesError,
    InternalError,
    RuleNameError,
    TargetError,
)
from pullback.judge.example import example_of
from pullback.judge.run import describe

Progress = Callable[[str, int, int], None]

# Workers that may be lost before the rest is given up: a hang counts whole, a crash a quarter.
ENOUGH = 1.0

NEEDS_RANKS = "give `ranks=2`, on the command line `--ranks 2`: it is a function of several ranks"
FORWARD_RUNS = "give inputs for which forward runs"

HERE = "the rules ran in this process, which a crash or a hang would have ended"


@usual_modes()
def check(
    target: Any,
    inputs: Any = None,
    *,
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    profile: str = "standard",
    declares: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    domain: Any = None,
    isolate: bool = True,
    seconds: float | None = None,
    ranks: int | None = None,
    placements: Mapping[str, Any] | None = None,
    sanitize: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Try every rule on `target` at `inputs` and what can be generated from them: see `pb.check`.

    What `domain` rules out is not tried (see `inputs.stated`). With `ranks`, the rules across ranks
    are tried, by so many processes, and `inputs` may be a function of the rank.
    """
    known = with_options(target_of(target), declares, reference)
    if placements is not None and ranks is None:
        raise DeclarationError(
            "`placements` must come with `ranks`: they say what the values of ranks are",
            got=repr(placements),
            fix=f"pb.check({known.name}, inputs, ranks=2, placements=...)",
        )
    if ranks is not None:
        return check_ranks(
            known,
            inputs,
            ranks,
            select=select,
            allow=allow,
            profile=profile,
            placements=placements,
            progress=progress,
        )
    if isinstance(known.thing, torch.nn.Module):
        arguments = arguments_from(known, inputs)
        asked = ModelRequest(
            known,
            tuple(example_of(args) for args in arguments),
            frozenset(i for i, arg in enumerate(arguments[0]) if _is_wanted(arg)),
            tuple(select),
            tuple(allow),
            profile,
            seconds,
            progress,
        )
        return check_model(asked, check)
    rules = selected(profile=profile, select=select, allow=allow)
    examples = examples_from(known, inputs)
    names = known.names_of(max(len(example.args) for example in examples))
    domain = known.intent.domain if domain is None else domain
    known = replace(known, domain=stated(domain, names, examples, known.name))
    rules = tuple(sorted(rules, key=_turn))
    job = Job(known, examples, rules, profile)
    start = time.monotonic()
    collected = _Collected(job, progress, seconds)
    try:
        why_not = collected.work_elsewhere() if isolate else "asked to"
        if why_not:
            collected.notes.append(f"{HERE}: {why_not}")
            collected.work_here()
        if sanitize:
            collected.sanitize()
        collected.prove()
        left = collected.seconds_left()
        options = {"select": select, "allow": allow, "profile": profile, "seconds": left}
        parts, missing = collected.look_inside({**options, "progress": progress})
    except _TimeIsUp:
        collected.leave_rest()
        parts, missing = (), collected.inside
    except KeyboardInterrupt:
        collected.interrupted = True
        parts, missing = (), collected.inside
    return joined(collected.report(start), parts, missing)


def _turn(registered: Registered) -> int:
    """When a rule is tried: the later, the less time is left for it.

    What leaves its memory may end the process, or change what other rules see: it comes first.
    What a wrong gradient costs is more than what a slow one does.
    """
    rule = registered.rule
    if rule.group == "bounds":
        return 0
    return 2 if rule.group == "compile" or rule.severity is Severity.WASTEFUL else 1


class _TimeIsUp(Exception):
    """The caller's time is over, and another rule would begin."""


class _Collected:
    """What the workers said so far."""

    def __init__(self, job: Job, progress: Progress | None, limit: float | None = None) -> None:
        self.job = job
        self.progress = progress
        self.limit = limit  # seconds, after which no rule is begun
        self.start = time.monotonic()
        self.results: list[Finding | Skip] = []
        self.tried: dict[str, int] = {}
        self.notes: list[str] = []
        self.current = -1
        self.inside: tuple[str, ...] = ()  # the Functions that a program calls
        self.seconds = 0.0  # that one call takes
        self.interrupted = False
        self.is_here = False  # whether rules ran in this process
        self.is_fresh = False  # whether workers are started afresh, not forked
        self.proved: Proved | None = None
        self.surrogates: tuple[Surrogate, ...] = ()
        self.relations: tuple[str, ...] = ()
        self.lost: list[str] = []  # codes of rules that could not be tried

    def work_elsewhere(self) -> str:
        """The rules in workers; why that cannot be, where it cannot: nothing was done then."""
        why_not = why_no_fork()
        if not why_not:
            warm_up(self.job.rules, self.job.profile)
            try:
                self.drive()
                return ""
            except CannotForkError as refusal:
                why_not = str(refusal)
        self.is_fresh = True
        try:
            self.drive()
            return ""
        except CannotSendError as refusal:
            self.is_fresh = False
            if fresh.is_on_gpu(self.job):
                raise _not_sent(self.job.target, refusal) from None
            return f"{why_not}; and it cannot be sent to another one: {refusal}"

    def drive(self) -> None:
        """Workers one after the other, until every rule has been tried or too many were lost."""
        first = 0
        lost = 0.0
        while first < len(self.job.rules):
            try:
                start = fresh_messages if self.is_fresh else messages
                for message in start(self.job, first, self.seconds):
                    self.take(message)
                return
            except Died as death:
                if death.is_idle and not self.is_fresh and self._can_be_sent():
                    self.is_fresh = True  # threads of this process are not in a fork: it froze
                    first = max(self.current, first)
                    continue
                self._died(death)
                is_ours = self.current >= 0 and self.job.rules[self.current].rule.wraps
                is_hang = death.is_hang and not death.is_slow
                lost += 1.0 if is_hang else 0.0 if is_ours else 0.25
                if self.current < 0:
                    lost = ENOUGH + 1  # every rule begins with the example that it died at
                first = max(self.current + 1, first + 1)
            if lost > ENOUGH:
                left = self.job.rules[max(self.current + 1, 0) :]
                if left:
                    reason = "rules were not tried: too many workers were lost"
                    self.notes.append(f"{len(left)} {reason}")
                    self.lost += [one.rule.code for one in left]
                return

    def _can_be_sent(self) -> bool:
        try:
            return bool(fresh.packed(self.job))
        except CannotSendError:
            return False

    def work_here(self) -> None:
        """The rules in this process, where only `sys.exit` and the like can be survived."""
        self.is_here = True
        first = 0
        while first < len(self.job.rules):
            try:
                work(self.job, self.take, first)
                return
            except (Exception, KeyboardInterrupt):
                raise
            except BaseException as error:
                is_exit = isinstance(error, SystemExit)
                how = "it called sys.exit" if is_exit else f"it raised {describe(error)}"
                self._died(Died(how), is_here=True)
                if self.current < 0:
                    return
                first = self.current + 1

    def sanitize(self) -> None:
        """What NVIDIA's sanitizer says of the kernels."""
        try:
            for said in sanitized(self.job):
                where: list[Any] = self.notes if isinstance(said, str) else self.results
                where.append(said)
        except Exception as error:  # what cannot be sent
            self.notes.append(f"compute-sanitizer was not asked: {describe(error)}")

    def prove(self) -> None:
        """What holds for all inputs, after the rules have tried some."""
        if not self.is_fresh and not self.surrogates:
            self.proved = proved_of(self.job, self.results, is_here=self.is_here)

    def look_inside(self, options: dict[str, Any]) -> tuple[Sequence[Report], Sequence[str]]:
        """Reports on the Functions that a program calls, and the names of those without one."""
        if not self.inside or self.is_here or self.is_fresh:
            return (), self.inside
        found, missing = functions_inside(self.job.target, self.job.examples)
        reports = []
        for one in found:
            try:
                reports.append(one.checked(check, self.job.target, options))
            except RuleNameError:  # all that is asked is allowed for it
                continue
            except ExamplesError:  # it refuses leaves, say, where the program passes others
                missing = (*missing, one.target.name)
        return reports, missing

    def take(self, message: Message) -> None:
        """Note what a worker said; raises `ExamplesError` where forward refuses the examples."""
        if message.kind == "accepted":
            self.seconds = message.seconds
            self.inside = message.inside
            self.notes += _notes(self.job.target)
        if message.kind == "noted" and message.reason not in self.notes:
            self.notes.append(message.reason)
        if message.surrogates and not self.surrogates:
            self.surrogates = message.surrogates
            self.notes.append(_surrogate_note(self.job.target, message.surrogates))
        if message.relations and not self.relations:
            self.relations = message.relations
            kept = "; ".join(message.relations)
            self.notes.append(f"only inputs were tried that keep what the example shows: {kept}")
        if message.kind == "unfit":
            raise ExamplesError(
                f"`{self.job.target.name}` must accept the inputs it is checked with",
                at=message.where,
                got=message.reason,
                fix=NEEDS_RANKS if message.needs_ranks else FORWARD_RUNS,
            )
        if message.kind == "begin":
            self.current = message.rule
            if self.limit is not None and time.monotonic() - self.start > self.limit:
                raise _TimeIsUp
            if self.progress is not None:
                name = self.job.rules[message.rule].rule.name
                self.progress(name, message.rule, len(self.job.rules))
        self.results += message.results
        for key, count in message.tried.items():
            self.tried[key] = self.tried.get(key, 0) + count

    def seconds_left(self) -> float | None:
        """What is left of the time that was given, if any was."""
        return None if self.limit is None else self.limit - (time.monotonic() - self.start)

    def leave_rest(self) -> None:
        """Name the rules that are not tried, since the time is up."""
        reason = f"the time of {self.limit:g} s was up"
        for registered in self.job.rules[self.current :]:
            self.results.append(Skip.refused(registered.rule, reason))

    def _died(self, death: Died, *, is_here: bool = False) -> None:
        target = self.job.target
        rule = self.job.rules[self.current].rule if self.current >= 0 else CRASH
        if death.is_ours and self.current < 0:
            raise InternalError(f"`{target.name}` must be something to check", got=death.how)
        if death.is_ours:
            self.results.append(Skip.refused(rule, f"the check itself failed: {death.how}"))
            return
        if rule.group == "compile" and death.is_hang:
            self.results.append(Skip.refused(rule, f"the compiler takes too long: {death.how}"))
            return
        if death.is_slow and self.current >= 0:
            reason = f"its trials take too long here, so it was ended: {death.how}"
            self.results.append(Skip.refused(rule, reason))
            return
        if rule.wraps:
            reason = f"tensors without memory of their own cannot be read: {death.how}"
            self.results.append(Skip.refused(rule, reason))
            return
        self.lost += [rule.code] if self.current >= 0 else []
        if any(isinstance(r, Finding) and r.rule.code == CRASH.code for r in self.results):
            self.results.append(
                Skip.refused(rule, f"the process was lost here as well: {death.how}")
            )
            return
        cause = self._cause(death, is_here=is_here)
        first = self.job.examples[0]
        found = Finding.made(
            CRASH,
            at=f"while `{rule.name}` was tried" if self.current >= 0 else "at the example itself",
            expected="a result or an exception",
            got=death.how,
            facts={"kernel": cause.kernel} if cause.kernel else {},
            inputs=cause.inputs or first.words(target.names_of(len(first.args))),
            repro=cause.repro,
            fix="raise an exception where the arguments cannot be served",
        )
        self.results.append(found.of(target.name, target.place("backward", "vjp", "forward")))

    def _cause(self, death: Died, *, is_here: bool) -> CrashCause:
        """The call and the kernel by which a worker was lost, as far as that can be found."""
        if is_here:
            return CrashCause()
        if self.is_fresh:
            return fresh.cause_of_loss(self.job, self.current)
        return CrashCause() if death.is_hang else cause_of(self.job, self.current)

    def report(self, start: float) -> Report:
        """The report of all that was said since `start`, each defect once."""
        job = self.job
        names = job.target.names_of(max(len(e.args) for e in job.examples))
        findings = by_cause(r for r in self.results if isinstance(r, Finding))
        if not (self.is_here or self.is_fresh or self.interrupted):
            findings = confirmed(findings, job.target)
        return Report(
            subject=job.target.name,
            place=job.target.place("backward", "vjp", "forward"),
            findings=tuple(findings),
            skips=tuple(r for r in self.results if isinstance(r, Skip)),
            tried=self.tried,
            rules=tuple(r.rule.code for r in job.rules),
            examples=tuple(example.words(names) for example in job.examples),
            seconds=time.monotonic() - start,
            profile=job.profile,
            notes=tuple(self.notes),
            interrupted=self.interrupted,
            proved=self.proved,
            surrogates=tuple(one.name for one in self.surrogates),
            lost=tuple(self.lost),
        )


def _not_sent(target: Target, refusal: CannotSendError) -> TargetError:
    """What is said of a function on a GPU that no worker can be given."""
    return TargetError(
        f"`{target.name}` must be something that another process can be given, with its inputs",
        expected="nothing that belongs to this process: a lock, an open file, a stream",
        got=str(refusal),
        fix="define it in a module and name it 'module:Name'; with isolate=False the rules run "
        "here, and a kernel that strays takes the GPU from this process",
    )


def _notes(target: Target) -> Iterator[str]:
    """What a check of a program cannot see, and what `torch.compile` will stumble over."""
    for method, call in target.graph_breaks:
        yield f"`.{call}()` in {method} breaks the graph under torch.compile"


def _is_wanted(arg: Any) -> bool:
    return isinstance(arg, Tensor) and arg.requires_grad


def _surrogate_note(target: Target, found: Sequence[Surrogate]) -> str:
    """Which gradients were not compared with forward's, why, and how to say that it is meant."""
    names = ", ".join(f"`{one.name}`" for one in found)
    first = found[0]
    if first.inside:
        return (
            f"surrogate gradient of {names}: `{first.inside}`, which it calls, has a gradient that "
            "is not forward's on purpose, so these were not compared with forward's"
        )
    value = repr(first.name) if len(found) == 1 else repr(tuple(one.name for one in found))
    assert first.shape is not None
    return (
        f"surrogate gradient of {names}: {first.shape.value}, and backward returns another "
        "gradient than forward's, so that was not compared. Where it is meant, say so in "
        f"`{target.name}`: declares = {{'surrogate': {value}}}"
    )
