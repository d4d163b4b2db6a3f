"""What is said of each target, one after the other or several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pullback.check.findings.report import Report
from pullback.check.processes.isolate import why_no_fork
from pullback.check.target.target import Target
from pullback.cli.baseline import Checked
from pullback.cli.identity import Identity
from pullback.cli.spread import Lost, in_processes
from pullback.errors import PullbackError, TargetError
from pullback.report.outcome import Failure

Found = tuple[Identity, Target]


def checked_targets(
    found: Sequence[Found],
    check: Callable[[Identity, Target], Report | PullbackError],
    jobs: int,
    errors: list[Failure],
) -> Iterator[Checked]:
    """The reports, in the order of the targets; what keeps one from being checked is an error.

    Where this process cannot be forked, as when it uses a GPU, one comes after the other.
    """
    if jobs > 1 and len(found) > 1 and not why_no_fork():
        results: Iterator[Any] = in_processes(lambda n: check(*found[n]), len(found), jobs)
    else:
        results = (check(*one) for one in found)
    for (identity, _), result in zip(found, results, strict=False):
        if isinstance(result, Lost):
            result = TargetError(
                f"`{identity.name}` must be something that a process can check to its end",
                got=f"the process was lost: {result.how}",
            )
        if isinstance(result, PullbackError):
            errors.append((identity.name, result))
            continue
        yield Checked(identity, result)
        if result.interrupted and jobs == 1:
            return
