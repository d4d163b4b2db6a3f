"""Run some of the suite, and print a table of what is not right.

python -m tests.upstream --ops 'linalg.*,sort' --dtypes float64,complex128
python -m tests.upstream --programs 0:20 --backends inductor,native
python -m tests.upstream --reported '*casts*' --backends auto
python -m tests.upstream --count
"""

import argparse
import fnmatch
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.upstream import table
from tests.upstream.isolated import Server

SECONDS = 300


def main() -> None:
    """Print a line for each feature that is not right, or for every one, and how many there are."""
    options = _options()
    if options.count:
        _count(options)
        return
    server = Server()
    began = time.monotonic()
    count: Counter[str] = Counter()
    for work in _work(options):
        rows = table.merged(server.rows(*work, seconds=SECONDS))
        count.update(row["status"] for row in rows)
        shown = [row for row in rows if options.all or row["status"] != "right"]
        if shown:
            print(table.text(shown), flush=True)
    server.close()
    print(*(f"{count[status]} {status}" for status in reversed(table.ORDER)), sep=", ", end="")
    print(f", in {time.monotonic() - began:.0f} s")


def _options() -> Any:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.upstream", description=__doc__, formatter_class=form
    )
    parser.add_argument("--ops", default="*", help="names of ops, with *: nn.functional.*")
    parser.add_argument("--first", type=int, default=0, help="leave out so many ops")
    parser.add_argument("--dtypes", default="float64", help="float64,float32,complex128")
    parser.add_argument("--samples", type=int, default=0, help="samples of each op, at most")
    parser.add_argument("--programs", default="", help="random programs instead of ops: 0:20")
    parser.add_argument("--reported", default="", help="reported programs instead, with *")
    parser.add_argument("--backends", default="", help="compiled instead: inductor,native,auto")
    parser.add_argument("--layouts", type=int, default=2, help="layouts besides the plain one")
    parser.add_argument("--all", action="store_true", help="print what is right, too")
    parser.add_argument("--count", action="store_true", help="only say how much there is to run")
    return parser.parse_args()


def _work(options: Any) -> Iterator[tuple[Any, ...]]:
    """The pieces of work that are asked for."""
    backends = options.backends.split(",") if options.backends else []
    if options.programs:
        first, _, end = options.programs.partition(":")
        for seed in range(int(first), int(end or int(first) + 1)):
            if not backends:
                yield "program", seed
            yield from (("compiled program", seed, b, options.layouts) for b in backends)
        return
    from tests.upstream.cases import SAMPLES
    from tests.upstream.reported import PROGRAMS

    if options.reported:
        for name in fnmatch.filter(PROGRAMS, options.reported):
            if not backends:
                yield "reported", name
            yield from (("compiled reported", name, b, options.layouts) for b in backends)
        return
    for name, dtypes in _ops(options):
        if backends:
            yield from (("compiled op", name, b, options.layouts) for b in backends)
            continue
        yield from (("op", name, dtype, options.samples or SAMPLES[dtype]) for dtype in dtypes)


def _ops(options: Any) -> list[tuple[str, list[str]]]:
    """The ops that are asked for, and for each its dtypes."""
    from tests.upstream.cases import dtypes_of, ops

    patterns, asked = options.ops.split(","), options.dtypes.split(",")
    rows = [
        (name, [dtype for dtype in dtypes_of(op) if dtype in asked])
        for name, op in list(ops().items())[options.first :]
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]
    if not rows:
        sys.exit(f"no op is called {options.ops}")
    return rows


def _count(options: Any) -> None:
    """Print how many ops and samples there are in each dtype."""
    from tests.upstream.cases import SAMPLES, cases_of, ops

    for dtype in options.dtypes.split(","):
        names = [name for name, dtypes in _ops(options) if dtype in dtypes]
        limit = options.samples or SAMPLES[dtype]
        samples = sum(len(cases_of(ops()[name], dtype, limit)) for name in names)
        print(f"{dtype}: {len(names)} ops, {samples} samples", flush=True)


if __name__ == "__main__":
    main()
