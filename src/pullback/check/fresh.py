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
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from pullback.check.isolate import CALLS, GRACE, IDLE, Died, Seen, Watch, end_of, limit_memory
from pullback.check.warm import warm_up
from pullback.check.work import SECONDS, Job, Message, work
from pullback.judge import progress
from pullback.judge.example import tensors_in
from pullback.judge.progress import Progress

START = 120.0  # seconds until the first call is through: imports, and the tuning of kernels

_MAIN = "from pullback.check.fresh import serve; serve({fd}, {path!r})"


class CannotSendError(Exception):
    """The job cannot be sent to another process; the message says why."""


@dataclass(eq=False)
class Worker:
    """A process that waits for jobs."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    progress: Progress

    def stop(self) -> None:
        """End it, whatever it does."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()
        self.progress.remove()


_idle: list[Worker] = []


def packed(job: Job) -> bytes:
    """The job, to be sent; raises `CannotSendError`."""
    try:
        sent: bytes = cloudpickle.dumps(job)
        return sent
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise CannotSendError(f"{type(error).__name__}: {lines[0]}") from None


def messages(job: Job, first: int, seconds: float = 0.0) -> Iterator[Message]:
    """As `isolate.messages`, by a worker that was started afresh."""
    sent = packed(job)
    worker = _idle.pop() if _idle else _started()
    seen = Seen(worker.progress, max(example.size for example in job.examples))
    is_done = False
    try:
        worker.pipe.send_bytes(pickle.dumps((sys.path, first)))
        worker.pipe.send_bytes(sent)
        limit = START
        while True:
            idle = max(limit, IDLE[job.profile])
            Watch(worker.process.pid, limit or _busy(job, seconds), idle, seen).wait(worker.pipe)
            message = _received(worker)
            if message.kind == "lost":
                raise Died(message.reason)
            if message.kind == "accepted":
                seconds = message.seconds
            limit = START if message.kind == "begin" and message.rule == first else 0.0
            yield message
            if message.kind in ("end", "unfit"):
                is_done = message.kind == "end"
                return
    finally:
        if is_done:
            _idle.append(worker)
        else:
            worker.stop()


def _busy(job: Job, seconds: float) -> float:
    return SECONDS[job.profile] + GRACE + CALLS * seconds


def _received(worker: Worker) -> Message:
    try:
        message: Message = worker.pipe.recv()
    except (EOFError, OSError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(5)
        raise Died(end_of(worker.process.returncode)) from None
    return message


def _started() -> Worker:
    ours, theirs = Pipe()
    file, path = tempfile.mkstemp(prefix="pullback-worker-")
    os.close(file)
    seen = Progress(Path(path))
    command = [sys.executable, "-c", _MAIN.format(fd=theirs.fileno(), path=path)]
    source = str(Path(__file__).resolve().parents[2])
    found = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": found},
    )
    theirs.close()
    return Worker(process, ours, seen)


@atexit.register
def _stop_idle() -> None:
    while _idle:
        _idle.pop().stop()


# ---- in the worker ----


def serve(fd: int, path: str) -> None:
    """Do one job after the other, until nobody sends any more."""
    pipe: Any = Connection(fd)
    progress.shared_progress(Path(path))
    while True:
        try:
            sys.path[:], first = pickle.loads(pipe.recv_bytes())
            sent = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        try:
            job = pickle.loads(sent)
            if not _is_on_gpu(job):
                limit_memory()
            warm_up(job.rules, job.profile)
            work(job, lambda message: _tell(pipe, message), first)
        except MemoryError:
            os._exit(77)
        except SystemExit as leaving:
            os._exit(78 if leaving.code in (0, None) else 79)
        except BaseException:
            os._exit(80)


def _tell(pipe: Any, message: Message) -> None:
    """Send a message; where the GPU is lost, what the last rule says means nothing."""
    if message.kind in ("found", "accepted", "unfit") and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = f"the GPU was lost to it: {str(error).splitlines()[0]}"
            pipe.send(Message("lost", message.rule, reason=reason))
            os._exit(81)
    pipe.send(message)


def _is_on_gpu(job: Job) -> bool:
    return any(tensor.is_cuda for e in job.examples for tensor in tensors_in(e.args))
