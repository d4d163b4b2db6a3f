"""After a crash: which call it was, found by trying the rule once more and writing down each call.

A worker that dies says nothing any more. So the rule is tried again in another one, which names
each call of the function before it is made: the last one that was named is the one that ended it.
Its program is then run alone, and is a repro if that ends the process as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.job import Job
from pullback.check.processes.endings import Died
from pullback.check.processes.fork import Fork
from pullback.check.processes.watch import Watch
from pullback.check.processes.wire import GarbledError, Outbox, PrintedOutput
from pullback.check.repro.writing import with_repro
from pullback.check.subject.subject import Subject
from pullback.check.target.spelling import UnspeakableError, imported, spelled
from pullback.check.target.target import Target
from pullback.check.work import try_rule, work
from pullback.judge.example import can_differ, describe_value

SECONDS = 5.0  # of work that the second death may take, and of rest


@dataclass(frozen=True, slots=True)
class CrashCause:
    """The call that ended a process, in words and as a program; empty where it is not known."""

    inputs: str = ""
    repro: str = ""
    kernel: str = ""


def cause_of(job: Job, rule: int) -> CrashCause:
    """The call by which rule number `rule` is ended, or the examples where it is negative."""
    message = _last_message(lambda outbox: _try_again(job, rule, outbox))
    if message is None:
        return CrashCause()
    inputs, repro = message
    if repro and _last_message(lambda outbox: _alone(repro, job.target, outbox)) is None:
        repro = ""
    return CrashCause(inputs, repro)


def _last_message(task: Callable[[Outbox], None]) -> Any:
    """What a process said last before it died; None where it lived, or is silent for too long."""
    try:
        # What the function prints was shown at the first time.
        fork = Fork(lambda outbox: _task(task, outbox), PrintedOutput(0))
    except OSError:
        return None
    last = None
    watch = Watch(fork.pid, SECONDS, SECONDS)
    try:
        while True:
            watch.wait(fork.inbox)
            try:
                message = fork.inbox.recv()
            except EOFError:
                return last
            if message == "done":
                return None
            last = message
    except (Died, GarbledError):
        return None
    finally:
        fork.stop()


def _task(task: Callable[[Outbox], None], outbox: Outbox) -> None:
    torch.set_num_threads(1)
    with suppress(Exception):
        task(outbox)
    outbox.send("done")
    os._exit(0)


def _try_again(job: Job, rule: int, outbox: Outbox) -> None:
    names = job.names

    def call(*args: Any) -> Any:
        outbox.send((_words(names, args), _program(job.target, names, args)))
        return job.target.call(*args)

    narrated = replace(job, target=replace(job.target, call=call))
    if rule < 0:
        work(replace(narrated, rules=()), lambda message: None)
        return
    subject = Subject(narrated.target, job.examples, profile=job.profile, show=with_repro)
    try_rule(job.rules[rule], subject)


def _alone(program: str, target: Target, outbox: Outbox) -> None:
    outbox.send("begun")
    head = imported(target)[1].removesuffix(".apply")
    space: dict[str, Any] = {"torch": torch}
    if not head.startswith("torch."):
        space[head] = target.function if target.is_function else target.thing
    exec(program.partition("\n\n")[2], space)


def _words(names: tuple[str, ...], args: tuple[Any, ...]) -> str:
    return ", ".join(f"{n}: {describe_value(arg)}" for n, arg in zip(names, args, strict=False))


def _code(arg: Any) -> str:
    """The code of an argument; ones where it is large, since a crash seldom looks at numbers."""
    try:
        return spelled(arg)
    except UnspeakableError:
        if type(arg) is not Tensor or not arg.is_contiguous() or not can_differ(arg):
            raise
        return f"torch.ones({tuple(arg.shape)}, dtype={arg.dtype})"


def _program(target: Target, names: tuple[str, ...], args: tuple[Any, ...]) -> str:
    """A program that makes one call, and its backward."""
    head, call = imported(target)
    try:
        codes = [_code(arg) for arg in args]
    except UnspeakableError:
        return ""
    needs = [isinstance(a, Tensor) and can_differ(a) and a.requires_grad for a in args]
    plain = [name if name.isidentifier() else f"arg{i}" for i, name in enumerate(names)]
    rows = zip(plain, codes, needs, strict=False)
    lines = [f"{n} = {c}{'.requires_grad_()' if need else ''}" for n, c, need in rows]
    lines.append(f"out = {call}({', '.join(plain[: len(args)])})")
    if any(needs):
        lines.append("out = out if isinstance(out, torch.Tensor) else out[0]")
        lines.append("out.sum().backward()")
    return "\n".join(["import torch", *([head] if head else []), "", *lines])
