"""Check: every way a custom function can be wrong or fragile, found and explained.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

from typing import Any


def check(target: Any, inputs: Any = None, **options: Any) -> Any:
    """A `Report` on `target` at `inputs`: see `check.runner`."""
    from pullback.check.runner import check as run  # heavy

    return run(target, inputs, **options)


def assert_sound(target: Any, inputs: Any = None, **options: Any) -> None:
    """Raise with every finding about `target`, if there is any: see `check.runner`."""
    from pullback.check.runner import assert_sound as run  # heavy

    run(target, inputs, **options)


def recording(**options: Any) -> Any:
    """A context that records the Functions called in it: see `check.recording`."""
    from pullback.check.recording import recording as record  # it imports the checker

    return record(**options)
