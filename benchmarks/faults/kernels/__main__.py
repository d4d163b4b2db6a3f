"""Score the checker on Triton kernels: faults that it names, and alarms on sound counterparts.

    python -m benchmarks.faults.kernels --jobs 12        # on a GPU
    python -m benchmarks.faults.kernels                  # without one, in Triton's interpreter

Each process checks its share, one after the other. A fault counts as named where one of the rules
that its pair lists speaks; anything that is called wrong or fragile on a sound Function is an
alarm. The exit status is 1 where a fault is not named, or where there is an alarm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.grouped import in_groups, tell_part


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
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="a word in the names")
    parser.add_argument("--seconds", type=float, default=120.0, help="per Function")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        tell_part(options.part, lambda name: checked(name, options.seconds))
        return 0
    on_gpu = torch.cuda.is_available()
    names: dict[str, Sequence[str]] = {}
    for pair in pairs():
        if on_gpu or not pair.needs_gpu:  # type: ignore[attr-defined]
            names[f"fault: {pair.name}"] = pair.rules  # type: ignore[attr-defined]
            names[f"sound: {pair.name}"] = ()  # type: ignore[attr-defined]
    chosen = [name for name in names if options.only in name]
    right = {"fault": 0, "sound": 0}
    environment = {} if on_gpu else {"TRITON_INTERPRET": "1"}
    more = ["--seconds", str(options.seconds)]
    for name, result in in_groups(
        "benchmarks.faults.kernels", chosen, options.jobs, more, **environment
    ):
        is_right, line = verdict(name, names[name], result or {"error": "its process was lost"})
        right[name.partition(":")[0]] += is_right
        print(line, flush=True)
    count = {kind: sum(name.startswith(kind) for name in chosen) for kind in right}
    print(f"{right['fault']} of {count['fault']} faults named;", end=" ")
    print(f"{count['sound'] - right['sound']} alarms on {count['sound']} sound counterparts")
    return 0 if right == count else 1


if __name__ == "__main__":
    sys.exit(main())
