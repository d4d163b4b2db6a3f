"""The ranks as processes of their own, watched from outside.

They are forked by `torch.multiprocessing`, or started afresh where a fork cannot serve them. Each
answers every command. One that dies, or a set that waits for each other, ends all of them in
seconds; what each stood at is told by `RanksLost`. Nothing of them stays behind.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import Enum
from multiprocessing import connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
import torch.multiprocessing

from pullback.check.processes.endings import end_of
from pullback.check.processes.isolate import why_no_fork
from pullback.check.ranks.collectives import SLOT, RankState, Slot
from pullback.check.ranks.commands import CHECK, Accept, Command, Reply
from pullback.check.ranks.rank import RankJob
from pullback.check.ranks.said import RankErrors
from pullback.check.ranks.stuck import EndlessWork, Patience, StuckWatch
from pullback.check.ranks.whereabouts import AskedRank
from pullback.check.ranks.worker import HOST, Meeting, live, store_at
from pullback.errors import first_line

GLANCE = 0.05  # seconds between two looks
LONGEST = 120.0  # seconds of one command
LOOPS = 8.0  # seconds of a processor that the user's code may take without a collective
SLOWER = 20  # times as long as any before
START = 60.0
TELLS = 2.0  # that a rank may take to say where it stands
CUT_OFF = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # gloo's words

IMPORTABLE = "define the Function and its inputs where another process can import them"
SHORT = "close files and end processes that are not needed, or ask for fewer ranks"
_MAIN = "from pullback.check.ranks.worker import serve; serve({rank}, *{meeting}, *{ends})"


class RankEnd(Enum):
    """What became of a rank that did not answer, or did."""

    ANSWERED = "answered"
    RAISED = "raised"
    WAITS = "waits"
    WORKS = "works"
    ENDLESS = "endless"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Entered:
    """A collective that a rank has entered, as its number of all: what it brought, to whom."""

    number: int
    ranks: tuple[int, ...]
    kind: tuple[Any, ...]
    tensor: str

    @classmethod
    def of(cls, reply: Reply) -> tuple[Entered, ...]:
        """Those of a call that was answered."""
        return tuple(cls(n, s.ranks, s.kind, s.tensor) for n, s in enumerate(reply.steps, 1))


@dataclass(frozen=True, slots=True)
class Standing:
    """What one rank stood at when the check ended it: `kind` is that of its last collective.

    `entered` are those that are known: all of an answer, else the last.
    """

    rank: int
    end: RankEnd
    words: str
    kind: tuple[Any, ...] = ()
    is_aborted: bool = False  # by C++, which found what it received to be impossible
    is_ours: bool = False  # whether the check itself raised
    unwaited: str = ""  # a collective whose handle it has given up
    entered: tuple[Entered, ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} {self.words}"


class RanksLost(Exception):
    """The ranks did not answer a command together."""

    def __init__(self, standings: Sequence[Standing]) -> None:
        super().__init__("; ".join(map(str, standings)))
        self.standings = tuple(standings)

    @property
    def ended(self) -> tuple[Standing, ...]:
        """The ranks whose process is gone."""
        return tuple(s for s in self.standings if s.end is RankEnd.ENDED)

    @property
    def raised(self) -> tuple[Standing, ...]:
        """The ranks that raised while others waited for them."""
        return tuple(s for s in self.standings if s.end is RankEnd.RAISED)


class CannotStartError(Exception):
    """No ranks can be started here; the message says why, and `fix` what to do."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


