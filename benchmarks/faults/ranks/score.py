"""How many faults across ranks are named for their reason, and how often sound ones are blamed.

python -m benchmarks.faults.ranks.score --ranks 2 --references
python -m benchmarks.faults.ranks.score --only Ring --ranks 4
python -m benchmarks.faults.ranks.score --set systems --ranks 2 --ranks 4
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import pullback as pb
from benchmarks.faults.ranks import (
    branches,
    frameworks,
    layers,
    meshes,
    planted,
    sound,
    systems,
    trainers,
)
from benchmarks.faults.ranks.case import RankCase

WRITTEN = (frameworks, layers, meshes, branches, trainers, systems)  # before they were run
SETS = {module.__name__.rpartition(".")[2]: module for module in WRITTEN}
GROUPS = {
    "sound": [*sound.CASES, *(case for module in WRITTEN for case in module.SOUND)],
    "planted": [*planted.CASES, *(case for module in WRITTEN for case in module.PLANTED)],
}


def worked() -> float:
    """The processor seconds of this process and of the ranks that it has ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    spent = [resource.getrusage(one) for one in who]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def score(
    case: RankCase, ranks: int, *, has_reference: bool
) -> tuple[bool, tuple[float, float], list[str]]:
    """Whether the check says what it must, its seconds and processor seconds, and the rules."""
    start, before = time.monotonic(), worked()
    report = pb.check(
        case.target,
        case.inputs,
        ranks=ranks,
        placements=dict(case.placements) or None,
        reference=case.reference if has_reference else None,
    )
    names = [finding.rule.name for finding in report.findings]
    failed = [
        str(skip)
        for skip in report.skips
        if "the check itself failed" in skip.reason or "cannot be compared" in skip.reason
    ]
    is_right = any(name in case.rules for name in names) if case.rules else not names
    spent = time.monotonic() - start, worked() - before
    return is_right and not failed, spent, [*names, *failed]


def main() -> int:
    """Score every case, and print what is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--set", choices=tuple(SETS), help="one set of those that were written first"
    )
    parser.add_argument("--references", action="store_true", help="give the references as well")
    parser.add_argument("--group", choices=tuple(GROUPS))
    parser.add_argument("--each", action="store_true", help="print every case and its seconds")
    options = parser.parse_args()
    wrong = 0
    for ranks in options.ranks or [2]:
        for group, cases in GROUPS.items():
            if options.group not in (None, group):
                continue
            chosen = [
                case
                for case in cases
                if options.only in case.name
                and (options.set is None or case in SETS[options.set].CASES)
                and case.least <= ranks
                and (options.references or not case.needs_reference)
            ]
            if not chosen:
                continue
            times = []
            right = 0
            for case in chosen:
                is_right, spent, names = score(case, ranks, has_reference=options.references)
                times.append(spent)
                right += is_right
                if options.each:
                    print(
                        f"    {case.name}: {spent[0]:.1f} s, of processors {spent[1]:.1f} s",
                        flush=True,
                    )
                if not is_right:
                    wrong += 1
                    wanted = " or ".join(case.rules) or "nothing"
                    print(f"  {case.name} on {ranks} ranks: {wanted}, got {names or 'nothing'}")
            told = "; ".join(
                f"{what}: median {sorted(one)[len(one) // 2]:.1f} s, most {max(one):.1f} s"
                for what, one in zip(
                    ("time", "of processors"), zip(*times, strict=True), strict=True
                )
            )
            print(f"{group} on {ranks} ranks: {right} of {len(chosen)} as they must be; {told}")
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
