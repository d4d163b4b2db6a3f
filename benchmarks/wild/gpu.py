"""Check the Functions of `kernels/` on a GPU, several at a time, each called from its own process.

    python -m benchmarks.wild.gpu --jobs 14          # all of them
    python -m benchmarks.wild.gpu --only rms_norm    # some of them
    python -m benchmarks.wild.gpu --show             # the table of kept results, nothing is run

Each process makes the inputs on the GPU, calls `pb.check`, and then uses the GPU once more: whether
it still can is part of the result. It goes on with the next Function, on a worker that is warm. The
packages (liger-kernel, fla-core) must be importable. The exit status is 1 where a Function was not
checked to its end, or where the caller lost its GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.grouped import in_groups, tell_part
from benchmarks.wild.install import ROOT
from benchmarks.wild.results import Found
from benchmarks.wild.subject import Subject, every

PACKAGE = "benchmarks.wild.kernels"
LATEST = ROOT / "benchmarks" / "results" / "wild_gpu.json"
SECONDS = 90.0  # that one Function may take, with its tuning: rules after that are left out


@dataclass(frozen=True)
class Checked:
    """One Function: what was found, what could not be tried, and what became of the caller."""

    subject: str
    seconds: float = 0.0
    rules: int = 0
    found: tuple[Found, ...] = ()
    # The inputs of each finding.
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    # Rules that could not be tried.
    lost: int = 0
    survived: bool = True
    # The rules that took longest, with their seconds.
    slowest: tuple[str, ...] = ()
    error: str = ""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Checked:
        """The result that `asdict` made plain."""
        found = tuple(Found(**each) for each in values["found"])
        tuples = {key: tuple(values[key]) for key in ("inputs", "notes", "refused", "slowest")}
        return cls(**{**values, **tuples, "found": found})

    @property
    def is_whole(self) -> bool:
        """Whether every rule was tried, and the caller went on."""
        return not self.error and not self.lost and self.survived

    def line(self) -> str:
        """The result in a few lines."""
        if self.error:
            return f"{self.subject}: NOT CHECKED: {self.error}"
        end = "" if self.survived else ", THE CALLER LOST ITS GPU"
        lost = f", {self.lost} LOST" if self.lost else ""
        lines = [f"{self.subject}: {self.seconds:.1f} s, {self.rules} rules{lost}{end}"]
        for one, inputs in zip(self.found, self.inputs, strict=True):
            lines.append(f"   {one.rule} {one.name} ({one.severity}) at {one.at}; {inputs}")
            lines.append(f"      expected {one.expected} | got {one.got}")
        lines += [f"   note: {note}" for note in self.notes]
        lines.append(f"   slowest: {', '.join(self.slowest)}")
        reasons: dict[str, list[str]] = {}
        for one in self.refused:
            code, _, reason = one.partition(": ")
            reasons.setdefault(reason, []).append(code)
        lines += [f"   not tried: {' '.join(codes)}: {why}" for why, codes in reasons.items()]
        return "\n".join(line[:330].replace("\n", " ") for line in lines)


def checked(subject: Subject, seconds: float) -> Checked:
    """In a process of its own: check one Function."""
    import pullback as pb

    torch.manual_seed(0)
    target, args = subject.load(), subject.inputs()
    begun: list[tuple[str, float]] = []
    start = time.monotonic()
    report = pb.check(
        target,
        lambda: args,
        declares=subject.declares,
        reference=subject.reference,
        progress=lambda name, number, count: begun.append((name, time.monotonic())),
        seconds=seconds,
    )
    taken = time.monotonic() - start
    site = Path(sys.modules[target.__module__].__file__ or "").parents[target.__module__.count(".")]
    return Checked(
        subject.id,
        round(taken, 1),
        len(report.rules),
        tuple(Found.of(finding, site) for finding in report.findings),
        tuple(finding.inputs for finding in report.findings),
        report.notes,
        tuple(f"{s.rule.code}: {s.reason}" for s in report.skips if s.is_refusal),
        len(report.lost) + sum("time of" in skip.reason for skip in report.skips),
        _survives(),
        tuple(_slowest(begun, start)),
    )


def _slowest(begun: Sequence[tuple[str, float]], start: float) -> list[str]:
    """The five rules that took longest, and the time until the first began."""
    if not begun:
        return []
    ends = [*(at for _, at in begun[1:]), time.monotonic()]
    spans = [(end - at, name) for (name, at), end in zip(begun, ends, strict=True)]
    spans.append((begun[0][1] - start, "start"))
    return [f"{name} {seconds:.1f}" for seconds, name in sorted(spans, reverse=True)[:6]]


def _survives() -> bool:
    """Whether this process can still use its GPU."""
    if not torch.cuda.is_available():
        return True
    try:
        return float(torch.ones(8, device="cuda").sum()) == 8.0
    except RuntimeError:
        return False


def told(name: str, values: dict[str, Any] | None) -> Checked:
    """The result of one Function, which its process may not have told."""
    if values is None:
        return Checked(name, error="its process ended before it was checked")
    if "subject" not in values:
        return Checked(name, error=values["error"])
    return Checked.from_json(values)


def read(path: Path = LATEST) -> list[Checked]:
    """The results in a file; none if there is no file."""
    values = json.loads(path.read_text()) if path.exists() else []
    return [Checked.from_json(each) for each in values]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    subjects = every(PACKAGE)
    if options.part:
        by_name = {subject.id: subject for subject in subjects}
        tell_part(options.part, lambda name: asdict(checked(by_name[name], options.seconds)))
        return 0
    results = {one.subject: one for one in read(options.json)}
    if not options.show:
        chosen = [s for s in subjects if any(word in s.id for word in options.only or [""])]
        names, more = [one.id for one in chosen], ["--seconds", str(options.seconds)]
        for name, values in in_groups("benchmarks.wild.gpu", names, options.jobs, more):
            results[name] = told(name, values)
            print(results[name].line(), flush=True)
        kept = [asdict(result) for _, result in sorted(results.items())]
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    every_one = list(results.values())
    print(summary(every_one))
    return 0 if all(one.is_whole for one in every_one) else 1


def summary(results: Sequence[Checked]) -> str:
    """The figures of a run."""
    times = sorted(one.seconds for one in results if not one.error) or [0.0]
    return (
        f"{len(results)} Functions: {sum(one.is_whole for one in results)} checked to their end, "
        f"{sum(bool(one.error) for one in results)} not checked, "
        f"{sum(bool(one.lost) for one in results)} with rules lost, "
        f"{sum(not one.survived for one in results)} callers lost their GPU; "
        f"{sum(not one.found for one in results)} with nothing found; "
        f"seconds: {times[len(times) // 2]:.1f} in the median, {times[-1]:.1f} at most"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wild.gpu", description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="in the names")
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="per Function")
    parser.add_argument("--json", type=Path, default=LATEST, help="where results are kept")
    parser.add_argument("--show", action="store_true", help="kept results only, nothing is run")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
