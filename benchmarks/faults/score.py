"""Run checkers side by side over the cases: what each finds, what it alarms about, how long.

Every run of a checker on a case has a process of its own with a limit of time and of memory, so a
case may crash, hang or eat memory: for gradcheck and its kin, as for a person at a terminal, that
counts as a detection. Inputs are cast to float64 for gradcheck. `--part 1/2` scores every second
case, for two processes side by side; `--show` prints kept results of one or several runs.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import re
import resource
import select
import signal
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_map

from benchmarks.faults.case import Case, control, normal, planted, sound

ORDER = ("wasteful", "fragile", "wrong")
GROUPS = {"planted": planted, "sound": sound, "control": control}


@dataclass(frozen=True)
class Result:
    """What one checker said about one case."""

    tool: str
    group: str
    case: str
    fault: str
    severity: str
    visible: bool
    # "found": something to report; "clean": nothing; "absent": the checker cannot be run on it.
    verdict: str
    seconds: float
    # Of all its processes: what it costs on one core, whatever else the machine does.
    cpu: float
    text: str = ""


# ---- checkers: each answers (verdict, a line of text, the severities it reported) ----

Answer = tuple[str, str, list[list[str]]]


class Absent(Exception):
    """The checker is not here, or does not apply."""


def in_double(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The same inputs in float64 and complex128."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        kind = torch.complex128 if leaf.is_complex() else torch.float64
        return leaf.detach().to(kind).requires_grad_(leaf.requires_grad)

    return tuple(tree_map(cast, tuple(inputs)))


def _gradcheck(case: Case, check: Callable[..., bool], **options: Any) -> Answer:
    try:
        check(case.call, in_double(case.inputs()), **options)
    except Exception as error:
        return "found", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}", []
    return "clean", "", []


def gradcheck_slow(case: Case) -> Answer:
    """`torch.autograd.gradcheck` as it comes."""
    return _gradcheck(case, torch.autograd.gradcheck)


def gradcheck_fast(case: Case) -> Answer:
    """Gradcheck in one random direction."""
    return _gradcheck(case, torch.autograd.gradcheck, fast_mode=True)


def gradcheck_everything(case: Case) -> Answer:
    """Gradcheck with every further check on; forward mode where the function has a jvp."""
    forward = getattr(case.target, "jvp", None) is not torch.autograd.Function.jvp
    forward = forward and hasattr(case.target, "jvp")
    return _gradcheck(
        case,
        torch.autograd.gradcheck,
        check_undefined_grad=True,
        check_grad_dtypes=True,
        check_batched_grad=True,
        check_forward_ad=forward,
        check_batched_forward_grad=forward,
    )


def gradgradcheck(case: Case) -> Answer:
    """`torch.autograd.gradgradcheck`, with cotangents that are not contiguous."""
    return _gradcheck(case, torch.autograd.gradgradcheck, gen_non_contig_grad_outputs=True)


def opcheck(case: Case) -> Answer:
    """`torch.library.opcheck`; for a Function, the part of it that compares with AOTAutograd."""
    try:
        if isinstance(case.target, torch._ops.OpOverload | torch.library.CustomOpDef):
            torch.library.opcheck(case.target, case.inputs())
        else:
            from torch.testing._internal.optests import aot_autograd_check

            aot_autograd_check(case.call, case.inputs(), {}, dynamic=True)
    except Exception as error:
        return "found", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}", []
    return "clean", "", []


def pullback(case: Case, profile: str) -> Answer:
    """`pullback.check`."""
    try:
        import pullback as pb
    except ImportError as error:
        raise Absent(str(error)) from error
    if not hasattr(pb, "check"):
        raise Absent("pullback has no `check`")
    report = pb.check(case.target, case.inputs, profile=profile)
    found = [
        [str(getattr(finding, "weight", finding.rule.severity)), finding.rule.name]
        for finding in report.findings
    ]
    text = "; ".join(
        f"{finding.rule.code} {finding.rule.name} ({weight})"
        for finding, (weight, _) in zip(report.findings, found, strict=True)
    )
    return ("found" if found else "clean"), text, found


TOOLS: dict[str, Callable[[Case], Answer]] = {
    "gradcheck-slow": gradcheck_slow,
    "gradcheck-fast": gradcheck_fast,
    "gradcheck-everything": gradcheck_everything,
    "gradgradcheck": gradgradcheck,
    "opcheck": opcheck,
    "pullback-quick": partial(pullback, profile="quick"),
    "pullback-standard": partial(pullback, profile="standard"),
    "pullback-deep": partial(pullback, profile="deep"),
}
USUAL = [name for name in TOOLS if name != "pullback-deep"]

# ---- warming up ----


class Warm(torch.autograd.Function):
    """The sine: whatever a checker imports at its first use, it imports for this."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x)


