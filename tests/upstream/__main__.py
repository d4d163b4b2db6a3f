"""Run the suite over some ops, and print a table: `python -m tests.upstream --ops 'linalg.*'`."""

import argparse
import fnmatch
import time
from collections import Counter

from tests.upstream.cases import dtypes_of, ops
from tests.upstream.isolated import Server
from tests.upstream.table import merged, text

SECONDS = 120


def main() -> None:
    """Print a row for each feature that is not right, or for every one."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("--ops", default="*", help="names of ops, with *: nn.functional.*")
    parser.add_argument("--dtypes", default="float64", help="float64,float32,complex128")
    parser.add_argument("--samples", type=int, default=3, help="samples of each op, at most")
    parser.add_argument("--first", type=int, default=0, help="leave out so many ops")
    parser.add_argument("--all", action="store_true", help="print what is right, too")
    options = parser.parse_args()
    server = Server()
    began = time.monotonic()
    count: Counter[str] = Counter()
    for name, op in list(ops().items())[options.first :]:
        if not any(fnmatch.fnmatch(name, one) for one in options.ops.split(",")):
            continue
        for dtype in [d for d in dtypes_of(op) if d in options.dtypes.split(",")]:
            rows = merged(server.rows("op", name, dtype, options.samples, seconds=SECONDS))
            count.update(row["status"] for row in rows)
            shown = [row for row in rows if options.all or row["status"] != "right"]
            if shown:
                print(text(shown), flush=True)
    server.close()
    print(*(f"{n} {status}" for status, n in count.items()), sep=", ", end="")
    print(f" in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
