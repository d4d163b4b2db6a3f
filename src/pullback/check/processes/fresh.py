"""A worker that is started afresh, for what a fork cannot serve.

A fork of a process that uses a GPU cannot use it, and one of a process with threads may freeze. So
the job is sent to a new process by value (cloudpickle): classes of a notebook or of a function as
well, and Triton kernels with their source. It serves one job after the other, since to start takes
seconds, and is replaced when it dies or has lost its GPU. It ends when whoever started it does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import MappingProxyType

import torch

from pullback.check.job import Job, Message
from pullback.check.kernels.launches import BLOCKING, narrated
from pullback.check.kernels.sending import sent_by_value
from pullback.check.kernels.tuning import keep_tuned, watch_tuning
from pullback.check.processes.confine import Ties, end_group, lead, let_end, tie
from pullback.check.processes.crash_diagnosis import CrashCause
from pullback.check.processes.endings import Died, LastMessage, leave
from pullback.check.processes.forked import IDLE, prepare_compiler, work_of_rule
from pullback.check.processes.isolate import limit_memory, next_message
from pullback.check.processes.start import python_calling, started
from pullback.check.processes.system import children_of, has_ended
from pullback.check.processes.warm import warm_up
from pullback.check.processes.watch import Seen, Watch
from pullback.check.processes.wire import Inbox, Outbox, PrintedOutput
from pullback.check.work import work
from pullback.errors import first_line, type_and_line
from pullback.judge import progress
from pullback.judge.example import tensors_in
from pullback.judge.progress import Progress

AGAIN = 60.0  # seconds in which a lost GPU must be lost once more, to be said where
START = 120.0  # seconds for imports, and on a GPU for the first call, which tunes kernels


class CannotSendError(Exception):
    """The job cannot be sent to another process; the message says why."""


@dataclass(eq=False)
class Worker:
    """A process that waits for jobs of the process that started it, and of no fork of that."""

    process: subprocess.Popen[bytes]
    jobs: Connection
    ties: Ties
    inbox: Inbox
    progress: Progress
    owner: int = field(default_factory=os.getpid)

    def stop(self) -> None:
        """End it, whatever it does, and all that it has started."""
        if self.owner != os.getpid():
            return
        end_group(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.inbox.drain()
        self.jobs.close()
        self.ties.close(self.ties.ours)
        self.progress.remove()

    def end(self) -> int | None:
        """Its exit code, once it has said all; None where it does not end."""
        let_end(self.process.pid)
        if has_ended(self.process.pid):
            end_group(self.process.pid)
        return self.process.poll()


_idle: list[Worker] = []


def packed(job: Job) -> bytes:
    """The job, to be sent; raises `CannotSendError`."""
    try:
        return sent_by_value(job)
    except Exception as error:
        raise CannotSendError(type_and_line(error)) from None


def fresh_messages(
    job: Job, first: int, seconds: float = 0.0, *, is_narrated: bool = False
) -> Iterator[Message]:
    """As `forked.messages`, by a worker that was started afresh.

    With `is_narrated` it is one that waits for each launch of a kernel to end, and names each call
    and launch before it is made; what the function prints is not shown then.
    """
    sent = packed(job)
    worker = _started(BLOCKING) if is_narrated else _waiting() or _started()
    worker.inbox.output = PrintedOutput(0) if is_narrated else PrintedOutput()
    seen = Seen(worker.progress, max(example.size for example in job.examples))
    is_done, is_tuning = False, is_on_gpu(job)
    try:
        worker.jobs.send_bytes(pickle.dumps((sys.path, first, is_narrated)))
        worker.jobs.send_bytes(sent)
        limit = START
        while True:
            idle = max(limit, IDLE[job.profile])
            watch = Watch(worker.process.pid, limit or work_of_rule(job, seconds), idle, seen)
            message: Message = next_message(worker, watch)
            if message.kind == "ready":
                limit = START if is_tuning else 0.0
                continue
            if message.kind == "accepted":
                seconds = message.seconds
            is_first = message.kind == "begin" and message.rule == first
            limit = START if is_tuning and is_first else 0.0
            yield message
            if message.kind in ("end", "unfit"):
                is_done = message.kind == "end"
                return
    finally:
        if is_done and not is_narrated and not children_of(worker.process.pid):
            worker.inbox.drain()
            _idle.append(worker)
        else:
            worker.stop()


def cause_of_loss(job: Job, rule: int) -> CrashCause:
    """The call, and the kernel, by which a GPU is lost: the step is taken once more, narrated."""
    if not is_on_gpu(job):
        return CrashCause()
    again = replace(job, rules=job.rules[rule : rule + 1] if rule >= 0 else ())
    found, latest = CrashCause(), time.monotonic() + AGAIN
    try:
        for message in fresh_messages(again, 0, is_narrated=True):
            if message.kind == "calling":
                found = CrashCause(message.where)
            elif message.kind == "launching":
                found = replace(found, kernel=message.where)
            if message.kind in ("end", "unfit") or time.monotonic() > latest:
                return CrashCause()  # it was not lost this time
    except Died:
        return found
    except CannotSendError:
        pass
    return CrashCause()


def _waiting() -> Worker | None:
    """A worker that is alive and has nothing to do."""
    while _idle:
        worker = _idle.pop()
        if worker.owner == os.getpid() and worker.process.poll() is None:
            return worker
        worker.stop()
    return None


def _started(more: Mapping[str, str] = MappingProxyType({})) -> Worker:
    """A new worker; raises `CannotSendError` where there can be none."""
    with contextlib.ExitStack() as undo:  # where it cannot be started
        try:
            ties = tie()
            undo.callback(ties.close, (*ties.ours, *ties.theirs))
            ours, theirs = Pipe()
            undo.callback(ours.close)
            undo.callback(theirs.close)
            file, path = tempfile.mkstemp(prefix="pullback-worker-")
            undo.callback(os.unlink, path)
            os.close(file)
            seen = Progress(Path(path))
            life, said, printed = ties.theirs
            ends = theirs.fileno(), life, said
            command = python_calling(f"{__name__}.serve", *ends, ties.token, path)
            process = started(command, ends, printed, {**os.environ, **more})
        except OSError as error:
            why = error.strerror or str(error)
            raise CannotSendError(f"no process could be started: {why}") from None
        undo.pop_all()
    theirs.close()
    return Worker(process, ours, ties, ties.inbox(process.pid, PrintedOutput()), seen)


@atexit.register
def _stop_idle() -> None:
    while _idle:
        _idle.pop().stop()


# ---- in the worker ----


def serve(fd: int, life: int, said: int, token: bytes, path: str) -> None:
    """Do one job after the other, until nobody sends any more."""
    lead(life)
    keep_tuned()
    jobs, outbox = Connection(fd), Outbox(said, token)
    for end in (fd, life, said):
        os.set_inheritable(end, False)
    progress.shared_progress(Path(path))
    Path(path).unlink(missing_ok=True)  # who has it open goes on reading it
    while True:
        try:
            sys.path[:], first, is_narrated = pickle.loads(jobs.recv_bytes())
            sent = jobs.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        try:
            job = pickle.loads(sent)
            if is_narrated:
                job = narrated(job, outbox.send)
            if is_on_gpu(job):
                watch_tuning()
            else:
                limit_memory()
            warm_up(job.rules, job.profile)
            prepare_compiler(job)
            outbox.send(Message("ready"))
            work(job, lambda message: _tell(outbox, message), first)
        except BaseException as error:
            leave(error, lambda message: _tell(outbox, message))


def _tell(outbox: Outbox, message: Message | LastMessage) -> None:
    """Send a message; where the GPU is lost, what the last rule says means nothing.

    Nor does it matter then whose code the error came out of.
    """
    is_end = isinstance(message, LastMessage) or message.kind in ("found", "accepted", "unfit")
    if is_end and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = f"the GPU was lost to it: {first_line(error)}"
            outbox.send(LastMessage(reason))
            os._exit(81)
    outbox.send(message)


def is_on_gpu(job: Job) -> bool:
    """Whether an argument is on a GPU."""
    return any(tensor.is_cuda for e in job.examples for tensor in tensors_in(e.args))
