"""What was cached from one call must not serve another.

What it checks
    The gradients at other values of the same shape. Where one is wrong although it is right at the
    example, the containers and values on the class, and the containers that its methods see around
    them, are emptied: a gradient that is right then was computed from what an earlier call left.

Why it matters
    A cache that is keyed by the shape, or filled once and never again, is right in every test that
    makes one call, and wrong from the second batch on.

Fails
    if x.shape not in cache: cache[x.shape] = x.softmax(-1)

Passes
    ctx.save_for_backward(x.softmax(-1))

Cannot see
    Caches in C++ or in objects that the methods do not name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from pullback.check.example import Example
from pullback.check.mismatch import Mismatch
from pullback.check.others import other_values
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
)

RULE = Rule(code="T904", name="stale-cache", group="state", profile="quick")

CONTAINERS = (dict, list, set)
VALUES = (int, float, complex, tuple, Tensor)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that is right only once the caches are empty."""
    if not subject.target.is_function or subject.fails_at_base:
        return
    _ = subject.base_mismatches  # the call that would fill a cache
    for example in (other_values(subject.base), other_values(subject.base, 2)):
        wrong = [m for m in _judged(subject, example) or () if m.name not in subject.wrong_names]
        if not wrong:
            continue
        with _emptied(subject):
            after = _judged(subject, example)
        if after is None:
            return
        still = {mismatch.name for mismatch in after}
        for mismatch in wrong:
            if mismatch.name not in still:
                yield subject.mismatched(
                    RULE,
                    mismatch,
                    example,
                    why="it is right once what earlier calls left on the class is removed",
                    fix="keep what backward needs on ctx, call by call",
                )
        return


def _judged(subject: Subject, example: Example) -> list[Mismatch] | None:
    """What is wrong at an example; None where it cannot be run."""
    try:
        return subject.judge(example)
    except (ForwardRefusedError, BackwardFailedError):
        return None


@contextmanager
def _emptied(subject: Subject) -> Iterator[None]:
    """The Function without what its calls may have left; put back afterwards."""
    function = subject.target.function
    values = {
        name: value
        for name, value in vars(function).items()
        if isinstance(value, VALUES)
        and not isinstance(value, bool)
        and not name.startswith(("__", "_pb_"))
        and name != "declares"
    }
    kept = [(container, container.copy()) for container in _containers(subject)]
    for container, _ in kept:
        container.clear()
    for name in values:
        setattr(function, name, None)
    try:
        yield
    finally:
        for name, value in values.items():
            setattr(function, name, value)
        for container, copy in kept:
            container.clear()
            container.extend(copy) if isinstance(container, list) else container.update(copy)


def _containers(subject: Subject) -> list[Any]:
    """The containers on the class, and those that its methods name."""
    function = subject.target.function
    found = [value for name, value in vars(function).items() if name != "declares"]
    for name in ("forward", "backward", "setup_context"):
        method = subject.target.method(name)
        try:
            seen = inspect.getclosurevars(inspect.unwrap(method))
        except (TypeError, ValueError):
            continue
        found += [*seen.globals.values(), *seen.nonlocals.values()]
    plain = [value for value in found if type(value) in CONTAINERS]
    return list({id(value): value for value in plain}.values())
