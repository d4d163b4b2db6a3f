"""Run the suite over some ops, and print a table: `python -m tests.upstream --ops 'linalg.*'`."""

import argparse
import fnmatch
import time

from tests.upstream.cases import dtypes_of, ops
from tests.upstream.isolated import Server

SECONDS = 120


def main() -> None:
    """Print a row for each feature that is not right, or for every one."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("--ops", default="*", help="names of ops, with *: nn.functional.*")
    parser.add_argument("--dtypes", default="float64", help="float64,float32,complex128")
    parser.add_argument("--samples", type=int, default=3, help="samples of each op, at most")
    parser.add_argument("--all", action="store_true", help="print what is right, too")
    options = parser.parse_args()
    server = Server()
    began = time.monotonic()
    count: dict[str, int] = {}
    for name, op in ops().items():
        if not any(fnmatch.fnmatch(name, one) for one in options.ops.split(",")):
            continue
        for dtype in set(dtypes_of(op)) & set(options.dtypes.split(",")):
            for row in server.rows("op", name, dtype, options.samples, seconds=SECONDS):
                count[row["status"]] = count.get(row["status"], 0) + 1
                if options.all or row["status"] != "right":
                    print(*row.values(), sep=" | ", flush=True)
    server.close()
    print(count, f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
