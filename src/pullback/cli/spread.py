"""Targets over several processes: `--jobs`, and over several machines: `--shard`."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import click

from pullback.check.processes.confine import end_with
from pullback.check.processes.isolate import end_of

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
    crew = _Crew(task, count, jobs)
    done: dict[int, T | Lost] = {}
    following = 0
    try:
        while crew.workers:
            try:
                for number, result in crew.results():
                    done[number] = result
            except KeyboardInterrupt:
                crew.stop_beginning()
            while following in done:
                yield done.pop(following)
                following += 1
        yield from (done[number] for number in sorted(done))
    finally:
        crew.end()


@dataclass(eq=False)
class _Worker:
    process: Any
    pipe: Connection
    life: int
    current: int | None = None


class _Crew:
    """The processes that are at work, and the number of the next task, which they share."""

    def __init__(self, task: Callable[[int], Any], count: int, jobs: int) -> None:
        self._context: Any = multiprocessing.get_context("fork")
        self._task, self._count = task, count
        self._next = self._context.Value("l", 0)
        self.workers = [self._started() for _ in range(min(jobs, count))]

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        life = os.pipe()  # nobody writes to it: it is closed when this process is gone
        args = (self._task, self._count, self._next, theirs, life)
        process = self._context.Process(target=_work, args=args, daemon=False)
        process.start()
        theirs.close()
        os.close(life[0])
        return _Worker(process, ours, life[1])

    def results(self) -> Iterator[tuple[int, Any]]:
        """What the processes say next; one that was lost is replaced while there is work."""
        by_pipe = {worker.pipe: worker for worker in self.workers}
        for pipe in wait(list(by_pipe)):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                kind, number, result = worker.pipe.recv()
            except (EOFError, OSError):
                yield from self._ended(worker)
                continue
            worker.current = number if kind == "begin" else None
            if kind == "done":
                yield number, result

    def _ended(self, worker: _Worker) -> Iterator[tuple[int, Lost]]:
        worker.process.join(5)
        os.close(worker.life)
        self.workers.remove(worker)
        if worker.current is not None:
            yield worker.current, Lost(f"it {end_of(worker.process.exitcode)}")
            if self._next.value < self._count:
                self.workers.append(self._started())

    def stop_beginning(self) -> None:
        """Let no other task begin."""
        self._next.value = self._count

    def end(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.join(5)
            os.close(worker.life)


def _done(task: Callable[[int], Any], number: int) -> Any:
    """What a task gives; one that raises is lost, with what it said."""
    try:
        return task(number)
    except Exception as error:
        return Lost(f"it raised {type(error).__name__}: {error}".removesuffix(": "))


def _work(
    task: Callable[[int], Any],
    count: int,
    following: Any,
    pipe: Connection,
    life: tuple[int, int],
) -> None:
    """The life of a process: one task after the other."""
    os.close(life[1])
    # A process that was started later holds the pipes of those before it, and ends first. The
    # workers of its own checks end with it in the same way.
    end_with(life[0], os.getpid())
    try:
        while True:
            with following.get_lock():
                number = following.value
                following.value += 1
            if number >= count:
                break
            pipe.send(("begin", number, None))
            pipe.send(("done", number, _done(task, number)))
    except BaseException:  # also SystemExit: whoever waits sees the exit code
        sys.stdout.flush()
        os._exit(80)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
