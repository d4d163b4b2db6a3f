"""Candidates: a kernel against its reference: is it right, how much faster is it, is it honest?

`pb.judge` stands here and imports what it needs when it is called. A candidate runs in a process of
its own, in which nothing else runs: the reference is called, and results are compared, in another.

- `judging`, `case`: the order of events, in the process that asks, which holds seed and clock.
- `host`: a warm process from which both others are forked, one candidate after the other.
- `candidate`: what happens in the candidate's process. `referee`: what happens beside it.
- `trials`: inputs that nobody can foresee. `comparing`: how far results may be apart.
- `timing`: times, and the intervals of their ratios. `limits`: what the machine can do.
- `tampering`: functions of PyTorch and Python that were replaced.
- `rules`, `reasons`: what can be found, and how it is recognised. `verdict`: the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

# The folder of that name is loaded first: Python then leaves `pullback.judge`, the function, alone.
import pullback.judge  # noqa: F401

if TYPE_CHECKING:
    from pullback.candidates.verdict import Verdict


def judge(
    candidate: object,
    reference: Callable[..., Any] | str,
    inputs: object = None,
    *,
    gradients: bool | None = None,
    seed: int | None = None,
    check: bool = True,
    compiled: bool = True,
    cold: bool = True,
    seconds: float | None = None,
    profile: str = "standard",
) -> Verdict:
    """A `Verdict` on `candidate`: is it right, honest, and how much faster than its reference?

    Arguments:
        candidate: a Function, a callable, or the name of one: "file.py:name".
        reference: a plain PyTorch function of the same arguments, or the name of one.
        inputs: a tuple of arguments, or a function that gives one.
        gradients: whether backward is judged; left out, where the candidate has one.
        seed: of the inputs that are drawn; left out, one that nobody can foresee.
        check: whether `pb.check` is asked as well.
        compiled: whether `torch.compile` of the reference is timed beside it.
        cold: whether caches are emptied before each call that is timed.
        seconds: for the measuring of times.
        profile: that of `pb.check`.

    >>> verdict = judge("kernel.py:softmax", "plain.py:softmax", (x,))  # doctest: +SKIP
    >>> verdict.right, verdict.honest, verdict.speedup  # doctest: +SKIP
    """
    (verdict,) = judge_all(
        [candidate],
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
    return verdict


def judge_all(
    candidates: Iterable[Any],
    reference: Callable[..., Any] | str,
    inputs: object = None,
    **options: object,
) -> Iterator[Verdict]:
    """One `Verdict` after the other, by one warm worker; `options` are those of `judge`.

    >>> for verdict in judge_all(["a.py:f", "b.py:f"], "plain.py:f"):  # doctest: +SKIP
    ...     print(verdict.right, verdict.speedup)
    """
    from pullback.candidates.judging import judge_all as run  # heavy

    return run(candidates, reference, inputs, **options)
