"""A process that is forked for a task, and ends with this one."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

from pullback.check.processes.confine import (
    end_group,
    end_with,
    flush_output,
    lead,
    let_end,
    print_into,
    tie,
)
from pullback.check.processes.system import has_ended
from pullback.check.processes.wire import Outbox, PrintedOutput


class Fork:
    """A process that was forked for a task, which it does with a place to put messages into.

    What it prints is taken by `output`, and it leads a group of its own. Without one it prints
    where this process does, and stays in its group, as a part of the program: Ctrl-C reaches it.
    Raises `OSError` where there can be none.
    """

    def __init__(self, task: Callable[[Outbox], Any], output: PrintedOutput | None) -> None:
        self._is_apart = output is not None
        self._ties = tie()
        flush_output()
        try:
            self.pid = _forked(lambda: self._live(task))
        except OSError:
            self._ties.close((*self._ties.ours, *self._ties.theirs))
            raise
        self.inbox = self._ties.inbox(self.pid, output or PrintedOutput(0))
        self._code: int | None = None
        self._is_stopped = False

    def _live(self, task: Callable[[Outbox], Any]) -> None:
        ties = self._ties
        ties.close(ties.ours)
        if self._is_apart:
            lead(ties.life[0])
            print_into(ties.printed[1])
        else:
            end_with(ties.life[0], os.getpid())
            os.close(ties.printed[1])
        task(Outbox(ties.said[1], ties.token))

    def end(self) -> int | None:
        """Its exit code, once it has said all; None where it does not end."""
        let_end(self.pid)
        is_over = has_ended(self.pid) or self._is_reaped(os.WNOHANG)
        self.stop()
        return self._code if is_over else None

    def stop(self) -> None:
        """End it, and all that it has started; what it has printed until now is shown."""
        if self._is_stopped:
            return
        self._is_stopped = True
        end_group(self.pid)
        if self._code is None and not has_ended(self.pid):
            os.kill(self.pid, signal.SIGKILL)  # it may not lead a group yet
        if self._code is None:
            self._is_reaped()
        self.inbox.drain()
        self._ties.close(self._ties.ours)

    def _is_reaped(self, options: int = 0) -> bool:
        """Whether it has ended, and was asked for its exit code."""
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # a handler of the caller's was faster
            pid, status = self.pid, 0
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return bool(pid)


def _forked(live: Callable[[], Any]) -> int:
    """The number of a fork, which does nothing but live."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: see `why_no_autograd`
        pid = os.fork()
    if pid:
        return pid
    try:
        live()
    finally:
        os._exit(70)