def warm_up(tool: str) -> None:
    """Let a checker import what it needs, so that no case pays for it."""
    with contextlib.suppress(Exception):
        TOOLS[tool](Case("warm", Warm, lambda: (normal(3),)))


# ---- judging ----


def counts(group: str, case: Case, answer: Answer) -> bool:
    """Whether a checker's answer counts: a detection if planted, a false alarm otherwise.

    A checker that grades its findings must find something at least as bad as what was planted, or
    name the fault; on a control only what it calls wrong is a false alarm.
    """
    verdict, _, graded = answer
    if verdict != "found" or not graded:
        return verdict == "found"
    if group == "sound":
        return True
    least = ORDER.index("wrong" if group == "control" else case.severity)
    strong = any(ORDER.index(weight) >= least for weight, _ in graded)
    return strong or (group == "planted" and any(name == case.fault for _, name in graded))


# ---- processes ----


def run_apart(tool: str, group: str, case: Case, *, seconds: float, gigabytes: float) -> Result:
    """Run one checker on one case in a process of its own."""
    start = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _work(tool, case, write, gigabytes)
    os.close(write)
    text, ended, cpu = _wait(child, read, start + seconds)
    taken = time.monotonic() - start

    def result(verdict: str, line: str) -> Result:
        facts = (case.fault, case.severity, case.visible)
        return Result(tool, group, case.name, *facts, verdict, round(taken, 3), round(cpu, 3), line)

    if text:
        answer = json.loads(text)
        if answer[0] == "absent":
            return result("absent", answer[1])
        return result("found" if counts(group, case, answer) else "clean", answer[1])
    # The case killed the checker. A checker that promises to survive has failed.
    if tool.startswith("pullback"):
        return result("clean", f"the checker itself {ended}")
    return result("found", f"the process {ended}")


def _work(tool: str, case: Case, write: int, gigabytes: float) -> None:
    """In the child: run, answer through the pipe, and end here whatever happens."""
    try:
        os.setsid()
        faulthandler.disable()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            answer: Any = TOOLS[tool](case)
        except Absent as reason:
            answer = ("absent", str(reason), [])
        except Exception as error:
            answer = ("clean", f"the checker failed: {type(error).__name__}: {error}"[:300], [])
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    finally:
        os._exit(1)


def _wait(child: int, read: int, end: float) -> tuple[str, str, float]:
    """What the child wrote, how it ended if it wrote nothing, and its CPU seconds."""
    parts: list[bytes] = []
    late = False
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            late = True
            break
        part = os.read(read, 65536)
        if not part:
            break
        parts.append(part)
    os.close(read)
    # The child's own processes too, if it left any.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    cpu = usage.ru_utime + usage.ru_stime
    text = b"".join(parts).decode()
    if late:
        return "", "ran out of time", cpu
    if text:
        return text, "", cpu
    number = os.waitstatus_to_exitcode(status)
    ended = f"ended by signal {-number}" if number < 0 else f"exited with {number}"
    return "", ended, cpu


# ---- tables ----


def share(results: Sequence[Result]) -> str:
    """`found/tried`, and the percentage."""
    tried = [result for result in results if result.verdict != "absent"]
    found = sum(result.verdict == "found" for result in tried)
    return f"{found}/{len(tried)} {100 * found / len(tried):.0f}%" if tried else "absent"


def together(results: Iterable[Result], tools: Sequence[str]) -> list[Result]:
    """For each case, found if any of the tools found it."""
    by_case: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.tool in tools and result.verdict != "absent":
            by_case[result.group, result.case].append(result)
    return [
        max(several, key=lambda result: result.verdict == "found") for several in by_case.values()
    ]


