"""The patient may crash: rules are tried in a worker process, and the run goes on without it.

The worker is a fork of this process, so that any class can be checked, also one defined in a
function or in a notebook. When it dies, hangs, exits or runs out of memory, the rule it was at gets
a finding, and a new worker goes on with the next rule. Where a fork is not possible (another
system, or a GPU already in use by this process), the rules run here, and the report says so.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from pullback.check.work import SECONDS, Job, Message, work

# A rule is asked to end after `work.SECONDS`; after so many times that it is ended.
PATIENCE = 3.0
GRACE = 10.0
MEMORY = 6 << 30


class Died(Exception):
    """The worker ended before its work; `how` says in words what became of it."""

    def __init__(self, how: str, *, is_hang: bool = False) -> None:
        super().__init__(how)
        self.how = how
        self.is_hang = is_hang


class CannotForkError(Exception):
    """A forked worker cannot run autograd here; the message says why."""


def can_fork() -> str:
    """Why no worker can be forked here; empty where one can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork a process"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "this process uses a GPU, which a forked worker cannot"
    return ""


def messages(job: Job, first: int) -> Iterator[Message]:
    """What one worker says, from rule number `first` on; raises `Died` where it ends early."""
    context: Any = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    process = context.Process(target=_worker, args=(job, theirs, first), daemon=False)
    process.start()
    theirs.close()
    limit = SECONDS[job.profile] * PATIENCE + GRACE
    try:
        while True:
            if not ours.poll(limit):
                raise Died(f"it did not end within {limit:.0f} s", is_hang=True)
            try:
                message = ours.recv()
            except EOFError:
                process.join(5)
                raise Died(_end_of(process.exitcode)) from None
            if message.kind == "refused":
                raise CannotForkError(message.reason)
            yield message
            if message.kind == "end":
                return
    finally:
        _stop(process)
        ours.close()


def _worker(job: Job, pipe: Connection, first: int) -> None:
    """The life of a worker: it ends with `os._exit`, so that nothing of the parent's is run."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _limit_memory()
        gc.freeze()  # what the parent holds is not looked at by the collections of the rules
        refusal = refusal_here()
        if refusal:
            pipe.send(Message("refused", reason=refusal))
        else:
            work(job, pipe.send, first)
        pipe.close()
    except MemoryError:
        os._exit(77)
    except SystemExit as leaving:
        os._exit(78 if leaving.code in (0, None) else 79)
    except BaseException:
        os._exit(80)
    os._exit(0)


def refusal_here() -> str:
    """Why autograd does not run in this fork: its threads stayed behind; else empty."""
    try:
        with torch.enable_grad():
            one = torch.ones((), requires_grad=True)
            torch.autograd.grad(one * 2, one)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def _limit_memory() -> None:
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return


def _end_of(code: int | None) -> str:
    if code is None:
        return "it closed its connection"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"it was ended by {name}"
    words = {77: "it ran out of memory", 78: "it called sys.exit", 79: "it called sys.exit"}
    return words.get(code, f"it exited with code {code}")


def _stop(process: Any) -> None:
    if process.is_alive():
        process.terminate()
        process.join(0.2)
    if process.is_alive():
        process.kill()
    process.join(5)
    time.sleep(0)
