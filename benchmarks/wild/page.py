"""`docs/wild.md`, made from the results: what one finds in public code, per rule.

The page speaks of rules and of counts. Packages are listed for what was taken from them; nothing on
it says which of them has which finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.wild import gpu, verdicts
from benchmarks.wild.install import ROOT
from benchmarks.wild.packages import PACKAGES
from benchmarks.wild.results import Result, read
from benchmarks.wild.table import SERIOUS, Counts, Known, count
from benchmarks.wild.verdicts import KINDS

PAGE = ROOT / "docs" / "wild.md"
GPU_VERDICTS = ROOT / "benchmarks" / "wild" / "verdicts_gpu.json"
FIRST = ROOT / "benchmarks" / "results" / "wild_first.json"

HEAD = """\
# What the checker finds in public code

<!-- Made by `python -m benchmarks.wild`: do not edit by hand. -->

The checker is meant for code that its authors never saw. So it is run over packages of PyPI: their
custom autograd Functions, with small inputs of the kind that their own tests and examples use. Each
finding has a verdict, and each verdict a run that settles it without the checker: finite
differences, the same in float64, PyTorch's own operator, or the few lines of plain PyTorch that a
finding comes with.

- *true*: the Function does what the finding says, and its author would want to know.
- *arguable*: it does so on purpose, or whether it should depends on what it promises.
- *false*: it does not, or only at inputs that nobody can pass.

Most of what is found is not a wrong formula. A formula that is wrong at the first input does not
survive long; what survives is wrong for a frozen parameter, in another dtype, at another layout, or
the second time.
"""

TAIL = """\
## Run it

```
python -m benchmarks.wild                     # install, check, print the table, write this page
python -m benchmarks.wild --only sparsemax    # some of it
python -m benchmarks.wild.settle              # every verdict again, by the run that settled it
```

The packages go into a folder of their own, in pinned versions; nothing of theirs is in this
repository. Many of the Functions are surrogates (a step in forward and a smooth curve in backward):
the checker says so in a note, and goes on with what must hold for them too.
"""


def write(results: Sequence[Result], known: Known, path: Path = PAGE) -> None:
    """Write the page."""
    path.write_text(text(results, read(FIRST), known))


def text(results: Sequence[Result], first: Sequence[Result], known: Known) -> str:
    """The page, of the results now and at first sight."""
    now, before = count(results, known), count(first, known)
    stale = len(set(results) & set(first))
    figures = _figures(before, now) + _left(stale, len(results))
    kernels = on_gpu(gpu.read(), verdicts.read(GPU_VERDICTS))
    parts = [HEAD, figures, _per_rule(now), _defects(before, now), kernels, _packages(), TAIL]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def on_gpu(results: Sequence[gpu.Checked], known: Known) -> str:
    """What is found in Functions that run Triton kernels on a GPU; nothing where none was run."""
    if not results:
        return ""
    whole = [one for one in results if one.is_whole]
    lost = sum(not one.survived for one in results)
    times = sorted(one.seconds for one in whole) or [0.0]
    rules: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        for found in result.found:
            verdict = known.get((result.subject, found.rule, found.place))
            kinds = rules.setdefault((found.rule, found.name), Counter())
            kinds[verdict.verdict if verdict else "open"] += 1
    packages = ", ".join(sorted({one.subject.partition(":")[0] for one in results}))
    lines = [
        "## On a GPU",
        "",
        f"{len(results)} Functions of {packages}, which run Triton kernels, each with a plain "
        f"reference, in float32 on an H200 (`python -m benchmarks.wild.gpu`): {len(whole)} were "
        f"checked to their end, and {lost} of the callers lost their GPU. Seconds per Function: "
        f"{times[len(times) // 2]:.0f} in the median, {times[-1]:.0f} at most, with several "
        "processes on one GPU. *Open* are findings that nobody has judged yet.",
        "",
        "| rule | true | arguable | false | open |",
        "|---|---|---|---|---|",
    ]
    for (code, name), kinds in sorted(rules.items()):
        cells = " | ".join(str(kinds[kind] or "") for kind in (*KINDS, "open"))
        lines.append(f"| {code} [{name}](rules/{name}.md) | {cells} |")
    return "\n".join(lines)


def _figures(before: Counts, now: Counts) -> str:
    """The totals at first sight and now."""
    rows = [
        ("packages", lambda c: str(c.packages)),
        ("Functions and ops checked", lambda c: str(c.subjects)),
        ("could not be checked", lambda c: str(c.failed)),
        ("with no finding", lambda c: str(c.clean)),
        *((f"wrong and fragile findings: {k}", lambda c, k=k: _serious(c, k)) for k in KINDS),
        ("wasteful findings", lambda c: str(_wasteful(c))),
        ("fixes that would break what is right", lambda c: str(c.destructive)),
        (
            "known defects that are named by their cause",
            lambda c: f"{len(c.named)} of {len(c.named) + len(c.missed)}",
        ),
        ("CPU seconds per Function, median", lambda c: f"{c.median:.1f}"),
        ("CPU seconds per Function, 95th percentile", lambda c: f"{c.high:.1f}"),
    ]
    lines = ["## In figures", "", "| | at first sight | now |", "|---|---|---|"]
    lines += [f"| {name} | {figure(before)} | {figure(now)} |" for name, figure in rows]
    lines += ["", "*First sight* is the run before anything was fixed because of it."]
    return "\n".join(lines)


def _left(stale: int, every: int) -> str:
    """How much was not run again, where only part was."""
    if not 0 < stale < every:
        return ""
    return f" {stale} of the {every} were not run again since, and count now as they did then."


def _serious(counts: Counts, kind: str) -> str:
    chosen = [kinds for (_, _, weight), kinds in counts.rules.items() if weight in SERIOUS]
    found, every = sum(k[kind] for k in chosen), sum(sum(k.values()) for k in chosen)
    return f"{found} ({100 * found / every:.0f} %)" if every else "0"


def _wasteful(counts: Counts) -> int:
    return sum(
        sum(kinds.values())
        for (_, _, weight), kinds in counts.rules.items()
        if weight == "wasteful"
    )


def _per_rule(now: Counts) -> str:
    """How often each rule speaks, and how it was judged."""
    together: dict[tuple[str, str], Counter[str]] = {}
    for (code, name, _), kinds in now.rules.items():
        together.setdefault((code, name), Counter()).update(kinds)
    ranked = sorted(together.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    lines = ["## Per rule", "", "| rule | true | arguable | false |", "|---|---|---|---|"]
    for (code, name), kinds in ranked:
        cells = " | ".join(str(kinds[kind] or "") for kind in KINDS)
        lines.append(f"| {code} [{name}](rules/{name}.md) | {cells} |")
    return "\n".join(lines)


def _defects(before: Counts, now: Counts) -> str:
    """What is known to be wrong, by kind, and what of it is still missed."""
    listed = (*now.named, *now.missed)
    if not listed:
        return ""
    lines = [
        "## Known defects",
        "",
        f"{len(listed)} defects were established without the checker, by reading and by "
        f"independent runs; {len(before.named)} were named at first sight, "
        f"{len(now.named)} are now.",
    ]
    if now.missed:
        kinds = Counter(defect.what for defect in now.missed)
        lines += ["", "Still missed:", ""]
        lines += [f"- {what}" + (f" ({n} times)" if n > 1 else "") for what, n in kinds.items()]
    return "\n".join(lines)


def _packages() -> str:
    lines = ["## The packages", ""]
    lines += [f"- {p.name} {p.version}: {p.why}" for p in sorted(PACKAGES, key=lambda p: p.name)]
    return "\n".join(lines)
