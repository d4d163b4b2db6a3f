"""Check every subject, compare what is found with the verdicts, and print the table.

The exit status is 1 where a finding has no verdict, where one has changed, where a verdict is about
a finding that is gone, or where a subject could not be checked.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import pullback as pb
from benchmarks.wild import page, table, verdicts
from benchmarks.wild.apart import apart, cpu
from benchmarks.wild.install import ROOT, folder, install
from benchmarks.wild.results import Found, Result, add, read
from benchmarks.wild.subject import Subject, every

SECONDS = 180.0  # that one subject may take
LATEST = ROOT / "benchmarks" / "results" / "wild.json"


class Warm(torch.autograd.Function):
    """The sine: what the checker imports at its first use, it imports for this."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x)


def check(subject: Subject, packages: Path) -> dict[str, Any]:
    """What `pb.check` says of a subject, as plain values."""
    torch.manual_seed(0)
    target = subject.load()
    subject.inputs()  # what it imports does not count
    start = cpu()
    report = pb.check(
        target, subject.inputs, declares=subject.declares, reference=subject.reference
    )
    taken = cpu() - start
    result = Result(
        subject.id,
        round(taken, 2),
        tuple(Found.of(finding, packages) for finding in report.findings),
        report.notes,
        tuple(f"{s.rule.code}: {s.reason}" for s in report.skips if s.is_refusal),
    )
    return asdict(result)


def run(subject: Subject, packages: Path, seconds: float = SECONDS) -> Result:
    """Check one subject in a process of its own."""
    answer, error = apart(lambda: check(subject, packages), path=packages, seconds=seconds)
    return Result.from_json(answer) if answer else Result(subject.id, 0.0, error=error)


def chosen(subjects: Sequence[Subject], only: Sequence[str], part: str) -> list[Subject]:
    """The subjects whose name has one of the patterns, and of these every n-th."""
    patterns = [f"*{pattern}*" for pattern in only]
    kept = [
        subject
        for subject in subjects
        if not patterns or any(fnmatch.fnmatch(subject.id, pattern) for pattern in patterns)
    ]
    number, _, parts = part.partition("/")
    return kept[int(number) - 1 :: int(parts)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    subjects = every()
    results = read(options.json)
    if not options.show:
        packages = folder() if options.no_install else install()
        pb.check(Warm, lambda: (torch.randn(3, requires_grad=True),))
        done = {result.subject for result in results if options.new and not result.error}
        left = [subject for subject in subjects if subject.id not in done]
        for subject in chosen(left, options.only, options.part):
            result = run(subject, packages, options.seconds)
            print(table.line(result), flush=True)
            results = add(result, options.json)
    names = {subject.id for subject in subjects}
    results = [result for result in results if result.subject in names]
    known = verdicts.read()
    is_whole = {result.subject for result in results} == names
    problems = verdicts.problems(results, known)
    print(table.text(results, known))
    if is_whole and not options.only:
        page.write(results, known)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wild", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--part", default="1/1", help="1/2: every second subject")
    parser.add_argument("--json", type=Path, default=LATEST, help="where results are kept")
    parser.add_argument("--new", action="store_true", help="only what has no result yet")
    parser.add_argument("--show", action="store_true", help="kept results only, nothing is run")
    parser.add_argument("--no-install", action="store_true", help="the packages are there")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="per subject")
    return parser
