"""Score the checker on Triton kernels: faults that it names, and alarms on sound counterparts.

    python -m benchmarks.faults.kernels --jobs 12        # on a GPU
    python -m benchmarks.faults.kernels                  # without one, in Triton's interpreter

Each Function is checked from a process of its own. A fault counts as named where one of the rules
that its pair lists speaks; anything that is called wrong or fragile on a sound Function is an
alarm. The exit status is 1 where a fault is not named, or where there is an alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

MARK = "result: "
LATEST = 30.0  # seconds more than asked for, after which a process is ended


def pairs() -> list[object]:
    """All pairs, in order."""
    from benchmarks.faults.kernels import elementwise, matrices, rows  # they import Triton

    return [*elementwise.PAIRS, *rows.PAIRS, *matrices.PAIRS]


def checked(name: str, seconds: float) -> dict[str, object]:
    """In a process of its own: what is said of one Function, `fault: ...` or `sound: ...`."""
    import pullback as pb

    kind, _, title = name.partition(": ")
    (pair,) = (one for one in pairs() if one.name == title)  # type: ignore[attr-defined]
    target = pair.faulty if kind == "fault" else pair.sound  # type: ignore[attr-defined]
    start = time.monotonic()
    report = pb.check(
        target,
        pair.inputs,  # type: ignore[attr-defined]
        reference=pair.reference,  # type: ignore[attr-defined]
        seconds=seconds,
    )
    return {
        "seconds": round(time.monotonic() - start, 1),
        "found": [[f.rule.name, str(f.weight), f"{f.at}: {f.got}"] for f in report.findings],
        "left": [s.rule.name for s in report.skips if "time of" in s.reason] + list(report.lost),
        "failed": [str(s) for s in report.skips if "itself failed" in s.reason],
    }


def apart(name: str, seconds: float) -> dict[str, object]:
    """The same from a new process, which may be lost."""
    command = [sys.executable, "-m", "benchmarks.faults.kernels", "--one", name]
    command += ["--seconds", str(seconds)]
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds + LATEST,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "it did not end"}
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return dict(json.loads(line.removeprefix(MARK)))
    return {"error": (done.stderr.strip().splitlines() or ["it was lost"])[-1]}


def verdict(name: str, rules: Sequence[str], result: dict[str, object]) -> tuple[bool, str]:
    """Whether a result is as it should be, and a line on it."""
    if "error" in result:
        return False, f"{name}: NOT CHECKED: {result['error']}"
    found = [one for one in result["found"] if one[1] != "wasteful"]  # type: ignore[attr-defined]
    said = "; ".join(f"{rule} ({weight}) {words}" for rule, weight, words in found)
    is_right = any(one[0] in rules for one in found) if name.startswith("fault") else not found
    head = "ok  " if is_right else "MISS" if name.startswith("fault") else "ALARM"
    more = f" | left {len(result['left'])}" if result["left"] else ""  # type: ignore[arg-type]
    more += f" | {result['failed']}" if result["failed"] else ""
    return is_right, f"{head} {name}: {result['seconds']} s: {said or 'nothing'}{more}"[:600]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.kernels")
    parser.add_argument("--jobs", type=int, default=2, help="Functions at a time")
    parser.add_argument("--only", default="", help="a word in the names")
    parser.add_argument("--seconds", type=float, default=120.0, help="per Function")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(MARK + json.dumps(checked(options.one, options.seconds)), flush=True)
        return 0
    on_gpu = torch.cuda.is_available()
    names: dict[str, Sequence[str]] = {}
    for pair in pairs():
        if on_gpu or not pair.needs_gpu:  # type: ignore[attr-defined]
            names[f"fault: {pair.name}"] = pair.rules  # type: ignore[attr-defined]
            names[f"sound: {pair.name}"] = ()  # type: ignore[attr-defined]
    chosen = [name for name in names if options.only in name]
    right = {"fault": 0, "sound": 0}
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(apart, name, options.seconds): name for name in chosen}
        for done in as_completed(waiting):
            name = waiting[done]
            is_right, line = verdict(name, names[name], done.result())
            right[name.partition(":")[0]] += is_right
            print(line, flush=True)
    count = {kind: sum(name.startswith(kind) for name in chosen) for kind in right}
    print(f"{right['fault']} of {count['fault']} faults named;", end=" ")
    print(f"{count['sound'] - right['sound']} alarms on {count['sound']} sound counterparts")
    return 0 if right == count else 1


if __name__ == "__main__":
    sys.exit(main())
