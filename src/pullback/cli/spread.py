"""Targets over several processes: `--jobs`, and over several machines: `--shard`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

import click

from pullback.check.processes.confine import flush_output
from pullback.check.processes.endings import end_of
from pullback.check.processes.fork import Fork
from pullback.check.processes.wire import GarbledError, Outbox

T = TypeVar("T")


class Shard(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """`2/5`: the second of five parts, as a pair of numbers."""

    name = "I/N"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> tuple[int, int]:
        """The pair; a usage error where it is none."""
        if isinstance(value, tuple):
            return value
        part, slash, parts = str(value).partition("/")
        if slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts):
            return int(part), int(parts)
        self.fail(f"{value!r} is not I/N with I from 1 to N, such as 1/4.", param, ctx)


def share_of(items: Sequence[T], shard: tuple[int, int] | None) -> list[T]:
    """The part of the items that a shard has: every one is in exactly one of N."""
    if shard is None:
        return list(items)
    part, parts = shard
    return list(items[part - 1 :: parts])


@dataclass(frozen=True, slots=True)
class Lost:
    """A task whose process ended before it did, and how."""

    how: str


def in_processes(task: Callable[[int], T], count: int, jobs: int) -> Iterator[T | Lost]:
    """What `task` gives for each number below `count`, in order, from as many processes as `jobs`.

    The processes are forks of this one. After Ctrl-C no task is begun, and what those under way
    give is still reported.
    """
    team = _Team(task, count, jobs)
    done: dict[int, T | Lost] = {}
    following = 0
    try:
        while team.workers:
            try:
                for number, result in team.results():
                    done[number] = result
            except KeyboardInterrupt:
                team.stop_beginning()
            while following in done:
                yield done.pop(following)
                following += 1
        yield from (done[number] for number in sorted(done))
    finally:
        team.end()


@dataclass(eq=False)
class _Worker:
    fork: Fork
    current: int | None = None


class _Team:
    """The processes that are at work, and the number of the next task, which they share."""

    def __init__(self, task: Callable[[int], Any], count: int, jobs: int) -> None:
        self._task, self._count = task, count
        self._next: Any = multiprocessing.get_context("fork").Value("l", 0)
        self.workers: list[_Worker] = []
        for _ in range(min(jobs, count)):
            self._start()

    def _start(self) -> None:
        # A process that was started later holds the pipes of those before it, and ends first. The
        # workers of its own checks end with it in the same way.
        self.workers.append(_Worker(Fork(self._work, None)))

    def results(self) -> Iterator[tuple[int, Any]]:
        """What the processes say next; one that was lost is replaced while there is work."""
        wait([worker.fork.inbox.fileno() for worker in self.workers])
        for worker in list(self.workers):
            while worker.fork.inbox.poll(0.0):
                try:
                    kind, number, result = worker.fork.inbox.recv()
                except (EOFError, GarbledError):
                    yield from self._ended(worker)
                    break
                worker.current = number if kind == "begin" else None
                if kind == "done":
                    yield number, result

    def _ended(self, worker: _Worker) -> Iterator[tuple[int, Lost]]:
        how = end_of(worker.fork.end())
        self.workers.remove(worker)
        if worker.current is not None:
            yield worker.current, Lost(f"it {how}")
            if self._next.value < self._count:
                self._start()

    def stop_beginning(self) -> None:
        """Let no other task begin."""
        self._next.value = self._count

    def end(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.fork.stop()

    # ---- in a process ----

    def _work(self, outbox: Outbox) -> None:
        """One task after the other, until none is left."""
        try:
            while (number := self._following()) < self._count:
                outbox.send(("begin", number, None))
                outbox.send(("done", number, _done(self._task, number)))
        except BaseException:  # also SystemExit: whoever waits sees the exit code
            flush_output()
            os._exit(80)
        flush_output()
        os._exit(0)

    def _following(self) -> int:
        with self._next.get_lock():
            number = int(self._next.value)
            self._next.value += 1
        return number


def _done(task: Callable[[int], Any], number: int) -> Any:
    """What a task gives; one that raises is lost, with what it said."""
    try:
        return task(number)
    except Exception as error:
        return Lost(f"it raised {type(error).__name__}: {error}".removesuffix(": "))