class Crew:
    """N ranks, each in a process of its own."""

    def __init__(self, job: RankJob, size: int) -> None:
        self.size = size
        # Nothing here has a name in a file system: what is killed leaves none behind.
        self._told = tempfile.TemporaryFile()  # noqa: SIM115
        self._told.truncate(size * SLOT)
        self._slots = [Slot(self._told.fileno(), rank) for rank in range(size)]
        self._said = [RankErrors() for _ in range(size)]
        self._asked = [AskedRank() for _ in range(size)]
        self._store: Any = None
        self._has_called = False  # whether the function has been called, so that its time is known
        self._slowest = 0.0
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        self._lives: list[int] = []  # the ranks end when these are closed, see `confine.lead`
        try:
            # To ask for a GPU is enough that no fork of this process can use it.
            must_start = why_no_fork() or dist.is_initialized() or torch.cuda.is_available()
            if must_start or not self._forked(job):
                self._started(job)
        except BaseException:
            self.stop()
            raise

    # ---- start and end ----

    def _forked(self, job: RankJob) -> bool:
        """Start by fork; False where ranks do not come up in a fork of this process.

        Autograd may not run in one, or a thread of the user's held a lock that nobody gives back.
        """
        pipes = [connection.Pipe() for _ in range(self.size)]
        lives: list[tuple[int, int]] = []
        for _ in range(self.size):
            lives.append(os.pipe())
            self._lives.append(lives[-1][1])
        sys.stdout.flush()
        sys.stderr.flush()
        launcher: Any = torch.multiprocessing
        place, meeting = self._meeting()
        context = launcher.start_processes(
            live,
            (
                meeting,
                job,
                pipes,
                lives,
                place,
                [said.fileno() for said in self._said],
                self._asked,
            ),
            nprocs=self.size,
            join=False,
            start_method="fork",
        )
        self._processes = list(context.processes)
        self._pipes = [ours for ours, _ in pipes]
        for _, theirs in pipes:
            theirs.close()
        for life, _ in lives:
            os.close(life)
        try:
            ready = self._ready(place)
        except RanksLost:
            ready = None
        if ready is None or any(reply.phase == "fork" for reply in ready):
            self._end_processes()
            return False
        _raise_if_wrong(ready)
        return True

    def _meeting(self) -> tuple[socket.socket, Meeting]:
        """Where the ranks of one start will meet; nothing answers there before `_ready`."""
        place = socket.create_server((HOST, 0), backlog=4 * self.size)
        return place, Meeting(self.size, place.getsockname()[1], self._told.fileno())

    def _ready(self, place: socket.socket) -> list[Reply]:
        """The first answers of all ranks, once they meet.

        The store has a thread. No fork may come while it runs: a lock that it holds then stays
        locked in the fork for ever.
        """
        self._store = store_at(place.getsockname()[1], listening=place.detach())
        return self._answers(Patience(START))

    def _started(self, job: RankJob) -> None:
        try:
            sent: bytes = cloudpickle.dumps(job)
        except Exception as error:
            reason = f"it cannot be sent to other processes: {first_line(error)}"
            raise CannotStartError(reason, IMPORTABLE) from None
        source = str(Path(__file__).resolve().parents[3])
        found = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._pipes = []
        place, meeting = self._meeting()
        for rank in range(self.size):
            ours, theirs = connection.Pipe()
            life, kept = os.pipe()
            ends = theirs.fileno(), life, self._asked[rank].fileno()
            code = _MAIN.format(rank=rank, meeting=astuple(meeting), ends=ends)
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(*ends, meeting.slots),
                stdin=subprocess.DEVNULL,
                stdout=self._said[rank].fileno(),
                stderr=self._said[rank].fileno(),
                env=os.environ | {"PYTHONPATH": found},
            )
            theirs.close()
            os.close(life)
            self._lives.append(kept)
            self._processes.append(_Popened(process))
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps(sys.path))
            pipe.send_bytes(sent)
        try:
            ready = self._ready(place)
        except RanksLost as lost:
            raise CannotStartError(str(lost), IMPORTABLE) from None
        _raise_if_wrong(ready)

    def stop(self) -> None:
        """End every rank, whatever it does, and what it has started."""
        self._end_processes()
        for slot in self._slots:
            slot.close()
        self._told.close()
        for said, asked in zip(self._said, self._asked, strict=True):
            said.close()
            asked.close()
        self._store = None

    def _end_processes(self) -> None:
        for process in self._processes:
            _kill(process)
        for process in self._processes:
            process.join(5)
        for pipe in self._pipes:
            pipe.close()
        for life in self._lives:
            os.close(life)
        self._processes, self._pipes, self._lives = [], [], []

    @property
    def is_alive(self) -> bool:
        """Whether there are ranks to ask."""
        return bool(self._processes)

    # ---- questions ----

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """The answer of each rank to its command; raises `RanksLost`, and then all are gone."""
        for rank, command in enumerate(commands):
            with contextlib.suppress(OSError):  # gone: seen below
                self._pipes[rank].send_bytes(pickle.dumps(command))
        try:
            is_call = not isinstance(commands[0], Accept)
            own = max(LOOPS, SLOWER * self._slowest) if is_call else math.inf
            replies = self._answers(Patience(LONGEST, own, self._has_called))
            self._has_called |= is_call
            return replies
        except BaseException:
            self._end_processes()
            raise
        finally:
            for said in self._said:
                said.show()

    def _answers(self, patience: Patience) -> list[Reply]:
        replies: dict[int, Reply] = {}
        pids = [process.pid for process in self._processes]
        look = StuckWatch(self._slots, pids, self._asked, patience)
        while len(replies) < self.size:
            left = [rank for rank in range(self.size) if rank not in replies]
            by_pipe = {self._pipes[rank]: rank for rank in left}
            sentinels = [self._processes[rank].sentinel for rank in left]
            ready = connection.wait([*by_pipe, *filter(None, sentinels)], GLANCE)
            for pipe, rank in by_pipe.items():
                if pipe in ready:
                    with contextlib.suppress(EOFError, OSError):
                        replies[rank] = pickle.loads(pipe.recv_bytes())
            ended = [r for r in left if r not in replies and not self._is_alive(r)]
            if ended and not self._last_message(replies):
                raise RanksLost(self._standings(replies))
            if look.is_stuck([r for r in range(self.size) if r not in replies], replies):
                raise RanksLost(self._standings(replies, look.endless))
        self._slowest = max(self._slowest, look.slowest)
        return [replies[rank] for rank in range(self.size)]

    def _is_alive(self, rank: int) -> bool:
        return bool(self._processes[rank].is_alive())

    def _last_message(self, replies: dict[int, Reply]) -> bool:
        """Take what has been said meanwhile; whether all have answered after all."""
        time.sleep(0.2)
        for rank, pipe in enumerate(self._pipes):
            if rank not in replies and pipe.poll(0):
                with contextlib.suppress(EOFError, OSError):
                    replies[rank] = pickle.loads(pipe.recv_bytes())
        return len(replies) == self.size

    def _standings(
        self, replies: dict[int, Reply], endless: Mapping[int, EndlessWork] = MappingProxyType({})
    ) -> list[Standing]:
        found = [
            self._endless(rank, endless[rank])
            if rank in endless
            else self._standing(rank, replies.get(rank))
            for rank in range(self.size)
        ]
        return [replace(one, entered=self._entered(one.rank, replies)) for one in found]

    def _entered(self, rank: int, replies: dict[int, Reply]) -> tuple[Entered, ...]:
        if rank in replies:
            return Entered.of(replies[rank])
        seen = self._slots[rank].seen
        return (Entered(seen.steps, seen.ranks, seen.kind, seen.tensor),) if seen.kind else ()

    def _standing(self, rank: int, reply: Reply | None) -> Standing:
        seen = self._slots[rank].seen
        after = f", after {seen.text}" if seen.text else ""
        if reply is not None:
            last = reply.steps[-1] if reply.steps else None
            kind = () if last is None else last.kind
            if reply.raised is not None:
                where = f" at {reply.place}" if reply.place else ""
                words = f"raised {reply.raised}{where}"
                if any(one in reply.raised.text for one in CUT_OFF):  # another rank is gone
                    words = f"lost its connection{'' if last is None else f' in {last}'}"
                return Standing(rank, RankEnd.RAISED, words, kind, is_ours=reply.phase == CHECK)
            words = f"was through{'' if last is None else f', after {last}'}"
            unwaited = next((str(step) for step in reply.steps if not step.is_waited), "")
            return Standing(rank, RankEnd.ANSWERED, words, kind, unwaited=unwaited)
        if not self._is_alive(rank):
            code = self._processes[rank].exitcode
            how = end_of(code)
            inside = f", in {seen.text}" if seen.state is RankState.WAITS else after
            is_aborted = code == -signal.SIGABRT
            if is_aborted:
                how += self._said[rank].last_message()
            return Standing(rank, RankEnd.ENDED, f"{how}{inside}", seen.kind, is_aborted)
        if seen.state in (RankState.WAITS, RankState.POLLS):
            return Standing(rank, RankEnd.WAITS, f"waited in {seen.text}", seen.kind)
        place = self._place(rank)
        words = f"was in no collective{' at ' * bool(place)}{place}{after}"
        return Standing(rank, RankEnd.WORKS, words, seen.kind)

    def _endless(self, rank: int, work: EndlessWork) -> Standing:
        """What a rank stands at that would compute on and on."""
        seen = self._slots[rank].seen
        after = f", after {seen.text}" if seen.text else ""
        where = f" at {work.place}" if work.place else ""
        words = f"did not come to an end in {work.seconds:.0f} s of work{where}{after}"
        return Standing(rank, RankEnd.ENDLESS, words, seen.kind)

    def _place(self, rank: int) -> str:
        """The user's line that a rank stands at."""
        asked, latest = self._asked[rank], time.monotonic() + TELLS
        asked.ask()
        while (told := asked.told()) is None and time.monotonic() < latest:
            time.sleep(GLANCE)
        return "" if told is None else told.place


def _raise_if_wrong(ready: Sequence[Reply]) -> None:
    """Raise what a rank says that could not begin."""
    for reply in ready:
        if reply.raised is not None:
            raise CannotStartError(str(reply.raised), IMPORTABLE)


class _Popened:
    """A process that `subprocess` started, with the names of `multiprocessing`'s."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.sentinel = None

    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def join(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


def _kill(process: Any) -> None:
    """End a process, and those of its group where it leads one."""
    with contextlib.suppress(OSError, AttributeError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError, ValueError):
        process.kill()
