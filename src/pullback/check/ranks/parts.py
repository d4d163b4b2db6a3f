"""What each rank has recorded, brought together: under torchrun every rank is a process of its own.

Each rank but the first writes a file when it ends; the first waits for them, and has the whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from pullback.check.ranks.given import RankTuples
from pullback.check.recordings.call import RecordedCall
from pullback.check.recordings.recorded import Recording, load_recording
from pullback.run.disk.private import require_private

WAIT = 60.0  # seconds for the other ranks to end
GLANCE = 0.2


def rank_here() -> tuple[int, int]:
    """This rank and how many there are, as torchrun says; (0, 1) elsewhere."""
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, size) if size > 1 else (0, 1)


def begin_parts(name: str) -> None:
    """Forget what an earlier run has left; the first rank does."""
    if rank_here()[0] == 0:
        shutil.rmtree(_folder(name), ignore_errors=True)


def brought_together(recorded: Recording, name: str) -> Recording | None:
    """The calls of all ranks on the first rank; None on the others, which hand theirs over."""
    rank, size = rank_here()
    if size == 1:
        return recorded
    folder = _folder(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_private(folder)  # its name can be foreseen
    if rank:
        recorded.save(folder / f"{rank}.pt", even_empty=True)
        return None
    whole = Recording()
    whole.ranks = size
    whole.take(recorded, 0)
    end = time.monotonic() + WAIT
    for other in range(1, size):
        part = folder / f"{other}.pt"
        while not part.exists() and time.monotonic() < end:
            time.sleep(GLANCE)
        if part.exists():
            whole.take(load_recording(part), other)
        else:
            whole.left_out[f"rank {other}: it wrote nothing within {WAIT:.0f} s"] += 1
    shutil.rmtree(folder, ignore_errors=True)
    return whole


def tuples_of(calls: list[RecordedCall], size: int) -> RankTuples | None:
    """The inputs of every rank, call by call; None where a rank has none."""
    by_rank = [[call.portable for call in calls if call.rank == rank] for rank in range(size)]
    count = min(len(own) for own in by_rank)
    return RankTuples(tuple(tuple(own[:count]) for own in by_rank)) if count else None


def _folder(name: str) -> Path:
    """Where the ranks of one run meet."""
    known = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    words = [os.environ.get(key, "") for key in known]
    key = hashlib.sha256("\n".join([*words, os.getcwd(), name]).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"pullback-parts-{os.getuid()}-{key}")
