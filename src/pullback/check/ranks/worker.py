"""The life of a rank's process: it joins the group, does what it is asked, and ends with who asked.

Its process leads a group of its own, so that whatever it starts ends with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from pullback.check.processes.confine import lead, print_into
from pullback.check.processes.isolate import limit_memory, why_no_autograd
from pullback.check.ranks.collectives import Slot, install
from pullback.check.ranks.commands import Reply
from pullback.check.ranks.rank import Rank, RankJob
from pullback.check.ranks.whereabouts import AskedRank, answer_from
from pullback.judge.run import Raised, describe

LONG = timedelta(minutes=5)  # who watches ends a rank much earlier
HOST = "127.0.0.1"
GLOO = "gloo"


def store_at(port: int, *, listening: int | None = None) -> Any:
    """The store at which ranks find each other; its host gives the socket that listens there."""
    distributed: Any = dist  # which does not say to type checkers that it has one
    return distributed.TCPStore(
        HOST,
        port,
        is_master=listening is not None,
        wait_for_workers=False,
        timeout=LONG,
        master_listen_fd=listening,
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks find each other: the port of a store, and the file with what each does."""

    size: int
    port: int
    slots: int


def live(
    rank: int,
    meeting: Meeting,
    job: RankJob,
    pipes: Sequence[Any],
    lives: Sequence[tuple[int, int]],
    place: socket.socket,
    errors: Sequence[int],
    asked: Sequence[AskedRank],
) -> None:
    """A forked rank, from its first line to its last."""
    print_into(errors[rank])
    place.close()  # its parent listens
    for number, ((ours, theirs), (life, kept)) in enumerate(zip(pipes, lives, strict=True)):
        ours.close()
        os.close(kept)
        if number != rank:
            theirs.close()
            os.close(life)
    refusal = why_no_autograd()
    if refusal:
        _tell(pipes[rank][1], Reply(None, Raised("RuntimeError", refusal), "fork"))
        os._exit(0)
    limit_memory()
    answer_from(asked[rank].fileno())
    _live(rank, meeting, job, pipes[rank][1], lives[rank][0])


def serve(rank: int, size: int, port: int, slots: int, fd: int, life: int, asked: int) -> None:
    """A rank that was started afresh: its job comes first."""
    print_into(os.dup(2))
    pipe = Connection(fd)
    sys.path[:] = pickle.loads(pipe.recv_bytes())
    job = pickle.loads(pipe.recv_bytes())
    answer_from(asked)
    _live(rank, Meeting(size, port, slots), job, pipe, life)


def _live(rank: int, meeting: Meeting, job: RankJob, pipe: Any, life: int) -> None:
    try:
        _begin(life)
        _join(rank, meeting)
        install()
        worker = Rank(job, rank, Slot(meeting.slots, rank))
        _tell(pipe, Reply("ready"))
        while True:
            try:
                command = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            _tell(pipe, worker.do(command))
    except MemoryError:
        os._exit(77)
    except SystemExit as leaving:
        os._exit(78 if leaving.code in (0, None) else 79)
    except BaseException as error:
        _tell(pipe, Reply(None, describe(error), "check"))
        os._exit(80)


def _tell(pipe: Any, reply: Reply) -> None:
    try:
        pipe.send_bytes(pickle.dumps(reply))
    except OSError:  # who asked is gone
        os._exit(0)


def _begin(life: int) -> None:
    """Stand alone: no interrupt of the terminal's, one thread, and no life without the parent."""
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):  # it leads one already
            os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()  # inherited of pytest, it writes to another file than standard error
    lead(life)
    torch.set_num_threads(1)


def backend_here(rank: int, size: int) -> str:
    """The backend for so many ranks on this machine: NCCL as well where each can have a GPU.

    That of this rank is then the current device, which NCCL asks for.
    """
    if not torch.cuda.is_available() or torch.cuda.device_count() < size:
        return GLOO
    torch.cuda.set_device(rank)
    return f"cpu:{GLOO},cuda:nccl"


def _join(rank: int, meeting: Meeting) -> None:
    """Join the group."""
    size = meeting.size
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({key: str(value) for key, value in known.items()})
    dist.init_process_group(
        backend_here(rank, size),
        store=store_at(meeting.port),
        rank=rank,
        world_size=size,
        timeout=LONG,
    )
