"""What `pb.check` says of functions whose authors did not see the checker.

python -m benchmarks.blind                       # all of them, and the table
python -m benchmarks.blind --only sound/losses   # some
python -m benchmarks.blind --json results.json   # what was found, to be read
python -m benchmarks.blind --show results.json   # the table of that again

A module of `faulty/` or `sound/` may have a list `CASES`: `target`, `inputs` (makes them), and what
the author says of it: `fault`, `kind` (wrong, fragile or wasteful), `visible`, `evidence`; or
`declares` and `note`. A fault counts as found where the report has a finding that is as bad as the
fault, or worse. An alarm is a finding on a sound function that is called wrong or fragile.
"""

import argparse
import importlib
import json
import pkgutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import pullback as pb

FOLDER = Path(__file__).parent
ORDER = ("wasteful", "fragile", "wrong")

Row = dict[str, Any]


def cases(folder: Path, only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case of a set with its name, such as `faulty/losses:dice_loss`."""
    for group in ("faulty", "sound"):
        modules = sorted(info.name for info in pkgutil.iter_modules([str(folder / group)]))
        for module in modules:
            if module in ("verify", "support") or only not in f"{group}/{module}":
                continue
            # By its own name, as its author runs it.
            sys.path.insert(0, str(folder / group))
            for name in modules:
                sys.modules.pop(name, None)
            loaded = importlib.import_module(module)
            sys.path.pop(0)
            lists = (getattr(loaded, name, ()) for name in ("CASES", "EXTRA_CASES"))
            for case in (case for cases in lists for case in cases):
                yield f"{group}/{module}:{case['name']}", case


def row_of(name: str, case: dict[str, Any], profile: str) -> Row:
    """What the checker says of one case."""
    start = time.process_time() + _children()
    row: Row = {"name": name, "kind": case.get("kind", ""), "about": case.get("fault", "")}
    torch.manual_seed(0)
    try:
        options = {"declares": case["declares"]} if case.get("declares") else {}
        report = pb.check(case["target"], case["inputs"](), profile=profile, **options)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {error}", "findings": [], "seconds": 0.0}
    findings = [
        {"rule": f"{f.rule.code} {f.rule.name}", "severity": str(f.weight), "text": str(f)}
        for f in report.findings
    ]
    seconds = time.process_time() + _children() - start
    return row | {"findings": findings, "seconds": seconds, "notes": list(report.notes)}


def _children() -> float:
    import resource  # not on every system

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---- the table ----


def is_found(row: Row) -> bool:
    """Whether a finding is as bad as the fault, or worse."""
    least = ORDER.index(row["kind"])
    return any(ORDER.index(f["severity"]) >= least for f in row["findings"])


def alarms(row: Row) -> list[str]:
    """The rules that call a sound function wrong or fragile."""
    return [f["rule"] for f in row["findings"] if f["severity"] != "wasteful"]


def table(rows: list[Row]) -> str:
    """How many were found, which were missed, and the alarms."""
    faulty = [row for row in rows if row["kind"]]
    sound = [row for row in rows if not row["kind"]]
    lines = []
    for kind in reversed(ORDER):
        some = [row for row in faulty if row["kind"] == kind]
        if some:
            lines.append(f"{kind}: {sum(map(is_found, some))} of {len(some)} found")
    if faulty:
        lines.append(f"all faults: {sum(map(is_found, faulty))} of {len(faulty)} found")
    if sound:
        loud = [row for row in sound if alarms(row)]
        lines.append(f"sound: {len(loud)} of {len(sound)} with an alarm")
        waste = [row for row in sound if row["findings"] and not alarms(row)]
        lines.append(f"sound: {len(waste)} more are called wasteful")
    seconds = [row["seconds"] for row in rows]
    if seconds:
        last = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
        lines.append(f"CPU seconds: {statistics.median(seconds):.2f} median, {last:.2f} at 95 %")
    lines += [f"missed: {row['name']}: {row['about']}" for row in faulty if not is_found(row)]
    lines += [f"alarm: {row['name']}: {', '.join(alarms(row))}" for row in sound if alarms(row)]
    lines += [f"not checked: {row['name']}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines)


def main() -> int:
    """Check the cases, print the table; the exit code says whether it is clean."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", default="", help="of later authors: second, third")
    parser.add_argument("--only", default="", help="a part of the names of modules")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path)
    asked = parser.parse_args()
    rows: list[Row] = []
    if asked.show:
        rows = json.loads(asked.show.read_text("utf-8"))
    else:
        for name, case in cases(FOLDER / asked.set, asked.only):
            rows.append(row_of(name, case, asked.profile))
            print(name, *(f["rule"] for f in rows[-1]["findings"]), sep="  ", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))
    is_clean = all(is_found(r) if r["kind"] else not alarms(r) for r in rows)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
