"""Nothing hangs or stays behind when ranks deadlock, crash, raise or are killed, run after run.

python -m benchmarks.faults.ranks.leftovers --runs 200
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pullback as pb
from benchmarks.faults.ranks import planted

FAULTS = (
    *("OnlyFirstSums", "EachItsOwnWay", "InAnyOrder", "EndsOnOneRank", "KilledOnOneRank"),
    *("RaisesOnOneRank", "RaisesOnAll", "SendNotAwaited"),
)
LIMIT = 60.0  # seconds of one run, on a machine that does much else


def below() -> set[int]:
    """The processes that this one has started."""
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


def folders() -> set[str]:
    """The folders of ranks that are left."""
    return {str(path) for path in Path(tempfile.gettempdir()).glob("pullback-ranks-*")}


def main() -> int:
    """Run the faults in turn, and print what was left or took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    cases = {case.name: case for case in planted.CASES}
    folder = tempfile.mkdtemp(prefix="leftovers-")
    tempfile.tempdir = folder
    before = below()
    wrong, longest = 0, 0.0
    for run in range(options.runs):
        case = cases[FAULTS[run % len(FAULTS)]]
        start = time.monotonic()
        report = pb.check(case.target, case.inputs, ranks=options.ranks, profile="quick")
        seconds = time.monotonic() - start
        longest = max(longest, seconds)
        names = {finding.rule.name for finding in report.findings}
        left = below() - before
        faults = [
            f"{len(left)} processes left" if left else "",
            f"{len(folders())} folders left" if folders() else "",
            f"{seconds:.0f} s" if seconds > LIMIT else "",
            "" if names & set(case.rules) else f"named {sorted(names)}, not {case.rules}",
        ]
        if any(faults):
            wrong += 1
            print(f"run {run}, {case.name}: {', '.join(filter(None, faults))}")
            sys.stdout.flush()
    shutil.rmtree(folder)
    print(f"{options.runs} runs on {options.ranks} ranks, {wrong} wrong; longest {longest:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
