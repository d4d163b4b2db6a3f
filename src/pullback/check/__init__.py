"""Check: every way a custom function can be wrong or fragile, found and explained.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pullback.errors import UnsoundError

if TYPE_CHECKING:
    from pullback.check.findings.report import Report
    from pullback.check.options import Progress
    from pullback.check.recordings.recorded import Recording


def check(
    target: object,
    inputs: object = None,
    *,
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    profile: str = "standard",
    declares: Mapping[str, object] | None = None,
    reference: Callable[..., object] | None = None,
    domain: object = None,
    isolate: bool = True,
    seconds: float | None = None,
    ranks: int | None = None,
    placements: Mapping[str, object] | None = None,
    sanitize: bool = False,
    progress: Progress | None = None,
) -> Report:
    """What is wrong or fragile about a custom function: each defect once, with a reason and a fix.

    Arguments:
        target: a Function class, a callable, a custom op, a module, or the name of one:
            "package.module:Name". Of a module, its parameters are checked, and every Function
            inside.
        inputs: a tuple of arguments, a list of such tuples, or a function without arguments that
            gives one of these; left out, `target.examples` is asked.
        select: only these rules: names, codes or groups, as `pullback explain` lists them.
        allow: not these rules.
        profile: how much to try: "quick", "standard" or "deep".
        declares: what is meant, as the attribute of that name says on a class:
            `{"surrogate": "x"}` for a gradient that is not forward's on purpose.
        reference: a plain function of the same arguments, whose outputs and gradients are right.
        domain: what the arguments may be, such as `{"a": "symmetric", "x": {"min_value": 0}}`.
        isolate: whether the rules run in processes of their own, so that a crash is a finding.
        seconds: after this long no other rule is begun, and the report names those not tried.
        ranks: how many processes to check a Function across that communicates.
        placements: what the values of the ranks are to each other.
        sanitize: whether the call runs once more under NVIDIA's compute-sanitizer.
        progress: called with the name of each rule, its number and how many there are.

    >>> import torch
    >>> class Square(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_tensors
    ...         return 3 * x * gradient
    >>> report = check(Square, (torch.ones(3),), select=["gradient"])
    >>> [finding.rule.name for finding in report.findings]
    ['wrong-factor']
    """
    if ranks is not None:
        from pullback.check.ranks.early import load_without_group

        load_without_group()
    from pullback.check.options import CheckOptions  # heavy, as is what follows
    from pullback.check.runner import checked

    options = CheckOptions(
        select=select,
        allow=allow,
        profile=profile,
        declares=declares,
        reference=reference,
        domain=domain,
        isolate=isolate,
        seconds=seconds,
        ranks=ranks,
        placements=placements,
        sanitize=sanitize,
        progress=progress,
    )
    return checked(target, inputs, options)


def assert_sound(
    target: object,
    inputs: object = None,
    *,
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    profile: str = "standard",
    declares: Mapping[str, object] | None = None,
    reference: Callable[..., object] | None = None,
    domain: object = None,
    isolate: bool = True,
    ranks: int | None = None,
    placements: Mapping[str, object] | None = None,
) -> None:
    """Raise `UnsoundError` with every finding about `target`, if there is any: for tests.

    The arguments are those of `check`.

    >>> import torch
    >>> assert_sound(torch.sin, (torch.ones(3),), profile="quick")
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    report = check(
        target,
        inputs,
        select=select,
        allow=allow,
        profile=profile,
        declares=declares,
        reference=reference,
        domain=domain,
        isolate=isolate,
        ranks=ranks,
        placements=placements,
    )
    if not report.ok:
        raise UnsoundError(
            f"`{report.subject}` must have no finding",
            got=f"{len(report.findings)}\n\n{report}",
        )


def recording(**options: int) -> AbstractContextManager[Recording]:
    """A context that records the Functions and custom ops which this thread calls in it.

    Arguments:
        kinds: how many calls of one class to keep, of different shapes, dtypes or plain arguments.
        limit: how many bytes of tensors to keep in all.

    >>> import torch
    >>> class Twice(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return 2 * gradient
    >>> with recording() as recorded:
    ...     y = Twice.apply(torch.ones(3, requires_grad=True))
    >>> recorded.check(profile="quick").ok
    True
    """
    from pullback.check.recordings.recorded import Recording  # it imports the checker

    return Recording(**options).watching()
