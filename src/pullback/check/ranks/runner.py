"""`pb.check(F, inputs, ranks=N)`: the rules across ranks, one after the other, and the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from pullback.check.findings.causes import by_cause
from pullback.check.findings.finding import Finding, Skip
from pullback.check.findings.registered import Registered
from pullback.check.findings.report import Report
from pullback.check.ranks import existing
from pullback.check.ranks.commands import CHECK, Accept, Command, Reply
from pullback.check.ranks.consistency import Convention, consistent, conventions
from pullback.check.ranks.crew import SHORT, CannotStartError, Crew, RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.given import RankTuples
from pullback.check.ranks.joint import Joint, Unsettled
from pullback.check.ranks.placements import (
    Assignment,
    Declared,
    declared_of,
    output_name,
    require_there,
)
from pullback.check.ranks.rank import RankJob
from pullback.check.ranks.rules import rank_rules
from pullback.check.ranks.rules.lost_ranks import of_failed, of_lost
from pullback.check.rules import selected
from pullback.check.target.target import Target
from pullback.errors import ExamplesError, first_line
from pullback.judge.run import describe

Progress = Callable[[str, int, int], None]
LOSSES = 4  # times that the ranks may be lost before the rest is given up
EXAMPLES = 4  # that are checked where more are given: each takes as long as the first

NOTHING_SENT = "it makes no collective that is seen: `pb.check` without `ranks=` checks the rest"


@dataclass(frozen=True, slots=True)
class RanksRequest:
    """What a check across ranks is asked for."""

    target: Target
    inputs: Any
    size: int
    rules: tuple[Registered, ...]
    profile: str = "standard"
    placements: Mapping[str, Any] | None = None
    progress: Progress | None = None
    allowed: frozenset[str] = frozenset()  # codes of rules that are not to be told


def check_ranks(
    target: Target,
    inputs: Any,
    size: int,
    *,
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    profile: str = "standard",
    placements: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Report:
    """A report on a target across `size` ranks: processes of our own, or those of torchrun.

    Under torchrun every rank calls this, and gets the same report.
    """
    if not isinstance(size, int) or size < 2:
        raise ExamplesError(
            f"`ranks` must be a whole number, two or more, to check `{target.name}` across ranks",
            got=repr(size),
        )
    rules = selected(profile=profile, select=select, allow=allow, among=rank_rules())
    for registered in rules:
        if registered.prepare is not None:
            registered.prepare()
    allowed = frozenset(r.rule.code for r in selected(select=allow, among=rank_rules()) if allow)
    asked = RanksRequest(target, inputs, size, rules, profile, placements, progress, allowed)
    job = RankJob(target, inputs)
    if existing.is_there() and not isinstance(inputs, RankTuples):
        return existing.together(job, size, lambda ask: _checked(asked, ask))
    session = Session(job, size)
    try:
        return _checked(asked, session.ask, session.stop)
    except CannotStartError as refusal:
        raise ExamplesError(
            f"`{target.name}` must be checked by {size} processes",
            got=str(refusal),
            fix=refusal.fix,
        ) from None
    finally:
        session.stop()


class Session:
    """Ranks that are started again when they were lost."""

    def __init__(self, job: RankJob, size: int) -> None:
        self._job, self._size = job, size
        self._crew: Crew | None = None
        self._accepted = Accept()

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """The answers of all ranks; raises `RanksLost`."""
        first = commands[0]
        if isinstance(first, Accept):
            self._accepted = first
        if self._crew is None or not self._crew.is_alive:
            self.stop()
            try:
                self._crew = Crew(self._job, self._size)
            except (OSError, dist.DistError) as error:
                raise CannotStartError(first_line(error), SHORT) from None
            if not isinstance(first, Accept):
                self._crew.ask([self._accepted] * self._size)
        return self._crew.ask(commands)

    def stop(self) -> None:
        """End them."""
        if self._crew is not None:
            self._crew.stop()
            self._crew = None


def _checked(
    asked: RanksRequest,
    ask: Callable[[Sequence[Command]], list[Reply]],
    renew: Callable[[], None] | None = None,
) -> Report:
    """The report of all rules, at every example; what several show is told of the first."""
    start = time.monotonic()
    target = asked.target
    unnamed = declared_of(None, (), target.name)
    results: list[Finding | Skip] = []
    notes: list[str] = []
    placed: list[list[str]] = []
    examples: list[str] = []
    tried: Counter[str] = Counter()
    is_cut, number, count = False, 0, 1
    while number < min(count, EXAMPLES) and not is_cut:
        joint = Joint(
            target,
            unnamed,
            asked.size,
            ask,
            target.compare_with,
            example=number,
            is_shared=renew is None,
            renew=renew or (lambda: None),
        )
        own: list[Finding | Skip] = []
        try:
            if not _begun(asked, joint, own):
                count = joint.given[0].examples
                examples.append(joint.words)
                joint.declared = _declared(asked, joint)
                notes += _tried(asked, joint, own)
                placed.append(_consistent(joint))
        except KeyboardInterrupt:
            is_cut = True
        results = _joined(results, [_unless_allowed(asked, result) for result in own])
        tried.update(joint.tried)
        number += 1
    common = [note for note in (placed or [[]])[0] if all(note in own for own in placed)]
    notes += common or _told_apart(placed)
    if count > number and not is_cut:
        notes.append(f"of {count} examples the first {number} were checked across ranks")
    return Report(
        subject=target.name,
        place=target.place("backward", "vjp", "forward"),
        findings=tuple(by_cause(r for r in results if isinstance(r, Finding))),
        skips=tuple(r for r in results if isinstance(r, Skip)),
        tried=dict(tried),
        rules=tuple(r.rule.code for r in asked.rules),
        examples=tuple(examples),
        seconds=time.monotonic() - start,
        profile=asked.profile,
        notes=tuple(dict.fromkeys(notes)),
        interrupted=is_cut,
    )


def _unless_allowed(asked: RanksRequest, result: Finding | Skip) -> Finding | Skip:
    """A result; any rule may show that the ranks are lost, which may be allowed."""
    if isinstance(result, Skip) or result.rule.code not in asked.allowed:
        return result
    return Skip(result.rule, f"it is allowed: {result.got}")


def _joined(before: list[Finding | Skip], own: list[Finding | Skip]) -> list[Finding | Skip]:
    """What earlier examples gave and what one more adds: a finding of a rule that has none yet."""
    found = {result.rule.code for result in before if isinstance(result, Finding)}
    added = [r for r in own if r.rule.code not in found and (isinstance(r, Finding) or not before)]
    new = {result.rule.code for result in added}
    return [r for r in before if isinstance(r, Finding) or r.rule.code not in new] + added


def _begun(asked: RanksRequest, joint: Joint, results: list[Finding | Skip]) -> bool:
    """Whether the ranks were lost at the example itself; `ExamplesError` where all refuse it."""
    _require_given(asked, joint)
    try:
        _ = joint.plain
    except RanksLost as lost:
        results.append(_completed(asked, of_lost(joint, lost, "forward, at the example itself")))
        return True
    except Failed as failed:
        if len(failed.ranks) < joint.size and failed.first.phase == "forward":
            found = of_failed(joint, failed, "at the example itself")
            results.append(_completed(asked, found))
            return True
        raise ExamplesError(
            f"`{asked.target.name}` must accept the inputs it is checked with, on every rank",
            at=_where(failed),
            got=str(failed.raised),
            fix="give inputs for which forward runs on all ranks; a function may take the rank",
        ) from None
    return False


def _require_given(asked: RanksRequest, joint: Joint) -> None:
    """Raise `ExamplesError` unless every rank has its inputs, and as many as the others."""
    rule = f"the inputs of `{asked.target.name}` must be made on every rank"
    try:
        counts = {
            "arguments": [len(given.args) for given in joint.given],
            "examples": [given.examples for given in joint.given],
        }
    except RanksLost as lost:
        fix = "let what makes the inputs do the same on all ranks"
        raise ExamplesError(rule, got=str(lost), fix=fix) from None
    except Failed as failed:
        fix = "give a tuple of arguments, a list of such, or a function of nothing or of the rank"
        raise ExamplesError(rule, at=_where(failed), got=str(failed.raised), fix=fix) from None
    for what, by_rank in counts.items():
        if len(set(by_rank)) > 1:
            rule = f"`{asked.target.name}` must be given as many {what} on every rank"
            told = (f"{count} on rank {rank}" for rank, count in enumerate(by_rank))
            raise ExamplesError(rule, got=", ".join(told))


def _where(failed: Failed) -> str:
    place = f", {failed.first.place}" if failed.first.place else ""
    return f"rank {failed.ranks[0]}{place}"


def _declared(asked: RanksRequest, joint: Joint) -> Declared:
    """What is declared, on the class and in the call; `DeclarationError` where it is not there."""
    given, name = asked.placements, asked.target.name
    if given is None or isinstance(given, Mapping):
        given = {**asked.target.intent.placements, **(given or {})} or None
    declared = declared_of(given, joint.names, name)
    values = [joint.argument(0, position).value for position in joint.positions]
    inputs = {joint.names[p]: v for p, v in zip(joint.positions, values, strict=True)}
    require_there(
        declared,
        {key: value.dim() for key, value in inputs.items() if value is not None},
        [0 if value is None else value.dim() for value in joint.plain[0].value],
        name,
    )
    return declared


def _tried(asked: RanksRequest, joint: Joint, results: list[Finding | Skip]) -> list[str]:
    """Try every rule; what to note of them."""
    told: list[BaseException] = []
    notes: list[str] = []
    for number, registered in enumerate(asked.rules):
        if asked.progress is not None:
            asked.progress(registered.rule.name, number, len(asked.rules))
        if sum(isinstance(error, RanksLost) for error in told) > LOSSES:
            notes.append(f"{len(asked.rules) - number} rules were not tried: ranks were lost")
            break
        try:
            for result in registered.check(joint):
                results.append(_whole(result, registered))
        except (RanksLost, Failed) as error:
            if any(error is one for one in told):
                results.append(Skip.refused(registered.rule, "the ranks failed before"))
                continue
            told.append(error)
            found = _of_error(joint, error, registered)
            if isinstance(found, Finding) and any(r.rule.code == found.rule.code for r in results):
                found = Skip.refused(registered.rule, "the ranks were lost here as well")
            results.append(_completed(asked, found) if isinstance(found, Finding) else found)
        except (existing.NoGroupError, Unsettled) as error:
            results.append(Skip.refused(registered.rule, str(error)))
        except Exception as error:
            reason = "the check itself failed"
            results.append(Skip.refused(registered.rule, reason, describe(error)))
    return notes


def _of_error(joint: Joint, error: RanksLost | Failed, registered: Registered) -> Finding | Skip:
    doing = f"while `{registered.rule.name}` was tried"
    if isinstance(error, RanksLost):
        if any(standing.is_ours for standing in error.standings):
            return Skip.refused(registered.rule, f"the check itself failed: {error}")
        return of_lost(joint, error, doing)
    if error.first.phase == CHECK:
        return Skip.refused(registered.rule, "the check itself failed", error.raised)
    if error.first.phase == "backward":
        return of_failed(joint, error, doing)
    return Skip.refused(registered.rule, "the function raised", error.raised)


def _consistent(joint: Joint) -> list[str]:
    """With which placements the Function is consistent."""
    try:
        found = consistent(joint)
        sent = any(joint.steps)
    except Exception:  # told by the rules
        return []
    notes = [] if sent or joint.is_global else [NOTHING_SENT]
    notes += [] if joint.is_global else _hints(joint, found)
    if found and joint.declared.is_empty:
        words = "; or ".join(f"({assignment})" for assignment in found[:4])
        more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
        notes += _conventions(joint, found)
        notes.append(f"consistent with placements {words}{more}")
    elif found:
        notes.append(f"right under the placements ({found[0]})")
    return notes


MEANT = {
    Convention.PASSES: "one for all ranks, as Megatron's layers do: what follows must be the same "
    "on all of them",
    Convention.SUMS: "each rank's own, as `torch.distributed.nn` does: what follows may differ "
    "between them",
}
OTHER = {Convention.PASSES: "shard", Convention.SUMS: "replicate"}


def _conventions(joint: Joint, found: Sequence[Assignment]) -> list[str]:
    """What backward takes the cotangents of outputs for that all ranks hold."""
    return [
        f"`{name}` is one value, and backward takes its cotangent as {MEANT[convention]}; declare "
        f"placements={{{name!r}: {OTHER[convention]!r}}} if that is not meant"
        for number, convention in conventions(joint, found)
        for name in [output_name(number, joint.outputs)]
    ]


def _hints(joint: Joint, found: Sequence[Assignment]) -> list[str]:
    """Inputs that may be one value, and whose gradients are not those of one."""
    names = [joint.names[p] for p in joint.meant if joint.is_same(p)]
    open_ones = [name for name in names if joint.declared.of_input(name) is None]
    return [
        f"`{name}` was given the same on all ranks, and its gradient is not that of one value: "
        f"declare placements={{{name!r}: 'replicate'}} if it is one"
        for name in open_ones
        if found and not any(assignment.of(name).is_replicated for assignment in found)
    ]


def _told_apart(placed: Sequence[Sequence[str]]) -> list[str]:
    """What to note where examples are right under placements that are not the same."""
    told = [(number, own[-1]) for number, own in enumerate(placed, 1) if own]
    if len(told) < len(placed):
        return []
    return [f"example {number}: {note}" for number, note in told]


def _whole(result: Finding | Skip, registered: Registered) -> Finding | Skip:
    """The result with the whole rule in it."""
    known = {one.rule.code: one.rule for one in rank_rules()}
    return replace(result, rule=known.get(result.rule.code, registered.rule))


def _completed(asked: RanksRequest, finding: Finding) -> Finding:
    known = {one.rule.code: one.rule for one in rank_rules()}
    place = asked.target.place("backward", "vjp", "forward")
    return replace(finding, rule=known[finding.rule.code]).of(asked.target.name, place)
