"""A task in a process of its own, which it may end: a fork of this process, watched.

As a fork it can be any task, also on a class that is defined in a function or in a notebook. Its
process may die, hang, exit or run out of memory: what became of it is then said in words.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from pullback.check.processes.confine import end_below
from pullback.check.processes.endings import GARBLED, Died, LastMessage, end_of, leave
from pullback.check.processes.fork import Fork
from pullback.check.processes.system import reserved_of
from pullback.check.processes.watch import Watch
from pullback.check.processes.wire import GarbledError, Inbox, Outbox, PrintedOutput
from pullback.errors import first_line

MEMORY = 6 << 30  # bytes that a worker may take beyond those of its parent


class CannotForkError(Exception):
    """A forked worker cannot run autograd here; the message says why."""


def why_no_fork() -> str:
    """Why no worker can be forked here; empty where one can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork a process"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "this process uses a GPU, which a forked worker cannot"
    return ""


class Speaker(Protocol):
    """A worker that sends messages."""

    inbox: Inbox

    def end(self) -> int | None:
        """Its exit code, once it has said all; None where it does not end."""


def next_message(worker: Speaker, watch: Watch) -> Any:
    """The next message of a worker; raises `Died` where there is none, or it is its last."""
    watch.wait(worker.inbox)
    try:
        message = worker.inbox.recv()
    except EOFError:
        raise Died(watch.with_memory(f"it {end_of(worker.end())}")) from None
    except GarbledError:
        raise Died(GARBLED) from None
    if isinstance(message, LastMessage):
        raise Died(message.reason, is_ours=message.is_ours)
    return message


def answer_of(task: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a task gives in a worker of its own, which it may end; raises `Died` where it does.

    `seconds` is how much work it may take, and how long it may do nothing. What it prints is not
    shown: the answer is all that comes back.
    """
    try:
        fork = Fork(lambda outbox: _answer(task, outbox), PrintedOutput(0))
    except OSError as error:
        raise Died(f"no process could be started: {error.strerror or error}") from None
    try:
        return next_message(fork, Watch(fork.pid, seconds, seconds))
    finally:
        fork.stop()


def _answer(task: Callable[[], Any], outbox: Outbox) -> None:
    torch.set_num_threads(1)  # those of the parent are not in a fork
    try:
        outbox.send(task())
    except BaseException as error:
        leave(error, outbox.send)
    end_below(os.getpid())
    os._exit(0)


def why_no_autograd() -> str:
    """Why autograd does not run in this fork: its threads stayed behind; else empty."""
    try:
        with torch.enable_grad():
            one = torch.ones((), requires_grad=True)
            torch.autograd.grad(one * 2, one)
    except RuntimeError as error:
        return first_line(error)
    return ""


def limit_memory() -> None:
    """Let this process take some gigabytes more than it has, and no more."""
    reserved = reserved_of(os.getpid())
    try:
        import resource  # of Unix alone

        if reserved:
            resource.setrlimit(resource.RLIMIT_AS, (reserved + MEMORY, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return
