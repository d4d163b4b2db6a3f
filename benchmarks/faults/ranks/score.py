"""How many faults across ranks are named for their reason, and how often sound ones are blamed.

python -m benchmarks.faults.ranks.score --ranks 2 --references
python -m benchmarks.faults.ranks.score --only Ring --ranks 4
"""

from __future__ import annotations

import argparse
import sys
import time

import pullback as pb
from benchmarks.faults.ranks import frameworks, planted, sound
from benchmarks.faults.ranks.case import RankCase

GROUPS = {
    "sound": [*sound.CASES, *frameworks.SOUND],
    "planted": [*planted.CASES, *frameworks.PLANTED],
}


def score(case: RankCase, ranks: int, *, has_reference: bool) -> tuple[bool, float, list[str]]:
    """Whether the check says what it must, in how many seconds, and the rules that it names."""
    start = time.monotonic()
    report = pb.check(
        case.target,
        case.inputs,
        ranks=ranks,
        placements=dict(case.placements) or None,
        reference=case.reference if has_reference else None,
    )
    names = [finding.rule.name for finding in report.findings]
    failed = [str(s) for s in report.skips if "the check itself failed" in s.reason]
    is_right = any(name in case.rules for name in names) if case.rules else not names
    return is_right and not failed, time.monotonic() - start, [*names, *failed]


def main() -> int:
    """Score every case, and print what is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--only", default="")
    parser.add_argument("--references", action="store_true", help="give the references as well")
    parser.add_argument("--group", choices=tuple(GROUPS))
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
                and case.least <= ranks
                and (options.references or not case.needs_reference)
            ]
            if not chosen:
                continue
            times = []
            right = 0
            for case in chosen:
                is_right, seconds, names = score(case, ranks, has_reference=options.references)
                times.append(seconds)
                right += is_right
                if not is_right:
                    wrong += 1
                    wanted = " or ".join(case.rules) or "nothing"
                    print(f"  {case.name} on {ranks} ranks: {wanted}, got {names or 'nothing'}")
            told = f"median {sorted(times)[len(times) // 2]:.1f} s, most {max(times):.1f} s"
            print(f"{group} on {ranks} ranks: {right} of {len(chosen)} as they must be; {told}")
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
