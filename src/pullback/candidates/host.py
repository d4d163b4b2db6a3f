"""A warm process from which others are forked: each begins clean, and none takes seconds to start.

The host imports PyTorch once, and computes nothing: no threads, no GPU, so its forks can have both.
A fork serves one side (a candidate, or the referee) until it is stopped. What it says is JSON, of
which nothing is executed: it may come from code that nobody trusts. It ends with whoever asked for
it, and all that it has started ends with it (see `check.confine`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from pullback.check.processes.confine import end_group, lead, signal_group
from pullback.check.processes.start import python_calling, started
from pullback.errors import InternalError, type_and_line

WAKE = 0.5  # seconds, after which a process that does not answer is woken
START = 120.0  # seconds until a process answers for the first time
HIDDEN = "PULLBACK_JUDGE_SHOW"  # set it to see what candidates print


class LostError(Exception):
    """A process has ended, or does not answer; the message says which."""


class Peer:
    """A process that does what it is asked, one request after the other."""

    def __init__(
        self, pid: int, ends: tuple[Connection, Connection], *, is_trusted: bool = True
    ) -> None:
        self.pid = pid
        self._talk, self._life = ends
        self._is_stopped = False
        self._is_trusted = is_trusted

    def ask(self, verb: str, *args: Any, seconds: float = 60.0) -> Any:
        """What it answers; raises `LostError` where nothing comes."""
        self._signal(signal.SIGCONT)
        try:
            self._send(verb, args)
            return self._answer(seconds)
        finally:
            if not self._is_trusted:
                self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """Let it go on, or stop; one that is not trusted computes only while it is asked."""
        if not self._is_stopped:
            signal_group(self.pid, number)

    def _send(self, verb: str, args: tuple[Any, ...]) -> None:
        try:
            self._talk.send_bytes(pickle.dumps((verb, args)))
        except OSError:
            raise LostError("its process has ended") from None

    def _answer(self, seconds: float) -> Any:
        try:
            latest = time.monotonic() + seconds
            while not self._talk.poll(min(WAKE, max(latest - time.monotonic(), 0.0))):
                self._signal(signal.SIGCONT)  # whoever has stopped it
                if time.monotonic() < latest:
                    continue
                raise LostError(f"it did not end within {seconds:g} s")
            said = json.loads(self._talk.recv_bytes())
        except (EOFError, OSError):
            raise LostError("its process has ended") from None
        except ValueError:
            raise LostError("it wrote into the pipe of the judge") from None
        if not isinstance(said, dict) or "raised" in said:
            text = said.get("raised") if isinstance(said, dict) else "no answer"
            raise RefusedError(str(text))
        return said

    def stop(self) -> None:
        """End it, and all that it has started."""
        if self._is_stopped:
            return
        self._is_stopped = True
        end_group(self.pid)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # it may not lead a group yet
        for end in (self._talk, self._life):
            end.close()


class ReferenceLostError(Exception):
    """The process of the reference has ended, or does not answer; `asked` is what it was asked."""

    def __init__(self, asked: tuple[Any, ...], why: str) -> None:
        self.asked = asked
        super().__init__(why)


class RefusedError(Exception):
    """What was asked for raised an error in the other process; the message says which."""


class Host:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        self._talk, theirs = Pipe()
        shown = None if os.environ.get(HIDDEN) else subprocess.DEVNULL
        # To ask PyTorch whether there is a GPU must not start it: forks could not use it then.
        environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        end = theirs.fileno()
        self._process = started(python_calling(f"{__name__}.serve", end), [end], shown, environment)
        theirs.close()
        self.owner = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="pullback-judge-", dir=_fast_folder())
        self.folder = Path(self._folder.name)

    def is_alive(self) -> bool:
        """Whether it can be asked for a process."""
        return self.owner == os.getpid() and self._process.poll() is None

    def fork(self, side: str) -> Peer:
        """A new process that serves `side`: "candidate", "referee" or "checker"."""
        talk, their_talk = Pipe()
        life, their_life = Pipe()
        try:
            self._talk.send((side, sys.path, os.getcwd()))
            for end in (their_talk, their_life):
                send_handle(self._talk, end.fileno(), self._process.pid)
            if not self._talk.poll(START):
                raise InternalError("a process must be there to judge in", got="no answer")
            pid = int(self._talk.recv())
        except (EOFError, OSError):
            raise InternalError("a process must be there to judge in", got="it ended") from None
        finally:
            their_talk.close()
            their_life.close()
        return Peer(pid, (talk, life), is_trusted=side != "candidate")

    def stop(self) -> None:
        """End it."""
        if self.owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        self._talk.close()
        self._folder.cleanup()


def _fast_folder() -> str | None:
    """A folder in memory, where the system has one that can be written to."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


_hosts: list[Host] = []


def warm_host() -> Host:
    """The host of this process; it is started when it is first asked for."""
    while _hosts and not _hosts[-1].is_alive():
        _hosts.pop().stop()
    if not _hosts:
        _hosts.append(Host())
    return _hosts[-1]


@atexit.register
def _stop_hosts() -> None:
    while _hosts:
        _hosts.pop().stop()


# ---- in the host, and in its forks ----


def serve(fd: int) -> None:
    """Fork a process for each request, until nobody asks any more."""
    from pullback.candidates import candidate, checker, referee  # what forks then have already

    sides = {"candidate": candidate.serve, "referee": referee.serve, "checker": checker.serve}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    asked = Connection(fd)
    os.set_inheritable(fd, False)
    while True:
        try:
            side, path, folder = asked.recv()
            ends = [recv_handle(asked) for _ in range(2)]
        except (EOFError, OSError):
            os._exit(0)
        pid = os.fork()
        if pid:
            for end in ends:
                os.close(end)
            asked.send(pid)
            continue
        try:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            lead(ends[1])
            sys.path[:] = path
            os.chdir(folder)
            sides[side](Talk(Connection(ends[0])))
        finally:
            os._exit(0)


class Talk:
    """The end of a forked process: requests come, answers go as JSON."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clock = time.perf_counter  # before anything could replace it

    def next(self) -> tuple[str, tuple[Any, ...]]:
        """The next request; ends the process where none will come."""
        try:
            verb, args = pickle.loads(self._connection.recv_bytes())
            return verb, args
        except (EOFError, OSError):
            os._exit(0)

    def say(self, **answer: Any) -> None:
        """Answer."""
        self._connection.send_bytes(json.dumps(answer).encode())

    def serve(self, verbs: dict[str, Callable[..., dict[str, Any]]]) -> None:
        """Do what is asked for, by its name; an error is an answer too."""
        while True:
            verb, args = self.next()
            try:
                self.say(**verbs[verb](*args))
            except KeyboardInterrupt:
                os._exit(0)
            except BaseException as error:
                self.say(raised=type_and_line(error)[:300])
