"""Every attack against `pb.judge`, and against a plain harness of `allclose` and a timer.

    python -m benchmarks.judged_attacks            # those that need no GPU
    python -m benchmarks.judged_attacks --gpu      # those that need one
    python -m benchmarks.judged_attacks NAME ...   # some of them

The plain harness is what most tasks come with: both on the same tensors (the reference first, or
the candidate: it is enough if one of the two orders agrees), `allclose`, then the same call again
and again between two looks at the clock.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.attacks import TABLE, Attack

FOLDER = Path(__file__).parent / "attacks"
REFERENCE = "reference"

PLAIN = """
import sys, time, torch
from pullback.check.target.naming import load
candidate, reference = load(sys.argv[1]), load(sys.argv[2])
x, w = load(sys.argv[3])()
def is_right(candidate_first):
    if candidate_first:
        got = candidate(x, w)
    expected = reference(x, w).clone()
    if not candidate_first:
        got = candidate(x, w)
    return torch.allclose(got.float(), expected.float(), rtol=1e-2, atol=1e-2)
right = is_right(False) or is_right(True)
def timed(call):
    for _ in range(5):
        call(x, w)
    wait = torch.cuda.synchronize if x.is_cuda else (lambda: None)
    wait()
    start = time.perf_counter()
    for _ in range(300):
        call(x, w)
    if x.is_cuda:
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - start
if right:
    theirs = timed(reference)
    print("accepted", round(theirs / timed(candidate), 2))
else:
    print("refused")
"""


def plain_verdict(candidate: str, reference: str, examples: str) -> str:
    """What the plain harness says: "refused", or "accepted" with its speed-up."""
    command = [sys.executable, "-c", PLAIN, candidate, reference, examples]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return run.stdout.strip().splitlines()[-1] if run.returncode == 0 else "crashed"


def names_of(attack: Attack) -> tuple[str, str, str, str]:
    """Candidate, sound one, reference and examples, as targets."""
    file = FOLDER / attack.file
    suffix = "" if attack.file == "cpu.py" else "_gpu"
    source = FOLDER / "reference.py"
    examples = f"{source}:examples{suffix}"
    return f"{file}:{attack.name}", f"{file}:{attack.sound}", f"{source}:reference", examples


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit code is 0 where all is as it should be."""
    import pullback as pb

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU")
    parser.add_argument("--check", action="store_true", help="with `pb.check`, too")
    parser.add_argument("--seconds", type=float, help="how long to time each")
    parser.add_argument("--no-plain", action="store_true", help="without the plain harness")
    parser.add_argument("--rounds", type=int, metavar="N", help="only the first N of them")
    options = parser.parse_args(argv)
    wanted = [a for a in TABLE if (a.file == "gpu.py") == options.gpu]
    wanted = [a for a in wanted if not options.names or a.name in options.names]
    wanted = wanted[: options.rounds]
    if not wanted:
        parser.error("no such attack")
    *_, reference, examples = names_of(wanted[0])
    targets = [names_of(a)[0] for a in wanted]
    sound = list(dict.fromkeys(names_of(a)[1] for a in wanted))
    settings = {"compiled": False, "check": options.check, "seconds": options.seconds}
    verdicts = {}
    seconds = []
    start = time.perf_counter()
    for verdict in pb.judge_all([*targets, *sound], reference, examples, **settings):
        verdicts[verdict.candidate] = verdict
        seconds.append(time.perf_counter() - start)
        print(f"{seconds[-1]:.1f} s\n{verdict}", file=sys.stderr, flush=True)
        start = time.perf_counter()
    faults = 0
    print("| attack | plain harness | pb.judge | sound counterpart |")
    print("|---|---|---|---|")
    for attack in wanted:
        target, counterpart, *_ = names_of(attack)
        verdict, other = verdicts[target], verdicts[counterpart]
        every = [finding.rule.name for finding in verdict.findings]
        caught = attack.finding in every
        silent = other.ok
        faults += (not caught) + (not silent)
        plain = "-" if options.no_plain else plain_verdict(target, reference, examples)
        named = ", ".join(every) if every else "nothing"
        quiet = "nothing found" if silent else ", ".join(other.names())
        print(f"| {attack.name} | {plain} | {named} | {attack.sound}: {quiet} |", flush=True)
    print(
        f"\n{len(wanted)} attacks, {len(sound)} sound: {faults} not as they should be; "
        f"{max(seconds):.1f} s at most for a candidate."
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
