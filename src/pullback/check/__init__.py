"""Check: every way a custom function can be wrong or fragile, found and explained.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pullback.check.recorded import Recording
    from pullback.check.report import Report
    from pullback.check.runner import Progress


def check(
    target: Any,
    inputs: Any = None,
    *,
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    profile: str = "standard",
    declares: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    domain: Any = None,
    isolate: bool = True,
    seconds: float | None = None,
    ranks: int | None = None,
    placements: Mapping[str, Any] | None = None,
    sanitize: bool = False,
    progress: Progress | None = None,
) -> Report:
    """A `Report` on `target` at `inputs`: see `check.runner`."""
    from pullback.check.runner import check as run  # heavy

    return run(
        target,
        inputs,
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


def assert_sound(
    target: Any,
    inputs: Any = None,
    *,
    select: Sequence[str] = (),
    allow: Sequence[str] = (),
    profile: str = "standard",
    declares: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    domain: Any = None,
    isolate: bool = True,
    ranks: int | None = None,
    placements: Mapping[str, Any] | None = None,
) -> None:
    """Raise with every finding about `target`, if there is any: see `check.runner`."""
    __tracebackhide__ = True  # pytest then shows the line of the test
    from pullback.check.runner import assert_sound as run  # heavy

    run(
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


def recording(**options: int) -> AbstractContextManager[Recording]:
    """A context that records the Functions called in it: see `check.recorded`."""
    from pullback.check.recorded import recording as record  # it imports the checker

    return record(**options)