def report(results: Sequence[Result], console: Console) -> None:
    """Print detection per class, the totals, false alarms, and seconds."""
    tools = list(dict.fromkeys(result.tool for result in results))
    others = [tool for tool in tools if not tool.startswith("pullback")]
    columns = [(tool, [r for r in results if r.tool == tool]) for tool in tools]
    if len(others) > 1:
        columns.insert(len(others), ("all of these", together(results, others)))

    def row(table: Table, name: str, keep: Callable[[Result], bool]) -> None:
        cells = [share([r for r in column if keep(r)]) for _, column in columns]
        table.add_row(name, *cells)

    faults = sorted({result.fault for result in results if result.group == "planted"})
    if faults:
        table = _table("fault", *(name for name, _ in columns), title="Detected, per class")
        for fault in faults:
            row(table, fault, lambda r, fault=fault: r.group == "planted" and r.fault == fault)
        console.print(table)
        table = _table("planted", *(name for name, _ in columns), title="Detected")
        for severity in reversed(ORDER):
            row(
                table,
                severity,
                lambda r, severity=severity: r.group == "planted" and r.severity == severity,
            )
        row(table, "visible at the given inputs", lambda r: r.group == "planted" and r.visible)
        row(table, "hidden there", lambda r: r.group == "planted" and not r.visible)
        row(table, "all", lambda r: r.group == "planted")
        console.print(table)
    if any(result.group != "planted" for result in results):
        table = _table("group", *(name for name, _ in columns), title="False alarms")
        for group in ("sound", "control"):
            row(table, group, lambda r, group=group: r.group == group)
        console.print(table)
    table = _table("tool", "cases", "median s", "median CPU s", "95% CPU s", title="Time per case")
    for tool in tools:
        ran = [r for r in results if r.tool == tool and r.verdict != "absent"]
        if ran:
            cpu = sorted(r.cpu for r in ran)
            middles = statistics.median(r.seconds for r in ran), statistics.median(cpu)
            late = cpu[min(len(cpu) - 1, int(0.95 * len(cpu)))]
            table.add_row(tool, str(len(ran)), *(f"{s:.2f}" for s in (*middles, late)))
        else:
            absent = next((r.text for r in results if r.tool == tool), "")
            table.add_row(tool, "absent", absent, "", "")
    console.print(table)


def _table(*columns: str, title: str) -> Table:
    """A table that can be read on a terminal and pasted into a page."""
    return Table(*columns, title=f"{title}\n", title_justify="left", box=box.MARKDOWN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen tools over the chosen cases; 0 unless a name is unknown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.score", description=__doc__)
    parser.add_argument("--tools", default=",".join(USUAL), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--groups", default=",".join(GROUPS), help="planted, sound, control")
    parser.add_argument("--only", action="append", default=[], help="a case's or a class' name")
    parser.add_argument("--seconds", type=float, default=60.0, help="the limit for one run")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="the limit for one run")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("--part", default="1/1", help="K/N: score every N-th case only")
    parser.add_argument("--show", type=Path, nargs="+", help="print these kept results instead")
    parser.add_argument("--missed", action="store_true", help="list what was missed or alarmed")
    options = parser.parse_args(arguments)

    if options.show:
        results = [Result(**row) for file in options.show for row in json.loads(file.read_text())]
    else:
        results = _score(parser, options)
    if options.json:
        rows = [asdict(result) for result in results]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 200)
    if options.missed:
        for result in results:
            if result.verdict == ("clean" if result.group == "planted" else "found"):
                line = f"{result.tool} {result.group} {result.case} ({result.fault}) {result.text}"
                console.print(line.rstrip(), markup=False, highlight=False)
    report(results, console)
    return 0


def _score(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Result]:
    """Every chosen tool on every chosen case."""
    tools, groups = options.tools.split(","), options.groups.split(",")
    unknown = [name for name in tools if name not in TOOLS]
    unknown += [name for name in groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join([*TOOLS, *GROUPS])}")
    part = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", options.part)
    if part is None or int(part[1]) > int(part[2]):
        parser.error(f"--part is K/N with K from 1 to N, not {options.part!r}")
    chosen = [(group, case) for group in groups for case in GROUPS[group]()]
    if options.only:
        names = set(options.only)
        chosen = [(group, case) for group, case in chosen if {case.name, case.fault} & names]
        if not chosen:
            parser.error(f"no case is named {', '.join(options.only)}")
    chosen = chosen[int(part[1]) - 1 :: int(part[2])]

    torch.set_num_threads(1)
    results = []
    limits = {"seconds": options.seconds, "gigabytes": options.gigabytes}
    with contextlib.suppress(KeyboardInterrupt):  # what was scored so far is reported
        for tool in tools:
            warm_up(tool)
            with Console(stderr=True).status(tool) as status:
                for number, (group, case) in enumerate(chosen, 1):
                    status.update(f"{tool} {number}/{len(chosen)} {case.name}")
                    result = run_apart(tool, group, case, **limits)
                    results.append(result)
                    if result.verdict == "absent" and tool.startswith("pullback"):
                        break
    return results


if __name__ == "__main__":
    sys.exit(main())
