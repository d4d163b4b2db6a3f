"""The rules tried one after the other on one subject: what a worker does."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.autograd.function import BackwardCFunction

from pullback.check.findings.finding import Finding, Skip
from pullback.check.inputs.relations import words_of
from pullback.check.job import Job, Message, Tell
from pullback.check.kernels.single import NOTE as SINGLE
from pullback.check.kernels.single import is_single, without_double
from pullback.check.kernels.tuning import worked
from pullback.check.processes.endings import OURS, TORCH, raising_file
from pullback.check.repro.writing import with_repro
from pullback.check.rules import Registered
from pullback.check.subject.subject import Subject
from pullback.check.subject.surrogates import surrogates_of
from pullback.check.target.surrogate import Surrogate, intent_with
from pullback.check.target.target import Target
from pullback.check.watching.nodes import nodes_from
from pullback.function.isolation import drawing_from
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, describe

OPS = str(Path(TORCH, "_ops.py"))  # where PyTorch calls ops

# Seconds of work that one rule may take before it is asked to end, by profile, and how many times
# as long it may take by the clock, for functions that wait: a busy machine makes no difference.
SECONDS = {"quick": 0.5, "standard": 4.0, "deep": 60.0}
CROWDED = 10
NO_GROUP = "process group has not been initialized"  # of PyTorch, to a collective without ranks

# Seconds of work that all rules may take together, by profile. A rule gets a share of what is left,
# so that those which try the most variants do not take the time of the others; and always a little,
# by the clock or in calls of the function, so that each tries its first variants.
TOGETHER = {"quick": 2.0, "standard": 3.5, "deep": float("inf")}
SHARE = 0.25
LEAST = 0.1
CALLS = 4

# Every rule starts from the same random numbers, so that a function that draws in backward gets the
# same findings each time. Not from those of forward (`isolation.SEED`): a mask that backward draws
# anew would be forward's own.
SEED = 20_260_203


def work(job: Job, tell: Tell, first: int = 0) -> None:
    """Try the rules from number `first` on, telling of each as it begins and ends."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads of the parent are not in a fork, and waiting would hang
    try:
        subject = Subject(job.target, job.examples, profile=job.profile, show=with_repro)
        call = 0.0
        if first == 0:
            with drawing_from(SEED):
                fitness = _fitness(subject)
            tell(fitness)
            if fitness.kind == "unfit":
                return
            call = fitness.seconds
        start = worked()
        for number in range(first, len(job.rules)):
            tell(Message("begin", number))
            if number == first:  # a call that does not end is one of this rule
                with drawing_from(SEED):
                    subject = _in_own_precision(subject, tell)
            seconds = seconds_of_rule(job.profile, worked() - start, call)
            subject.deadline = worked() + seconds
            subject.latest = time.monotonic() + CROWDED * seconds
            with drawing_from(SEED):
                _ = subject.first_gradients  # before a rule has called anything
            if number == first:
                kept = tuple(words_of(one, subject.names) for one in subject.relations)
                tell(Message("intent", surrogates=_taken_as_meant(subject, job), relations=kept))
            tell(Message("found", number, tuple(try_rule(job.rules[number], subject))))
        tell(Message("end", tried=dict(subject.tried)))
    finally:
        torch.set_num_threads(threads)


def seconds_of_rule(profile: str, spent: float, call: float) -> float:
    """What the next rule may take, after what the others have, of a function with such calls."""
    left = TOGETHER[profile] - spent
    return min(SECONDS[profile], max(LEAST, CALLS * call, SHARE * left))


def _in_own_precision(subject: Subject, tell: Tell) -> Subject:
    """The subject; where its kernels know no float64, as one that refuses that."""
    if not is_single(subject):
        return subject
    tell(Message("noted", reason=SINGLE))
    target = without_double(subject.target)
    return Subject(target, subject.examples, profile=subject.profile, show=subject.show)


def _taken_as_meant(subject: Subject, job: Job) -> tuple[Surrogate, ...]:
    """The gradients that are surrogates by their shape: no rule compares them with forward's."""
    with warnings.catch_warnings(), drawing_from(SEED):
        warnings.simplefilter("ignore")
        found = surrogates_of(subject, job.options_of)
    if found:
        subject.accept(intent_with(subject.target.intent, found))
    return found


def _fitness(subject: Subject) -> Message:
    """Whether forward takes each of the examples, if only without grad."""
    start = worked()
    for example in subject.examples:
        for needs in (None, frozenset[int]()):
            try:
                called = subject.run(example, needs=needs)
                subject.first_run = subject.first_run or called
                break
            except ForwardRefusedError as refusal:
                raised = refusal.raised
        else:
            where = example.words(subject.names)
            is_alone = NO_GROUP in raised.text
            return Message("unfit", reason=str(raised), where=where, needs_ranks=is_alone)
    seconds = (worked() - start) / len(subject.examples)
    return Message("accepted", seconds=seconds, inside=_inside(subject))


def _inside(subject: Subject) -> tuple[str, ...]:
    """The names of the Functions that a program has called at the first example."""
    if subject.target.is_function or subject.target.is_op or subject.first_run is None:
        return ()
    nodes = nodes_from(output.grad_fn for output in subject.first_run.outputs)
    own = (type(node).__name__ for node in nodes if isinstance(node, BackwardCFunction))
    return tuple(sorted({name.removesuffix("Backward") for name in own}))


def try_rule(registered: Registered, subject: Subject) -> Sequence[Finding | Skip]:
    """What one rule finds; an error on our side is a skip that says so, never a finding."""
    rule = registered.rule
    results: list[Finding | Skip] = []
    try:
        with warnings.catch_warnings(), drawing_from(SEED):
            warnings.simplefilter("ignore")
            for result in registered.check(subject):
                results.append(_completed(result, registered, subject))
    except (ForwardRefusedError, BackwardFailedError) as error:
        results.append(Skip.refused(rule, "the function raised", error.raised))
    except Exception as error:
        is_theirs = _is_of_function(error, registered, subject.target)
        who = "the function raised" if is_theirs else "the check itself failed"
        results.append(Skip.refused(rule, who, describe(error)))
    return results


def _is_of_function(error: BaseException, registered: Registered, target: Target) -> bool:
    """Whether an error comes from the user's code: what ran last, before PyTorch, is theirs."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if target.is_op and files and files[-1] == OPS:
        return True
    last = raising_file(error)
    own = getattr(getattr(registered.check, "__code__", None), "co_filename", OURS)
    return last != own and not last.startswith((OURS, "<"))


def _completed(result: Finding | Skip, registered: Registered, subject: Subject) -> Finding | Skip:
    """The result with the whole rule in it, and the subject's name and place."""
    if isinstance(result, Skip):
        return replace(result, rule=registered.rule)
    place = subject.target.place("backward", "vjp", "forward")
    return replace(result, rule=registered.rule).of(subject.target.name, place)
