"""Candidates: a kernel against its reference: is it right, how much faster is it, is it honest?

`pb.judge` stands here and imports what it needs when it is called. A candidate runs in a process of
its own, in which nothing else runs: the reference is called, and results are compared, in another.

- `judging`, `case`: the order of events, in the process that asks, which holds seed and clock.
- `host`: a warm process from which both others are forked, one candidate after the other.
- `candidate`: what happens in the candidate's process. `referee`: what happens beside it.
- `trials`: inputs that nobody can foresee. `comparing`: how far results may be apart.
- `timing`: times, and the intervals of their ratios. `limits`: what the machine can do.
- `tampering`: functions of PyTorch and Python that were replaced.
- `rules`, `reasons`: what can be found, and by what it is told. `verdict`: the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

# The folder of that name is loaded first: Python then leaves `pullback.judge`, the function, alone.
import pullback.judge  # noqa: F401

if TYPE_CHECKING:
    from pullback.candidates.verdict import Verdict


def judge(
    candidate: Any,
    reference: Callable[..., Any] | str,
    inputs: Any = None,
    *,
    gradients: bool | None = None,
    seed: int | None = None,
    check: bool = True,
    compiled: bool = True,
    cold: bool = True,
    seconds: float | None = None,
    profile: str = "standard",
) -> Verdict:
    """A `Verdict` on `candidate`: see `candidates.judging.judge`."""
    from pullback.candidates.judging import judge as run  # heavy

    return run(
        candidate,
        reference,
        inputs,
        gradients=gradients,
        seed=seed,
        check=check,
        compiled=compiled,
        cold=cold,
        seconds=seconds,
        profile=profile,
    )


def judge_all(
    candidates: Iterable[Any],
    reference: Callable[..., Any] | str,
    inputs: Any = None,
    **options: Any,
) -> Iterator[Verdict]:
    """One `Verdict` after the other, by one warm worker: see `candidates.judging.judge_all`."""
    from pullback.candidates.judging import judge_all as run

    return run(candidates, reference, inputs, **options)
