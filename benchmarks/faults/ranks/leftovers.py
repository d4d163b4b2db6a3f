"""Nothing hangs or stays behind when ranks deadlock, crash, raise or are killed, run after run.

python -m benchmarks.faults.ranks.leftovers --runs 200

After each run the processes below this one, its open files and sockets, and the files of a
temporary folder of its own are counted. Every tenth run is that of a parent which is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pullback as pb
from benchmarks.faults.ranks import frameworks, planted

FAULTS = (
    *("OnlyFirstSums", "EachItsOwnWay", "InAnyOrder", "EndsOnOneRank", "KilledOnOneRank"),
    *("RaisesOnOneRank", "RaisesOnAll", "SendNotAwaited", "FromFirstEarlyOut"),
)
CASES = {case.name: case for case in [*planted.CASES, *frameworks.PLANTED]}
LIMIT = 60.0  # seconds of one run, on a machine that does much else
SETTLES = 5.0  # seconds in which what was killed must be gone
ADOPT = 36  # PR_SET_CHILD_SUBREAPER: those whose parent is gone become children of this process


def below() -> set[int]:
    """The processes that this one has started, or has adopted."""
    me = os.getpid()
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == me and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def opened() -> tuple[int, int]:
    """How many files this process has open, and how many of them are sockets."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(path))
        except OSError:
            continue
    return len(links), sum(link.startswith("socket:") for link in links)


def left_behind(folder: Path, before: set[int], files: tuple[int, int]) -> list[str]:
    """What is left of a run, in words."""
    latest = time.monotonic() + SETTLES
    while True:
        processes, (now, sockets) = below() - before, opened()
        entries = [p.name for p in [*folder.iterdir(), *Path("/dev/shm").glob("torch_*")]]
        words = [
            f"{len(processes)} processes" if processes else "",
            f"{sockets - files[1]} sockets" if sockets > files[1] else "",
            f"{now - files[0]} open files" if now > files[0] else "",
            f"in the temporary folder {entries}" if entries else "",
        ]
        if not any(words) or time.monotonic() > latest:
            return [word for word in words if word]
        time.sleep(0.05)


def one(name: str, ranks: int) -> str:
    """Check one fault; what is wrong with the report, or nothing."""
    case = CASES[name]
    report = pb.check(case.target, case.inputs, ranks=ranks, profile="quick")
    names = {finding.rule.name for finding in report.findings}
    return "" if names & set(case.rules) else f"named {sorted(names)}, not {case.rules}"


def killed(name: str, ranks: int, seconds: float) -> str:
    """Let another process check a fault, and kill it on the way."""
    command = [sys.executable, "-m", __spec__.name, "--one", name, "--ranks", str(ranks)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    is_begun = parent.stdout.readline().strip() == b"begins"
    time.sleep(seconds)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    return "" if is_begun else "the parent did not begin"


def main() -> int:
    """Run the faults in turn, and print what was left or took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--one", help="check one fault, and count nothing")
    options = parser.parse_args()
    if options.one:
        print("begins", flush=True)
        return bool(one(options.one, options.ranks))
    ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)
    made = tempfile.TemporaryDirectory
    with made(prefix="leftovers-") as name, made(prefix="leftovers-kept-") as kept:
        os.environ["TMPDIR"] = tempfile.tempdir = name
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = kept  # torch's own, and for longer
        return _counted(Path(name), options.runs, options.ranks)


def _counted(folder: Path, runs: int, ranks: int) -> int:
    draw = random.Random(0)
    one(FAULTS[0], ranks)  # what is opened once and kept is not left by a run
    before, files = below(), opened()
    wrong, longest, kills = 0, 0.0, 0
    for run in range(runs):
        fault = FAULTS[run % len(FAULTS)]
        start = time.monotonic()
        if run % 10 == 9:
            kills += 1
            word = killed(fault, ranks, draw.uniform(0, 1.5))
        else:
            word = one(fault, ranks)
        seconds = time.monotonic() - start
        longest = max(longest, seconds)
        told = [word, *left_behind(folder, before, files)]
        told += [f"{seconds:.0f} s"] if seconds > LIMIT else []
        if any(told):
            wrong += 1
            print(f"run {run}, {fault}: {', '.join(filter(None, told))}", flush=True)
    print(
        f"{runs} runs on {ranks} ranks, in {kills} of them the parent was killed: {wrong} with "
        f"anything left or wrong; longest {longest:.1f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
