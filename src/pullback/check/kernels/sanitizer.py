"""NVIDIA's compute-sanitizer must find nothing in the kernels that the function launches.

What it checks
    With `--sanitize`: forward and backward at the examples and at a few odd sizes, under
    compute-sanitizer's memcheck, initcheck, racecheck and synccheck, without PyTorch's cache of
    memory, so that each tensor ends where its memory does.

Why it matters
    The sanitizer looks at each access of each thread. What it names is a line of a kernel: an
    access out of bounds, a read of memory that was never written, a race in shared memory, a
    barrier that some threads do not reach.

Fails
    tl.store(out + offsets, y)                        # the last block is longer than `out`

Passes
    tl.store(out + offsets, y, mask=offsets < n)

Cannot see
    Races in global memory. Kernels of PyTorch itself are left out of the report.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.job import Job
from pullback.check.kernels.sending import sent_by_value
from pullback.check.kernels.sizes import odd_sizes
from pullback.check.processes.start import python_calling
from pullback.check.subject.subject import Subject
from pullback.judge.run import CallError

RULE = Rule(
    code="U007",
    name="sanitizer-alarm",
    group="sanitize",
    severity=Severity.WRONG,
    profile="deep",
    sentence="NVIDIA's compute-sanitizer must find nothing in the kernels that it launches",
)

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
SECONDS = 300.0  # that one tool may take
SIZES = 2  # odd ones
OWN = ("at::", "c10::", "cub::", "cublas", "cutlass", "cudnn")

_HEAD = re.compile(r"(Invalid|Uninitialized|Error: Race|Warning: Race|Barrier|Misaligned|Race)")
_PLACES = (
    re.compile(r"at (?:0x[0-9a-f]+ in )?(?P<file>[^\s:]+:\d+):(?P<name>[^\s(]+)"),
    re.compile(r"at (?:void )?(?P<name>[^\s(+<]+)[^+]*\+0x[0-9a-f]+(?: in (?P<file>\S+:\d+))?"),
)


def check(subject: Any) -> Iterator[Finding | Skip]:
    """Nothing by itself: it is asked for by `sanitize`."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that the sanitizer says: what, in which kernel, and at which line."""

    tool: str
    what: str
    kernel: str
    place: str = ""

    @property
    def is_theirs(self) -> bool:
        """Whether it is about a kernel that is not PyTorch's own."""
        return bool(self.kernel) and not self.kernel.startswith(OWN)


def sanitizer() -> str:
    """The program, on the path or where `CUDA_HOME` is; empty where it is not installed."""
    home = os.environ.get("CUDA_HOME", "")
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.join(home, "bin")])
    return shutil.which("compute-sanitizer", path=places) or ""


def sanitized(job: Job) -> Iterator[Finding | str]:
    """What the sanitizer finds, each kernel and line once; words on what could not be tried."""
    program = sanitizer()
    if not program:
        yield "compute-sanitizer was not found, so it was not asked: CUDA's toolkit has it"
        return
    with tempfile.TemporaryDirectory(prefix="pullback-sanitize-") as folder:
        path = Path(folder, "job")
        path.write_bytes(sent_by_value(job))
        for tool in TOOLS:
            try:
                said = _said(program, tool, path)
            except subprocess.TimeoutExpired:
                yield f"{tool} of compute-sanitizer did not end within {SECONDS:.0f} s"
                continue
            seen: set[tuple[str, str]] = set()
            for report in reports_in(said, tool):
                key = report.kernel, report.place
                if report.is_theirs and key not in seen:
                    seen.add(key)
                    yield _finding(report, job)


def _said(program: str, tool: str, path: Path) -> str:
    call = python_calling(f"{__name__}.take_calls", str(path))
    done = subprocess.run(
        [program, "--tool", tool, "--print-limit", "100", *call],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout


def reports_in(text: str, tool: str) -> Iterator[Alarm]:
    """What the sanitizer says, one after the other."""
    what = ""
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        words = line.removeprefix("=========").strip()
        place = next((m for form in _PLACES if (m := form.search(words))), None)
        if _HEAD.match(words):
            what = words.partition(" at ")[0].removeprefix("Error: ")
        if what and place is not None:
            yield Alarm(tool, what, place["name"], place["file"] or "")
            what = ""


def _finding(report: Alarm, job: Job) -> Finding:
    first = job.examples[0]
    where = f" ({report.place})" if report.place else ""
    found = Finding.made(
        RULE,
        at=f"kernel `{report.kernel}`{where}",
        expected="nothing to report",
        got=f"{report.what}, says {report.tool}",
        inputs=first.words(job.target.names_of(len(first.args))),
        fix="mask loads and stores by the sizes of their tensors, and write before reading",
        remedy=f"{report.kernel} {report.place}",
    )
    return found.of(job.target.name, job.target.place("backward", "vjp", "forward"))


# ---- under the sanitizer ----


def take_calls(path: str) -> None:
    """Call the target of a job at its examples and some odd sizes, with backward."""
    job = pickle.loads(Path(path).read_bytes())
    subject = Subject(job.target, job.examples, profile="quick")
    for example in (*job.examples, *islice(odd_sizes(subject), SIZES)):
        with suppress(CallError):
            subject.pull(example)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
