"""The rules in a worker that is forked: the target may crash, and the run goes on without it.

When the worker dies, hangs, exits or runs out of memory, the rule it was at gets a finding, and a
new worker goes on with the next rule. Where a fork is not possible (another system, or a GPU
already in use by this process), a worker is started afresh, see `fresh`.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

from pullback.check.job import Job, Message
from pullback.check.processes.confine import end_below
from pullback.check.processes.endings import leave
from pullback.check.processes.fork import Fork
from pullback.check.processes.isolate import (
    CannotForkError,
    limit_memory,
    next_message,
    why_no_autograd,
)
from pullback.check.processes.watch import Seen, Watch
from pullback.check.processes.wire import Outbox, PrintedOutput
from pullback.check.work import seconds_of_rule, work
from pullback.judge.progress import shared_progress
from pullback.run.lowering.lower import compile_privately

# A rule is asked to end after `work.seconds_of_rule`. It is ended after so many seconds of work
# more, and after the time of so many calls more; or when it has done nothing for so many seconds.
GRACE = 4.0
CALLS = 20
IDLE = {"quick": 5.0, "standard": 8.0, "deep": 60.0}
ELEMENT = 20e-9  # seconds that a call may take for each element of its arguments


def messages(job: Job, first: int, seconds: float = 0.0) -> Iterator[Message]:
    """What one worker says, from rule number `first` on; raises `Died` where it ends early.

    `seconds` is how long one call takes, where that is known already.
    """
    seen = Seen(shared_progress(), max(example.size for example in job.examples))
    try:
        fork = Fork(lambda outbox: _worker(job, outbox, first), PrintedOutput())
    except OSError as error:
        raise CannotForkError(f"no process could be started: {error.strerror or error}") from None
    try:
        while True:
            busy = work_of_rule(job, seconds)
            message = next_message(fork, Watch(fork.pid, busy, IDLE[job.profile], seen))
            if message.kind == "refused":
                raise CannotForkError(message.reason)
            if message.kind == "accepted":
                seconds = message.seconds
            yield message
            if message.kind in ("end", "unfit"):
                return
    finally:
        fork.stop()


def work_of_rule(job: Job, call: float) -> float:
    """The seconds of work after which a rule that was asked to end is ended.

    `call` is how long one call takes, or 0 until one was timed.
    """
    call = call or ELEMENT * max(example.size for example in job.examples)
    return seconds_of_rule(job.profile, 0.0, call) + GRACE + CALLS * call


def _worker(job: Job, outbox: Outbox, first: int) -> None:
    """The life of a worker: it ends with `os._exit`, so that nothing of the parent's is run."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        limit_memory()
        gc.freeze()  # what the parent holds is not looked at by the collections of the rules
        refusal = why_no_autograd()
        if refusal:
            outbox.send(Message("refused", reason=refusal))
        else:
            prepare_compiler(job)
            work(job, outbox.send, first)
    except BaseException as error:
        leave(error, outbox.send)
    end_below(os.getpid())
    os._exit(0)


def prepare_compiler(job: Job) -> None:
    """Let rules that load what Inductor compiles do so from folders of this user's own."""
    if job.profile == "deep" and any(one.rule.group == "compile" for one in job.rules):
        compile_privately()
